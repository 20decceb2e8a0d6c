"""Headers that cannot be read or written are an error of their record; the others are as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos.abc.codec import Codec, SupportsHeaders
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.sink.dead_letters import (
    DeadLetter,
    DeadLetterEncoder,
    RestoredRecordEncoder,
    encode_dead_letter,
)
from kafka_eos.connectors.kafka.sink.record_encoders import NOW
from kafka_eos.connectors.kafka.source.positions import position, split_id
from kafka_eos.connectors.kafka.source.replay_decoding import encode_record
from kafka_eos.core.ids import Term
from kafka_eos.core.records import Batch, Headers, RawRecord, Record, RejectedRecord
from tests.broker.kafka_kit import batch
from tests.kafka_log import Log
from tests.waiting import eventually

READABLE, UNREADABLE = (b"kind", b"order"), (b"\xff\xfe", b"x")


@pytest.fixture
def address(record_client: str) -> Iterator[str]:
    """A log of three records: the second one has a header whose name is not UTF-8."""
    log = Log()
    log.append(0, b"0", headers=[READABLE])
    log.append(0, b"1", headers=[READABLE, UNREADABLE])
    log.append(0, b"2", headers=[READABLE])
    with log.served() as broker:
        yield broker.address


def read(source: KafkaSource[Any], address: str) -> tuple[list[Any], list[tuple[RawRecord, Exception]]]:
    """Values, and rejected records, of the whole log."""
    rejected: list[tuple[RawRecord, Exception]] = []
    services = Services(reject_record=lambda name, raw, error: rejected.append((raw, error)))
    task = TaskContext(JobContext("job", Term(1), {"bootstrap_servers": address}), 0, 1, "numbers", services)
    reader = source.reader(task, {split_id("in", 0): position(0, "id-0")})
    values: list[Any] = []

    def poll() -> bool:
        rows = reader.poll(100, 0.1)
        values.extend(() if rows is None else rows.values)
        if rows is not None:
            list(map(rows.origin.raw, rows.origin_rows))  # an exchange and a dead letter need the whole record
        return len(values) + len(rejected) == 3

    eventually(poll, "three records")
    reader.close()
    return values, rejected


def test_a_record_with_an_unreadable_header_is_rejected_where_headers_are_asked_for(address: str) -> None:
    for source in (
        KafkaSource.records("in", key=str, value=int),
        KafkaSource("in", value=int, header_filter=lambda headers: headers["kind"] == b"order"),
    ):
        values, rejected = read(source, address)

        assert [value.value if isinstance(value, Record) else value for value in values] == [0, 2]
        ((raw, error),) = rejected
        assert raw.location == "in/0/1"
        assert isinstance(error, ValueError)
        assert "a header name is not valid UTF-8" in str(error)


def test_its_value_is_read_where_headers_are_not_asked_for(address: str) -> None:
    assert read(KafkaSource("in", value=int), address) == ([0, 1, 2], [])


def test_its_dead_letter_reports_that_the_headers_are_missing(address: str) -> None:
    _, ((raw, error),) = read(KafkaSource.records("in", value=int), address)

    value, key, timestamp, headers = encode_dead_letter(RejectedRecord(raw, "in", "ValueError", str(error)))
    letter = DeadLetter.from_record(Record(key, value, tuple(headers), timestamp))

    assert letter is not None
    ((name, text),) = letter.headers
    assert name == "dead_letter.headers"
    assert text is not None and b"a header name is not valid UTF-8" in text
    assert RestoredRecordEncoder(in_place=True)(batch(letter)).values == [b"1"]


# ---------------------------------------------------------------- writing

Written = Callable[[Any], list[tuple[str, bytes | None]]]


def by_function(headers: Any) -> tuple[Batch[Any], list[RawRecord], list[Exception]]:
    errors: list[Exception] = []
    sink: KafkaSink[Any] = KafkaSink("out", value=str, headers=lambda value: headers if value == "b" else [])
    return *sink.written(batch("a", "b", "c"), "out", lambda rows, index, name, error: errors.append(error)), errors


def by_record(headers: Any) -> tuple[Batch[Any], list[RawRecord], list[Exception]]:
    errors: list[Exception] = []
    rows = batch(Record("k", "a"), Record("k", "b", headers), Record("k", "c"))
    sink = KafkaSink.records("out", key=str, value=str)
    return *sink.written(rows, "out", lambda rows, index, name, error: errors.append(error)), errors


ways = pytest.mark.parametrize("way", [by_function, by_record])


@ways
@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"kind": b"order"}, "headers must be pairs of name and value"),
        (None, "headers must be pairs of name and value"),
        ("kind", "headers must be pairs of name and value"),
        (5, "headers must be pairs of name and value"),
        ([("kind", b"order", 1)], "a header must be a pair of name and value"),
        (["kind"], "a header must be a pair of name and value"),
        ([(b"kind", b"order")], "the name of a header must be a str"),
        ([("x\0y", b"order")], "contains a NUL character"),
        ([("\ud800", b"order")], "cannot be encoded"),
        ([("kind", 7)], "the value of header 'kind' must be bytes or None, not int"),
    ],
    ids=str,
)
def test_headers_that_cannot_be_written_are_an_error_of_their_row(
    way: Callable[[Any], Any], headers: Any, reason: str
) -> None:
    _, records, errors = way(headers)

    assert [record.value for record in records] == [b"a", b"c"]
    (error,) = errors
    assert isinstance(error, ValueError | TypeError)
    assert reason in str(error)


@ways
def test_headers_are_written_as_they_are(way: Callable[[Any], Any]) -> None:
    pairs = [("kind", b"x\0y"), ("kind", None), ("ü", "ü"), ("", b"")]
    for headers in (pairs, tuple(pairs), (pair for pair in pairs), [list(pair) for pair in pairs]):
        _, records, errors = way(headers)

        assert list(records[1].headers) == [("kind", b"x\0y"), ("kind", None), ("ü", "ü".encode()), ("", b"")]
        assert errors == []


class Marked(Codec[str], SupportsHeaders):
    """Its values cannot be read without a header."""

    name = "marked"

    def __init__(self, header: str) -> None:
        self._header = header

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()

    def decode_with(self, data: bytes, headers: Headers) -> str:
        assert (self._header, b"2") in headers
        return self.decode(data)

    def headers(self) -> Headers:
        return [(self._header, b"1"), (self._header, b"2")]


def test_headers_that_codecs_need_follow_those_of_the_user_in_each_record() -> None:
    """Those of the key first."""
    codecs: dict[str, Any] = {"key": Marked("k"), "value": Marked("v")}
    own, needed = [("own", b"x")], [("k", b"1"), ("k", b"2"), ("v", b"1"), ("v", b"2")]

    def written(sink: KafkaSink[Any], rows: Batch[Any]) -> list[list[Any]]:
        _, records = sink.written(rows, "out", lambda _rows, _index, _name, error: pytest.fail(str(error)))
        return [list(record.headers) for record in records]

    rows = batch(Record("k", "a", own), Record("k", "b"), Record(None, "c", own))
    assert written(KafkaSink.records("out", **codecs), rows) == [own + needed, needed, own + needed]
    values: KafkaSink[Any] = KafkaSink("out", key=str, key_codec=codecs["key"], value=codecs["value"])
    assert written(values, batch("a", "b", "c")) == [needed] * 3
    only: KafkaSink[Any] = KafkaSink("out", value=codecs["value"], headers=lambda value: [] if value == "b" else own)
    assert written(only, batch("a", "b", "c")) == [own + needed[2:], needed[2:], own + needed[2:]]
    assert list(encode_record("in", 3, 5, Record("k", "a", own), codecs).headers) == own + needed
    assert list(encode_record("in", 3, 5, "a", {"value": codecs["value"]}).headers) == needed[2:]


def test_the_dead_letter_of_a_result_says_so_and_has_the_time_of_writing() -> None:
    raw = RawRecord("timers of sums", 7, -5, -5, None, b'{"key":"a"}', ())
    columns = DeadLetterEncoder()(batch(RejectedRecord(raw, "sums", "OverflowError", "why", is_result=True)))

    assert list(columns.timestamps) == [NOW]
    assert columns.headers is not None
    letter = DeadLetter.from_record(Record(None, columns.values[0], tuple(columns.headers[0]), 1))
    assert letter is not None
    assert (letter.where, letter.timestamp, letter.is_result, letter.has_record) == (
        "timers of sums/7/-5",
        -5,
        True,
        False,
    )
    forged = Record(None, b"", (("dead_letter.result", b""), *columns.headers[0][:-1]), 1)
    assert DeadLetter.from_record(forged).is_result is False  # type: ignore[union-attr]


def test_dead_letters_are_written_with_all_that_the_records_had_and_read_again() -> None:
    own = (("a", b"1"), ("kafka_eos", b"job.1.1/x"), ("dead_letter.topic", b"earlier"), ("z", None))
    raws = [
        RawRecord("in", 3, 10, 77, b"k", b"v", own),
        RawRecord("other", 0, 0, -1, None, None, ()),
        RawRecord("in", 1, 2**40, 0, b"", b"w", own[:1]),
    ]
    rejected = [RejectedRecord(raw, f"op{n}", "ValueError", f"why {n}") for n, raw in enumerate(raws)]

    columns = DeadLetterEncoder()(batch(*rejected))

    assert [list(columns.values), list(columns.keys)] == [[b"v", None, b"w"], [b"k", None, b""]]
    assert list(columns.timestamps) == [77, 0, 1], "0 is the time of writing, so 0 itself is written as 1"
    assert columns.headers is not None
    assert columns.headers[0] == [
        own[0], ("dead_letter.kafka_eos", b"job.1.1/x"), *own[2:],
        ("dead_letter.topic", b"in"), ("dead_letter.partition", b"3"), ("dead_letter.offset", b"10"),
        ("dead_letter.timestamp", b"77"), ("dead_letter.operator", b"op0"), ("dead_letter.error", b"ValueError"),
        ("dead_letter.message", b"why 0"),
    ]  # fmt: skip
    letters = []
    for value, key, headers in zip(columns.values, columns.keys, columns.headers, strict=True):
        assert not isinstance(key, str)
        stamped = (*headers, ("kafka_eos", b"job.2.1/in"))
        found = DeadLetter.from_record(Record(key, value, stamped))
        assert found is not None
        assert DeadLetter.from_record(Record(key, value, headers[:-1])) is None
        letters.append(found)
    assert [letter.identity for letter in letters] == [("in", 3, 10, 77), ("other", 0, 0, -1), ("in", 1, 2**40, 0)]
    assert [letter.headers for letter in letters] == [
        (own[0], ("dead_letter.kafka_eos", b"job.1.1/x"), *own[2:]), (), own[:1]
    ]  # fmt: skip
    assert [(letter.operator, letter.message) for letter in letters] == [(f"op{n}", f"why {n}") for n in range(3)]
    restored = RestoredRecordEncoder(in_place=True)(batch(*letters))
    assert [list(restored.values), list(restored.keys)] == [[b"v", None, b"w"], [b"k", None, b""]]
    assert restored.partitions is not None
    assert list(restored.partitions) == [3, 0, 1]
    assert list(restored.timestamps) == [77, 0, 1]
    assert restored.headers == [letter.headers for letter in letters]
    assert RestoredRecordEncoder(in_place=False)(batch(*letters)).partitions is None


@ways
def test_the_provenance_of_an_earlier_job_is_not_passed_on(way: Callable[[Any], Any]) -> None:
    """The writer adds its own: a record has one."""
    _, records, _ = way([("kafka_eos", b"job.1.1/numbers/in/0/0/0.0"), ("kind", b"order"), ("kafka_eos", b"another")])

    assert list(records[1].headers) == [("kind", b"order")]
