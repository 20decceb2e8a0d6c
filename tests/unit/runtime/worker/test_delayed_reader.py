"""What the reader of a source that waits does before it is read: nothing, and afterwards all that it was told."""

from __future__ import annotations

from typing import Any

from kafka_eos.abc.context import TaskContext
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.runtime.worker.source_readers import DeferredReader
from kafka_eos.testing import SOURCE_CHECKS, ListSource, SourceUnderTest, check_source
from kafka_eos.testing.list_source import ListReader
from tests.examples import seeds

FIRST, SECOND = SplitId("list/0"), SplitId("list/1")
SOURCE = ListSource(range(20), splits=2)


class Bench:
    """Notes which readers were made."""

    def __init__(self) -> None:
        self.made: list[Positions] = []
        self.reader = DeferredReader(self._open, {FIRST: {"index": 3}})

    def _open(self, positions: Positions) -> ListReader:
        self.made.append(dict(positions))
        return ListReader(SOURCE, "list", positions)


def test_nothing_is_opened_before_the_first_poll() -> None:
    bench = Bench()
    reader = bench.reader

    reader.assign({SECOND: {"index": 9}})

    assert reader.positions() == {FIRST: {"index": 3}, SECOND: {"index": 9}}
    assert (reader.lag(), reader.get_lag_by_split(), reader.list_splits_at_end()) == (None, {}, ())
    assert reader.has_reached({}) and not reader.has_reached({FIRST: {"index": 3}})
    reader.close()
    assert bench.made == []


def test_it_is_opened_once_where_it_was_to_be_and_as_it_was_told() -> None:
    bench = Bench()
    reader = bench.reader
    reader.assign({SECOND: {"index": 9}})
    reader.pause([FIRST])

    batches = [batch.values for _ in range(3) if (batch := reader.poll(5, 0)) is not None]

    assert bench.made == [{FIRST: {"index": 3}, SECOND: {"index": 9}}]
    assert batches == [[19]]
    assert reader.positions() == {FIRST: {"index": 3}, SECOND: {"index": 10}}
    reader.pause([])
    assert reader.poll(2, 0) is not None
    assert reader.has_reached({FIRST: {"index": 5}}) and reader.lag() == 5


class Waiting(ListSource):
    """Each reader of it is opened when it is polled first."""

    def reader(self, ctx: TaskContext, positions: Positions) -> Any:
        return DeferredReader(lambda at: super(Waiting, self).reader(ctx, at), positions)


def test_it_keeps_the_contract_of_a_reader() -> None:
    """But that it knows of no end before it is polled. A list has no record that cannot be decoded."""
    without = ("ends-stay", "grows", "bounded", "input-lost", "refused")
    checks = [name for name in SOURCE_CHECKS if name not in without]

    check_source(lambda: SourceUnderTest(lambda: Waiting(range(9), splits=2), range(9)), *checks, seeds=seeds(3))
