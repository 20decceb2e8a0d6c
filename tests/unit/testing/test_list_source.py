"""ListSource can be read again from any position it has given out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.source import Reader
from kafka_eos.core.errors import InputLost
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.testing import ListSource
from kafka_eos.testing.list_source import ListOrigin

JOB = JobContext("job", Term(1), {})
TASK = TaskContext(JOB, 0, 1, "in")


def _drain(reader: Reader[Any], size: int = 3) -> list[Any]:
    values: list[Any] = []
    while batch := reader.poll(size, 0.0):
        values += batch.values
    return values


def test_one_split_keeps_the_order() -> None:
    source = ListSource(range(10))
    reader = source.reader(TASK, source.discover(JOB, None))

    assert _drain(reader) == list(range(10))
    assert reader.has_reached(source.get_end_positions(JOB))
    assert reader.lag() == 0


@given(st.lists(st.integers()), st.integers(1, 4), st.integers(1, 5), st.integers(0, 6))
def test_a_second_reader_continues_where_the_first_one_was(
    values: list[int], splits: int, size: int, polls: int
) -> None:
    source = ListSource(values, splits=splits)
    first = source.reader(TASK, source.discover(JOB, None))
    read = [value for _ in range(polls) if (batch := first.poll(size, 0.0)) for value in batch.values]
    second = source.reader(TASK, source.discover(JOB, first.positions()))

    assert second.lag() == len(values) - len(read)
    assert sorted(read + _drain(second, size)) == sorted(values)


def test_an_end_is_reached_when_all_of_its_splits_are_read_and_by_nobody_who_does_not_read_them() -> None:
    source = ListSource(range(6), splits=3)
    start, all_ends = source.discover(JOB, None), source.get_end_positions(JOB)
    mine = {split: at for split, at in start.items() if split != "list/2"}
    reader, ends = source.reader(TASK, mine), {split: all_ends[split] for split in mine}

    assert not reader.has_reached(ends)
    reader.poll(2, 0.0)
    assert not reader.has_reached(ends), "one of two"
    reader.poll(2, 0.0)
    assert reader.has_reached(ends)
    assert not reader.has_reached(all_ends), "the third is not read here"


def test_a_list_is_described_by_its_size() -> None:
    source = ListSource(range(5), splits=2, name="numbers")

    assert source.describe() == {"list": "numbers", "splits": 2, "values": 5}
    assert source.guarantee is Guarantee.EXACTLY_ONCE


def test_a_list_has_one_split_at_least() -> None:
    with pytest.raises(ValueError, match="splits must be at least 1, not 0"):
        ListSource([], splits=0)


def test_rows_have_no_time_unless_it_is_given() -> None:
    plain, timed = ListOrigin("in", "list", 0, 7, "ab"), ListOrigin("in", "list", 0, 7, "ab", [5, 6])

    assert (plain.timestamps(), timed.timestamps()) == ([-1, -1], [5, 6])
    assert (plain.raw(1).timestamp, timed.raw(1).timestamp) == (-1, 6)
    assert plain.headers() == [(), ()]


def test_rows_know_their_origin() -> None:
    source = ListSource(["a", "b", "c", "d"], splits=2, name="letters")
    reader = source.reader(TASK, {SplitId("letters/1"): {"index": 1}})
    batch = reader.poll(10, 0.0)

    assert batch is not None and batch.values == ["d"]
    assert (batch.origin.source, batch.origin.topic) == ("in", "letters")
    assert (list(batch.origin.partitions), list(batch.origin.offsets)) == ([1], [1])
    assert batch.origin.raw(0).location == "letters/1/1"
    assert batch.origin.raw(0).value == b'"d"'


def test_a_split_can_be_assigned_while_running() -> None:
    source = ListSource(["a", "b"], splits=2)
    reader = source.reader(TASK, {SplitId("list/0"): {"index": 0}})
    assert _drain(reader) == ["a"]

    reader.assign({SplitId("list/1"): {"index": 0}})
    assert _drain(reader) == ["b"]


@pytest.mark.parametrize("known", [{"list/0": {"index": 3}}, {"list/1": {"index": 0}}, {"list/0": {"offset": 0}}])
def test_a_position_that_cannot_be_read_is_input_lost(known: Positions) -> None:
    with pytest.raises(InputLost):
        ListSource(["a", "b"]).discover(JOB, known)


def test_a_split_that_is_not_known_yet_starts_at_its_beginning() -> None:
    found = ListSource(["a", "b"], splits=2).discover(JOB, {SplitId("list/0"): {"index": 1}})

    assert found == {"list/0": {"index": 1}, "list/1": {"index": 0}}
