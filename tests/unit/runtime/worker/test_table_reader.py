"""What the reader of a table tells of its splits, whatever connector it reads with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.source_dependencies import (
    connector_positions,
    first_positions,
    remaining_end,
    resumed_positions,
)
from kafka_eos.runtime.worker.source_readers import BootstrapReader
from kafka_eos.testing import ListSource, SourceUnderTest, check_source
from kafka_eos.testing.list_source import ListReader
from tests.examples import seeds

FIRST, SECOND = SplitId("list/0"), SplitId("list/1")
SOURCE = ListSource(range(20), splits=2)
START: Positions = {FIRST: {"index": 0}, SECOND: {"index": 0}}


def reader(ends: Positions) -> BootstrapReader:
    positions = first_positions(START, ends, {"join"})
    return BootstrapReader(ListReader(SOURCE, "table", connector_positions(positions)), positions)


def ends_of(table: BootstrapReader) -> list[object]:
    positions = table.positions()
    return [remaining_end(positions[split]) for split in (FIRST, SECOND)]


def test_a_split_is_whole_when_it_is_read_to_its_end_and_stays_so() -> None:
    table = reader({FIRST: {"index": 5}, SECOND: {"index": 10}})
    assert ends_of(table) == [{"index": 5}, {"index": 10}]

    table.poll(4, 0)
    assert ends_of(table) == [{"index": 5}, {"index": 10}]
    table.poll(4, 0)
    assert ends_of(table) == [None, {"index": 10}]
    table.poll(4, 0)
    table.poll(10, 0)
    assert ends_of(table) == [None, None]
    assert connector_positions(table.positions()) == {FIRST: {"index": 10}, SECOND: {"index": 10}}


def test_who_reads_on_from_its_positions_waits_for_the_same_ends() -> None:
    first = reader({FIRST: {"index": 5}, SECOND: {"index": 10}})
    first.poll(6, 0)
    positions = first.positions()

    second = BootstrapReader(ListReader(SOURCE, "table", {}), {})
    second.assign(positions)

    assert second.positions() == positions
    second.poll(10, 0)
    second.poll(10, 0)
    assert ends_of(second) == [None, None]


class Telling(ListReader):
    """Knows its lag split by split, as Kafka's reader does."""

    def get_lag_by_split(self) -> Mapping[SplitId, int | None]:
        return {FIRST: 3, SECOND: None}


def test_it_tells_the_lag_of_each_split_if_its_connector_does() -> None:
    table = BootstrapReader(Telling(SOURCE, "table", START), START)

    assert table.get_lag_by_split() == {FIRST: 3, SECOND: None}
    assert reader({}).get_lag_by_split() == {}


def test_a_split_that_is_assigned_later_has_what_it_came_with() -> None:
    table = reader({FIRST: {"index": 5}})
    table.assign({SECOND: {"index": 3}})

    assert ends_of(table) == [{"index": 5}, None] and table.positions()[SECOND] == {"index": 3}
    table.pause([FIRST, SECOND])
    assert table.poll(5, 0) is None
    assert (table.lag(), table.has_reached({FIRST: {"index": 1}}), list(table.list_splits_at_end())) == (17, False, [])
    table.close()


class Awaited(ListSource):
    """Read as a table is: its positions say up to where it is waited for."""

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        found = super().discover(ctx, None if known is None else connector_positions(known))
        return (
            first_positions(found, self.get_end_positions(ctx), {"join"})
            if known is None
            else resumed_positions(found, known, {"join"})
        )

    def reader(self, ctx: TaskContext, positions: Positions) -> Any:
        return BootstrapReader(super().reader(ctx, connector_positions(positions)), positions)


def test_it_keeps_the_contract_of_a_reader() -> None:
    check_source(lambda: SourceUnderTest(lambda: Awaited(range(9), splits=2), range(9)), seeds=seeds(3))
