"""What crosses an exchange arrives as it was sent: values, keys, origin, headers, branch and updates."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.codecs import AvroCodec, exchange_codec
from kafka_eos.core.errors import PlanError, RestartFromCheckpoint
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.runtime.exchange import wire_format as wire


class Color(enum.Enum):
    RED = "red"


class Order(msgspec.Struct):
    id: int
    at: datetime.datetime
    color: Color
    tags: tuple[str, ...] = ()


@dataclass
class Point:
    x: float
    y: float | None


RAWS = [
    RawRecord("orders", 2, 40, 7, b"k", b"v", (("trace", b"\x00\xff"), ("trace", None))),
    RawRecord("orders", 0, 2**62, -1, None, None, ()),
    RawRecord("orders", 2**31 - 1, 0, 2**53, b"", b"", (("empty", b""),)),
]


class Stored:
    """An origin whose rows are raw records."""

    source, topic = "shop", "orders"

    def __init__(self, raws: list[RawRecord]) -> None:
        self._raws = raws
        self.partitions = [raw.partition for raw in raws]
        self.offsets = [raw.offset for raw in raws]

    def timestamps(self) -> list[int]:
        return [raw.timestamp for raw in self._raws]

    def raw(self, row: int) -> RawRecord:
        return self._raws[row]


def sent(batch: Batch[Any], tp: Any = Any, keep_raw: bool = False) -> Batch[Any]:
    codec = exchange_codec(tp)
    return wire.decode(wire.encode(batch, codec, keep_raw), codec)


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (Any, {"a": [1, None, 2.5, b"\xff", "ü"], "b": {"c": True}}),
        (str, "text"),
        (bytes, b"\x00\xff"),
        (int, -(2**63)),
        (float, 0.1),
        (tuple[str, int], ("a", 1)),
        (Order, Order(1, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC), Color.RED, ("x", "y"))),
        (Point, Point(1.5, None)),
        (str | None, None),
        (dict[str, list[Point]], {"line": [Point(0, 1), Point(1, 0)]}),
    ],
)
def test_values_of_every_type_arrive_as_they_were(tp: Any, value: Any) -> None:
    arrived = sent(Batch([value, value], [0, 2], Stored(RAWS)), tp)

    assert arrived.values == [value, value]
    assert {type(v) for v in arrived.values} == {type(value)}


@pytest.mark.parametrize("key", ["a", "", 5, -(2**63), 2**63 - 1, b"\xff", ("a", 1), ("a", ("b", b"c")), ()])
def test_keys_of_every_type_arrive_as_they_were(key: Any) -> None:
    arrived = sent(Batch([1, 2], [0, 1], Stored(RAWS), keys=[key, "other"]), int)

    assert arrived.keys == [key, "other"]
    assert isinstance(arrived.keys[0], type(key))


def test_a_row_keeps_its_place_and_only_its_own() -> None:
    """Rows that were filtered out do not travel; one that made two values travels with each of them."""
    batch = Batch(["a", "b", "c"], [0, 2, 2], Stored(RAWS), lane=5, updates=[1, 2, 2**40], branch=["", "", "1-"])

    arrived = sent(batch, str)

    rows = [arrived.origin_rows[i] for i in range(3)]
    assert [arrived.origin.offsets[row] for row in rows] == [40, 0, 0]
    assert [arrived.origin.partitions[row] for row in rows] == [2, 2**31 - 1, 2**31 - 1]
    assert [arrived.origin.timestamps()[row] for row in rows] == [7, 2**53, 2**53]
    assert (arrived.lane, arrived.updates, arrived.branch) == (5, [1, 2, 2**40], ["", "", "1-"])
    assert (arrived.origin.source, arrived.origin.topic) == ("shop", "orders")


@pytest.mark.parametrize("rows", [range(3), [0, 1, 2], [1]])
def test_the_undecoded_record_travels_where_it_is_needed(rows: Any) -> None:
    batch = Batch(["v"] * len(rows), rows, Stored(RAWS))

    arrived = sent(batch, str, keep_raw=True)

    assert [arrived.origin.raw(row) for row in arrived.origin_rows] == [RAWS[row] for row in rows]


def test_without_it_the_record_still_says_where_it_was() -> None:
    arrived = sent(Batch(["v"], [1], Stored(RAWS)), str)

    assert arrived.origin.raw(0) == RawRecord("orders", 0, 2**62, -1, None, None, ())


@given(
    st.lists(
        st.tuples(
            st.recursive(
                st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            ),
            st.text() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.tuples(st.text(), st.integers(0, 9)),
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**63 - 1),
            st.from_regex(r"(\d+-){0,3}", fullmatch=True),
        ),
        min_size=1,
    )
)
def test_any_batch_comes_back(rows: list[tuple[Any, Any, int, int, str]]) -> None:
    values, keys, partitions, offsets, branch = map(list, zip(*rows, strict=True))
    raws = [RawRecord("t", p, o, o, b"", None, ()) for p, o in zip(partitions, offsets, strict=True)]

    arrived = sent(Batch(values, range(len(rows)), Stored(raws), keys=keys, branch=branch))

    assert (arrived.values, arrived.keys, arrived.branch) == (values, keys, branch)
    assert (list(arrived.origin.partitions), list(arrived.origin.offsets)) == (partitions, offsets)


@pytest.mark.parametrize(("tp", "value"), [(int, "text"), (Any, Point(1, 2)), (Any, 2**70), (Point, {"x": 1, "y": 2})])
def test_a_value_that_would_arrive_as_another_is_refused(tp: Any, value: Any) -> None:
    """Once again would not help: it is the user's declaration that is wrong."""
    with pytest.raises((ValueError, PlanError), match=r"expected|declare|change subtasks"):
        sent(Batch([value], [0], Stored(RAWS)), tp)


def test_a_value_that_is_not_what_is_declared_is_refused_before_it_is_sent() -> None:
    wrong: Any = Point("one", 2)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="cannot change subtasks as Point: Expected `float`, got `str`"):
        sent(Batch([Point(1, 2), wrong], range(2), Stored(RAWS)), Point)


def test_the_error_of_a_stored_value_that_is_not_what_is_declared_names_its_record() -> None:
    raws = [RawRecord("orders", 3, offset, 0, None, None, ()) for offset in (40, 41)]
    batch = Batch([{"x": 1, "y": 2}, {"x": "one", "y": 2}], range(2), Stored(raws))
    frame = wire.encode(batch, exchange_codec(Any), False)

    with pytest.raises(PlanError, match=r"record at orders/3/41 \(topic.*Expected `float`, got `str`.*or declare the"):
        wire.decode(frame, exchange_codec(Point))


def test_values_in_a_codec_of_their_own() -> None:
    assert sent(Batch([Point(1, None)], [0], Stored(RAWS)), AvroCodec(Point)).values == [Point(1, None)]


@given(st.data())
def test_a_torn_frame_is_not_taken_for_rows(data: st.DataObject) -> None:
    codec = exchange_codec(int)
    frame = wire.encode(Batch([1, 2, 3], range(3), Stored(RAWS), keys=["a", "b", "c"]), codec, True)
    end = data.draw(st.integers(0, len(frame) - 1))

    with pytest.raises(RestartFromCheckpoint, match="rows from another subtask"):
        wire.decode(frame[:end], codec)
