"""Provenance beside the data: what was recorded is read back, in its order, whatever it was."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core import provenance_blocks as origins
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import Provenance, format_provenance
from kafka_eos.core.provenance_blocks import ProvenanceBlock, ProvenanceRecorder, decode, decode_block, encode
from kafka_eos.core.records import Batch, Origin, RawRecord

numbers = st.integers(min_value=-(2**62), max_value=2**62)
"""Below zero are times of timers."""
TERM, EPOCH = Term(3), Epoch(9)


class Read(Origin):
    """An origin with any partitions and offsets."""

    def __init__(self, source: str, topic: str, places: Sequence[tuple[int, int]]) -> None:
        self.source, self.topic = source, topic
        self.partitions, self.offsets = [p for p, _ in places], [o for _, o in places]

    def timestamps(self) -> Sequence[int]:
        return [0] * len(self.offsets)

    def raw(self, row: int) -> RawRecord:
        return RawRecord(self.topic, self.partitions[row], self.offsets[row], 0, None, None, ())


@st.composite
def batches(draw: st.DrawFn) -> Batch[Any]:
    places = draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), numbers), min_size=1, max_size=8))
    origin = Read(draw(st.sampled_from(["in", "other"])), draw(st.sampled_from(["a", "b"])), places)
    whole = draw(st.booleans())
    rows: Sequence[int] = (
        range(len(places))
        if whole
        else sorted(draw(st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=12)))
    )
    count = len(rows)
    updates = draw(st.none() | st.lists(st.integers(1, 2**40), min_size=count, max_size=count))
    branch = draw(st.none() | st.lists(st.sampled_from(["", "0-1-", "7-0-"]), min_size=count, max_size=count))
    return Batch([None] * count, rows, origin, lane=draw(st.integers(0, 3)), updates=updates, branch=branch)


def texts(block: ProvenanceBlock) -> list[str]:
    """What the header of each output would be."""
    spans = [span for span in block.spans for _ in range(span.count)]
    columns = (block.partitions, block.offsets, block.branches, block.numbers, block.updates)
    return [
        str(
            Provenance(
                "job", TERM, EPOCH, block.names[span.source], block.names[span.topic], partition, offset, span.lane,
                f"{block.names[branch]}{number}", update or None,
            )
        )
        for span, partition, offset, branch, number, update in zip(spans, *columns, strict=True)
    ]  # fmt: skip


def read_back(recording: ProvenanceRecorder) -> list[ProvenanceBlock]:
    content = encode(TERM, EPOCH, 7, 2, {"out": recording})
    found = decode(content)
    assert (found.term, found.epoch, found.producer_id, found.producer_epoch) == (TERM, EPOCH, 7, 2)
    return [decode_block(block) for block in found.blocks["out"]]


@given(st.lists(st.tuples(batches(), st.integers(0, 300)), min_size=1, max_size=6), st.integers(1, 20))
def test_what_was_recorded_is_what_headers_would_have_said(written: list[tuple[Batch[Any], int]], full: int) -> None:
    """In blocks of any size, for outputs of any shape."""
    recording = ProvenanceRecorder(full)
    for batch, place in written:
        recording.add("sink", batch, [place] * len(batch))

    blocks = read_back(recording)

    assert [text for block in blocks for text in texts(block)] == [
        text for batch, _ in written for text in format_provenance(batch, "job", TERM, EPOCH)
    ]
    assert [place for block in blocks for place in block.output_partitions] == [
        p for b, p in written for _ in range(len(b))
    ]
    assert {block.names[span.sink] for block in blocks for span in block.spans} == {"sink"}
    most = max(len(batch) for batch, _ in written)
    assert all(full <= len(block.output_partitions) < full + most for block in blocks[:-1])
    assert len(blocks[-1].output_partitions) < full + most


@given(batches(), st.data())
def test_those_that_were_not_taken_leave_the_others_their_names(batch: Batch[Any], data: st.DataObject) -> None:
    refused = data.draw(st.sets(st.integers(0, len(batch) - 1)))
    recording = ProvenanceRecorder()
    recording.add("sink", batch, list(range(len(batch))), refused)

    blocks = read_back(recording)

    left = [index for index in range(len(batch)) if index not in refused]
    assert [place for block in blocks for place in block.output_partitions] == left
    names = format_provenance(batch, "job", TERM, EPOCH)
    assert [text for block in blocks for text in texts(block)] == [names[index] for index in left]


@pytest.mark.limits(outputs_per_origin_block=1 << 16)
def test_records_read_one_after_the_other_take_almost_nothing() -> None:
    recording = ProvenanceRecorder()
    for start in range(0, 50_000, 500):
        places = [(start // 500 % 4, start + i) for i in range(500)]
        recording.add("sink", Batch([None] * 500, range(500), Read("in", "a", places)), [start // 500 % 3] * 500)

    content = encode(TERM, EPOCH, 7, 2, {"out": recording})

    assert len(content) < 50_000 * 0.05


def test_topics_are_kept_apart() -> None:
    batch = Batch([None], range(1), Read("in", "a", [(1, 5)]))
    first, second = ProvenanceRecorder(), ProvenanceRecorder()
    first.add("one", batch, [0])
    second.add("two", batch, [4])

    found = decode(encode(TERM, EPOCH, 7, 2, {"x": first, "y": second}))

    assert {topic: decode_block(blocks[0]).output_partitions for topic, blocks in found.blocks.items()} == {
        "x": array("q", [0]), "y": array("q", [4]),
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage", [lambda c: b"", lambda c: c[1:], lambda c: c[:-1], lambda c: c.replace(b" 1\n", b" 2\n")]
)
def test_what_is_no_file_of_provenance_is_refused(damage: Any) -> None:
    recording = ProvenanceRecorder()
    recording.add("sink", Batch([None], range(1), Read("in", "a", [(1, 5)])), [0])
    content = damage(encode(TERM, EPOCH, 7, 2, {"out": recording}))

    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, or of its own
        decode(content)


def test_columns_that_do_not_fit_together_are_refused() -> None:
    recording = ProvenanceRecorder()
    recording.add("sink", Batch([None] * 2, range(2), Read("in", "a", [(1, 5), (1, 6)])), [0, 1])
    (block,) = recording.blocks()
    found = origins.msgspec.msgpack.decode(block)
    found[1][0][0] = 3  # a span of three outputs

    with pytest.raises(ValueError, match="a column has 2 values for 3 outputs"):
        decode_block(origins.msgspec.msgpack.encode(found))
