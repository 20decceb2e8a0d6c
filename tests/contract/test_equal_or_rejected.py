"""What comes in goes out equal, or is rejected: values of any type through each carrier.

A carrier writes values and reads them again, by the type that both sides declare. Rule: a value comes back equal in
value and type, or its row is rejected when it is written. To add a carrier, add it to ``CARRIERS``.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.committer import CommitPermit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.codecs import JsonCodec
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples

JOB = JobContext("job", Term(1), {})
FIRST = EpochId(Epoch(1), Term(1))


class Scalars(msgspec.Struct):
    """What a cell of CSV can be read as."""

    text: str | None
    number: int
    share: float
    on: bool
    exact: decimal.Decimal
    day: datetime.date
    at: datetime.datetime
    whose: uuid.UUID


class Nested(msgspec.Struct):
    raw: bytes
    shares: list[float | None]
    pairs: list[tuple[int, str]]
    by_number: dict[int, str]
    by_either: dict[str | int, float]
    more: Any


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.decimals(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.floats() | st.booleans() | st.none(), inner)
    ),
    max_leaves=8,
)
scalars = st.builds(
    Scalars,
    st.none() | st.text(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    st.uuids(),
)
nested = st.builds(
    Nested,
    st.binary(),
    st.lists(st.none() | st.floats()),
    st.lists(st.tuples(st.integers(), st.text())),
    st.dictionaries(st.integers(), st.text()),
    st.dictionaries(st.text("123") | st.integers(1, 3), st.floats()),
    anything,
)
VALUES: Final = {Any: anything, Scalars: scalars, Nested: nested}

Carrier = Callable[[Any, Sequence[Any]], tuple[list[Any], set[int]]]
"""Carries values of a type: returns those that came back, in order, and the indices of those that were rejected."""


def by_codec(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
    """As in a topic: each value alone."""
    codec, back, rejected = JsonCodec[Any](tp), list[Any](), set[int]()
    for index, value in enumerate(values):
        try:
            back.append(codec.decode(codec.encode(value)))
        except ValueError:
            rejected.add(index)
    return back, rejected


def by_file(form: str) -> Carrier:
    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        left, rejected = [*range(len(values))], set[int]()

        def reject(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
            rejected.add(batch.origin.offsets[batch.origin_rows[index]])

        with TemporaryDirectory() as directory:
            sink = FileSink(Path(directory), value=tp, format=form)
            writer = sink.writer(TaskContext(JOB, 0, 1, "out", Services(reject_row=reject)))
            writer.write(Batch([*values], left, ListOrigin("in", "values", 0, 0, values)))
            committer = sink.committer(JOB)
            for committable in writer.seal(FIRST)():
                committer.commit(CommitPermit(FIRST), committable)
            source = FileSource[Any](Path(directory), value=None if tp is Any else tp, format=form)
            reader = source.reader(TaskContext(JOB, 0, 1, "in", Services()), source.discover(JOB, None))
            back = list[Any]()
            while (batch := reader.poll(100, 0)) is not None:
                back += batch.values
            reader.close()
        return back, rejected

    return carry


CARRIERS: Final = {
    "JSON": (by_codec, (Any, Scalars, Nested)),
    "JSON lines": (by_file("jsonl"), (Any, Scalars, Nested)),
    "CSV": (by_file("csv"), (Scalars,)),
}
"""Each with the types that it can hold. A type that a carrier refuses with the plan is not among them."""


def is_same(a: Any, b: Any) -> bool:
    """Is a value another one in value and type? An int is the same as an equal float where a float is declared."""
    match a, b:
        case msgspec.Struct(), msgspec.Struct():
            return type(a) is type(b) and all(is_same(getattr(a, n), getattr(b, n)) for n in a.__struct_fields__)
        case (list(), list()) | (tuple(), tuple()):
            return len(a) == len(b) and all(map(is_same, a, b))
        case dict(), dict():
            return len(a) == len(b) and all(is_same([*p], [*q]) for p, q in zip(a.items(), b.items(), strict=True))
        case float(), float() if math.isnan(a):
            return math.isnan(b)
        case decimal.Decimal(), decimal.Decimal():
            return a.as_tuple() == b.as_tuple()
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize(
    ("carrier", "tp"), [(name, tp) for name, (_, types) in CARRIERS.items() for tp in types], ids=str
)
@given(data=st.data())
@examples(15)
def test_a_value_comes_back_equal_or_is_rejected(carrier: str, tp: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[tp], min_size=1, max_size=4))
    carry, _ = CARRIERS[carrier]

    back, rejected = carry(tp, values)

    kept = [value for index, value in enumerate(values) if index not in rejected]
    assert len(back) == len(kept), (kept, back)
    for value, found in zip(kept, back, strict=True):
        assert is_same(found, value), (value, found)
