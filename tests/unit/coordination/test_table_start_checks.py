"""Joins that come to a job later than a table's rows, and tables that come later than rows of streams: a start that
would not find those, or not wait for these, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.connectors.kafka import Record
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.savepoint_start import ensure_joins_know_their_tables, ensure_tables_come_first
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.plan import Plan
from kafka_eos.protocol.source_dependencies import mark_complete, remaining_end, waiting_sources
from kafka_eos.runtime.epoch_reports import EpochContents, RestorePoint
from kafka_eos.savepoints.builder import SavepointBuilder
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink

RATES = ListSource([Record(f"a{n}", n) for n in range(10)], name="rates")
Make = Callable[..., Coordinator]


def looking(joins: Collection[str], table: str = "rates") -> Pipeline:
    """Without joins ``rates`` is a stream."""
    pipeline = Pipeline("tables")
    orders = pipeline.source(ListSource([("a1", 1)]), name="orders")
    orders.sink(MemorySink(), name="all")
    if not joins:
        pipeline.source(RATES, name="rates").sink(MemorySink(), name="rows")
        return pipeline
    keyed: Any = orders.key_by(lambda row: row[0], name="by-key", values=tuple[str, int])
    rates: Any = pipeline.table(RATES, name=table, values=Record[str, int])
    for join in joins:
        keyed.join(rates, lambda *both: both, name=join).sink(MemorySink(), name=f"{join}-out")
    return pipeline


def started(make: Make, *joins: str, **options: Any) -> tuple[Coordinator, RestorePoint]:
    coordinator = make(looking(joins), **options)
    return coordinator, coordinator.recovery.restore()


def read(coordinator: Coordinator, resumed: RestorePoint, index: int, states: tuple[StateHandle, ...] = ()) -> None:
    """An epoch in which the table was read so far."""

    def moved(at: Position) -> Position:
        there = {**at, "index": index}
        return mark_complete(there) if remaining_end(at) == {"index": index} else there

    positions: dict[str, Positions] = dict(resumed.positions)
    positions["rates"] = {split: moved(at) for split, at in positions["rates"].items()}
    coordinator.epochs.commit(
        coordinator.epochs.decide(coordinator.ownership.next_epoch(), EpochContents(positions, states, ()))
    )


def held(*operators: str) -> tuple[StateHandle, ...]:
    return tuple(StateHandle(name, "memory", (0, 127), (), ()) for name in operators)


def refused(make: Make, *joins: str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=r"join 'late' is new, .*source 'rates'.*under a new name.*--allow-dropped"):
        started(make, *joins, **options)


@pytest.mark.parametrize("index", [4, 10], ids=["half", "whole"])
@pytest.mark.parametrize("states", [("early",), ()], ids=["state", "none"])
def test_a_join_that_comes_later_is_refused(coordinator: Make, index: int, states: tuple[str, ...]) -> None:
    read(*started(coordinator, "early"), index, held(*states))

    refused(coordinator, "early", "late")
    started(coordinator, "early")


def test_it_may_have_a_table_of_its_own_which_is_read_first(coordinator: Make) -> None:
    read(*started(coordinator, "early"), 10, held("early"))
    pipeline = looking(["early"])
    again: Any = pipeline.table(RATES, name="again", values=Record[str, int])
    more: Any = pipeline.source(ListSource([]), name="more").key_by(str)
    more.join(again, lambda *both: both, name="late").sink(MemorySink(), name="late-out")

    resumed = coordinator(pipeline).recovery.restore()

    assert waiting_sources(pipeline.plan().prerequisites, resumed.positions) == {"more"}


@pytest.mark.parametrize(("exchange", "refused"), [("by-more", True), ("round-feedback", True), ("by-key", False)])
def test_rows_on_their_way_keep_a_new_table_out_only_if_they_come_to_its_join(exchange: str, refused: bool) -> None:
    pipeline = looking(["early"])
    again: Any = pipeline.table(RATES, name="again", values=Record[str, int])
    more: Any = pipeline.source(ListSource([]), name="more").iterate(lambda rows: (rows, rows), name="round")
    keyed: Any = more.key_by(str, name="by-more", values=str)
    keyed.join(again, lambda *both: both, name="late").sink(MemorySink(), name="late-out")
    rows, others = InFlightRows(exchange, {}, (), overtaken=False), InFlightRows("by-key", {}, (), overtaken=False)

    def starts(known: Collection[str]) -> None:
        for in_flight in ([rows], [others, rows], [rows, others]):
            ensure_tables_come_first(pipeline.plan(), known, in_flight)

    starts(["orders", "rates", "more", "again"])
    if refused:
        with pytest.raises(
            ConfigError, match=f"new table 'again'.*in-flight rows of exchange '{exchange}'.*until the loop is empty"
        ):
            starts(["orders", "rates", "more"])
    else:
        starts(["orders", "rates", "more"])


def test_a_join_may_come_as_long_as_nothing_of_the_table_was_read(coordinator: Make) -> None:
    started(coordinator, "early")
    read(*started(coordinator, "early", "late"), 10)

    started(coordinator, "early", "late")


def test_one_that_was_left_out_meanwhile_is_refused(coordinator: Make) -> None:
    read(*started(coordinator, "early", "late"), 4, held("early", "late"))
    read(*started(coordinator, "early", allow_dropped_state=True), 10, held("early"))

    refused(coordinator, "early", "late")


def test_a_stream_that_has_become_a_table_is_refused(coordinator: Make) -> None:
    read(*started(coordinator), 4)

    refused(coordinator, "late")


def test_a_join_whose_state_was_dropped_from_a_savepoint_is_refused(coordinator: Make, tmp_path: Path) -> None:
    """It would look into a table that is empty, and whole."""
    first = coordinator(looking(["late"]))
    resumed = first.recovery.restore()
    with SavepointBuilder.new("tables", resumed.positions) as builder:
        for split, at in resumed.positions["rates"].items():
            builder.sources["rates"] = {split: mark_complete({**at, "index": 10})}
        builder.drop("late")
        found = builder.write(tmp_path / "dropped")

    with pytest.raises(ConfigError, match="join 'late' is new"):
        ensure_joins_know_their_tables(looking(["late"]).plan(), found.sources, found.operators)
    with pytest.raises(ConfigError, match="join 'late' is new"):
        coordinator(
            looking(["late"]), LocalStorage(tmp_path / "next" / "tables"), start_from=tmp_path / "dropped"
        ).recovery.restore()


def test_a_join_with_state_goes_on_whatever_the_positions_say(coordinator: Make) -> None:
    """As they were stored before they said for which joins they are, or come with a savepoint that somebody made."""
    read(*started(coordinator), 4, held("early"))

    started(coordinator, "early", allow_dropped_state=True)


TABLES = ("a", "b", "c")
JOINS = [f"{table}-{number}" for table in TABLES for number in range(3)]


@pytest.fixture
def several() -> Plan:
    """Three tables, with three joins each; rows of another exchange come to none of them."""
    pipeline = Pipeline("tables")
    orders = pipeline.source(ListSource([("a1", 1)]), name="orders")
    by_number: Any = orders.key_by(lambda row: row[1], name="by-number", values=tuple[str, int])
    by_number.reduce(lambda one, other: other, name="last").sink(MemorySink(), name="rows")
    keyed: Any = orders.key_by(lambda row: row[0], name="by-key", values=tuple[str, int])
    for table in TABLES:
        rates: Any = pipeline.table(RATES, name=table, values=Record[str, int])
        for number in range(3):
            joined = keyed.join(rates, lambda *both: both, name=f"{table}-{number}")
            joined.sink(MemorySink(), name=f"{table}-{number}-out")
    return pipeline.plan()


@pytest.mark.parametrize("new", [*([join] for join in JOINS), ["b-0", "b-2"], ["a-0", "a-1", "a-2"]], ids="+".join)
def test_each_new_join_of_each_table_that_was_read_is_named(several: Plan, new: list[str]) -> None:
    read: dict[str, Any] = {table: {"rates/0": {"index": 4}, "rates/1": {"index": 0}} for table in TABLES}
    states = held(*(join for join in JOINS if join not in new))

    ensure_joins_know_their_tables(several, read, held(*JOINS))
    ensure_joins_know_their_tables(several, {}, ())
    ensure_joins_know_their_tables(several, {**read, new[0][0]: {}}, states)
    named = f"join {', '.join(map(repr, new))} is new, but the job has already read source {new[0][0]!r} of its"
    with pytest.raises(ConfigError, match=named):
        ensure_joins_know_their_tables(several, read, states)


@pytest.mark.parametrize("new", [["a"], ["b"], ["c"], ["a", "c"]], ids="+".join)
def test_each_new_table_is_named_with_the_rows_that_would_come_before_it(several: Plan, new: list[str]) -> None:
    known = {"orders", *TABLES}.difference(new)
    both = [InFlightRows(name, {}, (), overtaken=False) for name in ("by-key", "by-number")]

    ensure_tables_come_first(several, {"orders", *TABLES}, both)
    ensure_tables_come_first(several, known, both[1:])
    named = f"new table {', '.join(map(repr, new))}, and the checkpoint contains in-flight rows of exchange 'by-key', "
    for in_flight in (both, both[::-1]):
        with pytest.raises(ConfigError, match=named):
            ensure_tables_come_first(several, known, in_flight)
