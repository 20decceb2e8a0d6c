"""The size of an output is what an encoder of the same format makes of it."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.records.schema import NewRecordBatch, Record, RecordHeader
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.record_sizes import (
    ProvenanceHeaders,
    TopicLimits,
    batch_bytes,
    oversized,
    shorten_oversized,
)
from kafka_eos.core.provenance import HEADER

FIELD = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=20), FIELD), max_size=70)


def _encoded(value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]) -> int:
    record = Record(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(datetime.fromtimestamp(1_700_000_000, UTC)),
        offset=i64(0),
        key=key,
        value=value,
        headers=tuple(RecordHeader(key=name.encode(), value=field) for name, field in headers),
    )
    batch = NewRecordBatch(
        producer_id=i64(2**40),
        producer_epoch=i16(7),
        base_sequence=i32(0),
        records=(record,),
        attributes=i16(0x10),  # transactional
    )
    buffer = io.BytesIO()
    write_new_batch(buffer, batch)
    return buffer.tell()


@given(FIELD, FIELD, HEADERS)
def test_a_batch_of_one_is_as_long_as_an_encoder_makes_it(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    assert batch_bytes(value, key, headers) == _encoded(value, key, headers)


@pytest.mark.parametrize("power", [6, 7, 13, 14, 20])
def test_lengths_of_lengths_change_where_an_encoder_changes_them(power: int) -> None:
    for size in range(2**power - 10, 2**power + 2):
        value = bytes(size)
        assert batch_bytes(value, value, []) == _encoded(value, value, [])


@given(st.text(max_size=100))
def test_text_counts_as_utf8(text: str) -> None:
    raw = text.encode()
    assert batch_bytes(text, text, [("h", text)]) == batch_bytes(raw, raw, [("h", raw)])


ROW = st.tuples(FIELD, FIELD | st.text(max_size=100), HEADERS, st.text(max_size=100))


@given(st.lists(ROW, max_size=6), st.integers(0, 2000), st.booleans(), st.booleans(), st.booleans())
@example([(b"", "\U0001f600" * 100, [], "")], 400, True, False, False)
def test_oversized_is_what_is_over_the_limit_alone_in_a_batch(
    rows: list[tuple[Any, ...]], limit: int, keyed: bool, headed: bool, stamped: bool
) -> None:
    columns = ProducerColumns(
        [row[0] for row in rows],
        [row[1] for row in rows] if keyed else repeat(None),
        repeat(0),
        [row[2] for row in rows] if headed else None,
    )
    longest = max((len(row[3].encode()) + 20 for row in rows), default=0)
    stamps = ProvenanceHeaders(tuple(row[3] for row in rows), (7,) * len(rows), "/", None, longest) if stamped else None

    sizes = [
        batch_bytes(
            value, key if keyed else None, [*(own if headed else ()), *([(HEADER, f"{mark}7/")] if stamped else [])]
        )
        for value, key, own, mark in rows
    ]
    assert oversized(columns, stamps, limit) == {i: size for i, size in enumerate(sizes) if size > limit}


def test_outputs_over_the_limit_are_shortened_and_no_others() -> None:
    columns = ProducerColumns([b"x" * 50, b"y" * 500, None], [None, b"k", b"k"], repeat(0), [[], [], [("h", b"1")]])

    assert shorten_oversized(columns, None, 100) is columns, "nothing says how"

    columns.shorten = lambda index: (None, b"%d" % index, [("short", b"")])
    assert shorten_oversized(columns, None, 1000) is columns
    shortened = shorten_oversized(columns, None, 200)
    assert (shortened.values, shortened.keys) == ([b"x" * 50, None, None], [None, b"1", b"k"])
    assert shortened.headers == [[], [("short", b"")], [("h", b"1")]]


def test_what_is_of_a_wrong_type_is_left_to_the_client() -> None:
    values: list[Any] = [b"x" * 500, 7, b"y"]
    headers: list[Any] = [[], [("h", 7)], []]
    columns = ProducerColumns(values, [None, 1.5, "k"], repeat(0), headers)  # type: ignore[list-item]

    assert list(oversized(columns, None, 300)) == [0]


@pytest.mark.parametrize(
    ("limit", "largest", "size", "raised"),
    [
        (2000, 10_000, 2001, "raise max.message.bytes of the topic"),
        (20_000, 10_000, 10_001, 'message.max.bytes of the producer (the sink\'s config={"message.max.bytes": 10001})'),
        (2000, 1000, 3000, "raise max.message.bytes of the topic and message.max.bytes of the producer (the sink's "),
        (None, 1000, 3000, "raise message.max.bytes of the producer"),
    ],
)
def test_a_refusal_names_the_size_both_limits_and_the_one_to_raise(
    limit: int | None, largest: int, size: int, raised: str
) -> None:
    said = TopicLimits("out", limit, largest, 1).refusal(size)

    takes = "an unknown number" if limit is None else f"at most {limit}"
    assert f"has {size} bytes before compression, but the topic out accepts {takes} (max.message.bytes)" in said
    assert f"and its producer at most {largest} (message.max.bytes)" in said
    assert raised in said
