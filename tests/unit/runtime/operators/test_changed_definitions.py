"""Windows and joins that are not those of which rows are stored: refused, for those rows are held for the old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos import (
    ConnectedStreams,
    KeyedStream,
    OutputTag,
    Pipeline,
    Stream,
    connect,
    days,
    global_,
    monotonic,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.abc.state import StateHandle
from kafka_eos.connectors.kafka import Record
from kafka_eos.coordination.savepoint_start import ensure_same_definitions
from kafka_eos.core.errors import ConfigError
from kafka_eos.plan import Plan
from kafka_eos.runtime.state.schema_evolution import DEFINITION
from kafka_eos.testing import ListSource, MemorySink
from tests.unit.runtime.operators.test_event_time import Bench
from tests.unit.runtime.operators.test_joins import SIDES, TwoInputs, pair
from tests.unit.runtime.operators.test_windows import Row
from tests.unit.runtime.operators.test_windows import flow as windowed
from tests.unit.runtime.operators.test_windows import push as push_to_windows

Both = ConnectedStreams[str, Row, Row]
Define = Callable[[Both], Stream[Any]]
ALONE = [OutputTag(f"{side}-alone", tuple) for side in SIDES]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def near(lower: int, upper: int, *asked: str) -> Define:
    """Times in milliseconds. ``asked``: the streams of which unmatched rows are wanted."""
    tags: Any = {f"unmatched_{side}": tag for side, tag in zip(SIDES, ALONE, strict=True) if side in asked}
    return lambda both: both.interval_join(pair, lower=lower / 1000, upper=upper / 1000, name="join", **tags)


def within(assigner: Any, *asked: str) -> Define:
    tags: Any = {f"unmatched_{side}": tag for side, tag in zip(SIDES, ALONE, strict=True) if side in asked}
    return lambda both: both.window_join(assigner, pair, name="join", **tags)


def joined(define: Define, *asked: str) -> Pipeline:
    pipeline = Pipeline("joins")

    def keyed(side: str) -> KeyedStream[str, Row]:
        source: Stream[Row] = pipeline.source(ListSource([]), name=side)
        timed = source.with_timestamps(lambda row: row[1], watermarks=monotonic())
        return timed.key_by(lambda row: row[0], name=f"by-{side}", values=Row)

    out = define(connect(keyed("left"), keyed("right")))
    out.sink(MemorySink(), name="pairs")
    for side, tag in zip(SIDES, ALONE, strict=True):
        if side in asked:
            out.side_output(tag).sink(MemorySink(), name=tag.name)
    return pipeline


def undefined(handles: Sequence[StateHandle]) -> list[StateHandle]:
    """As they are made offline: without definitions."""
    told = [[{k: v for k, v in each.items() if k != DEFINITION} for each in handle.states] for handle in handles]
    return [replace(handle, states=tuple(states)) for handle, states in zip(handles, told, strict=True)]


JOINS: dict[str, tuple[Define, Define, Sequence[str], Sequence[str]]] = {
    "a longer interval": (near(0, 8), near(0, 20), (), ()),
    "a shorter interval": (near(0, 8), near(0, 2), (), ()),
    "an earlier interval": (near(0, 8), near(-1, 8), (), ()),
    "unmatched rows are asked for": (near(0, 8), near(0, 8, "left"), (), ("left",)),
    "and no longer": (near(0, 8, *SIDES), near(0, 8, "right"), SIDES, ("right",)),
    "larger windows": (within(tumbling(seconds=0.010)), within(tumbling(seconds=0.020)), (), ()),
    "smaller windows": (within(tumbling(seconds=0.020)), within(tumbling(seconds=0.010)), (), ()),
    "a longer gap": (within(session(gap=0.004)), within(session(gap=0.008)), (), ()),
    "windows for an interval": (near(0, 8), within(session(gap=0.008)), (), ()),
}


def waiting(define: Define, asked: Sequence[str], directory: Path, closing: ExitStack) -> TwoInputs:
    """A row of each stream is in a pair, or waits."""
    bench = TwoInputs(joined(define, *asked).plan(), directory, closing)
    bench.open()
    for side in SIDES:
        bench.push(side, 1, [("z", 10_000, 0)])
        bench.push(side, 0, [("a", 3 if side == "left" else 4, 1), ("q", 5, 1)])
    return bench


@pytest.mark.parametrize("change", JOINS)
def test_another_join_under_the_name_is_refused(change: str, tmp_path: Path, closing: ExitStack) -> None:
    before, after, asked, asked_now = JOINS[change]
    first = waiting(before, asked, tmp_path, closing)
    second = TwoInputs(joined(after, *asked_now).plan(), tmp_path / "second", closing, storage=first.storage)

    with pytest.raises(
        ConfigError,
        match="state 'left' of operator 'join' was stored with another definition .*give the operator a new name",
    ):
        second.open(first.checkpoint())


@pytest.mark.parametrize("change", ["a longer interval", "and no longer"])
def test_what_was_stored_without_a_definition_goes_on_and_has_one_then(
    change: str, tmp_path: Path, closing: ExitStack
) -> None:
    before, after, asked, asked_now = JOINS[change]
    first = waiting(before, asked, tmp_path, closing)
    second = TwoInputs(joined(after, *asked_now).plan(), tmp_path / "second", closing, storage=first.storage)
    second.open(undefined(first.checkpoint()))
    third = TwoInputs(joined(before, *asked).plan(), tmp_path / "third", closing, storage=first.storage)

    with pytest.raises(ConfigError, match="state 'left' of operator 'join' was stored with another definition"):
        third.open(second.checkpoint())


def test_the_same_join_goes_on_with_what_changes_no_row_that_waits(tmp_path: Path, closing: ExitStack) -> None:
    """Unmatched rows of windows are told when a window is over, so they may be asked for at any time."""
    windows = tumbling(seconds=0.020)
    first = waiting(within(windows), (), tmp_path, closing)
    second = TwoInputs(joined(within(windows, *SIDES), *SIDES).plan(), tmp_path / "b", closing, storage=first.storage)
    second.open(first.checkpoint())
    for side in SIDES:
        second.push(side, 1, [("z", 10_001, 0)], 5)
        second.push(side, 0, [("z", 500, 0)], 5)

    assert sorted(second.values_of()["pairs"]) == [(("a", 3, 1), ("a", 4, 1)), (("q", 5, 1), ("q", 5, 1))]


WINDOWS: dict[str, tuple[Any, Any]] = {
    "larger": (tumbling(seconds=10), tumbling(seconds=20)),
    "from another time on": (tumbling(seconds=10), tumbling(seconds=10, offset=1)),
    "with early results": (tumbling(seconds=10), tumbling(seconds=10, early=5)),
    "sliding": (sliding(seconds=10, every=5), sliding(seconds=10, every=2)),
    "gap": (session(gap=4), session(gap=8)),
    "time zone": (days("Europe/Berlin"), days("Europe/London")),
    "rows": (rows(4), rows(2)),
}


def counting(assigner: Any, **options: Any) -> Plan:
    def verbs(by_key: KeyedStream[str, Row]) -> Stream[Any]:
        windows = by_key.window(assigner, **options)
        return windows.fold(name="windows", init=int, step=lambda n, _: n + 1, merge=int.__add__)

    return windowed(verbs).plan()


def counted(assigner: Any, directory: Path, closing: ExitStack, **given: Any) -> Bench:
    return Bench(counting(assigner), directory, closing, **given)


@pytest.mark.parametrize("change", WINDOWS)
def test_other_windows_under_the_name_are_refused(change: str, tmp_path: Path, closing: ExitStack) -> None:
    before, after = WINDOWS[change]
    first = counted(before, tmp_path, closing)
    push_to_windows(first.open(), [("a", 1, 1)], 0)
    handles = first.checkpoint()
    counted(before, tmp_path / "same", closing, storage=first.storage).open(handles)

    with pytest.raises(ConfigError, match="state 'windows' of operator 'windows' was stored with another definition"):
        counted(after, tmp_path / "other", closing, storage=first.storage).open(handles)


@pytest.mark.parametrize("lateness", [0, 2])
def test_so_is_another_lateness_for_which_windows_that_are_over_are_kept(
    lateness: int, tmp_path: Path, closing: ExitStack
) -> None:
    first = Bench(counting(tumbling(seconds=10), lateness=1), tmp_path, closing)
    push_to_windows(first.open(), [("a", 1, 1)], 0)
    after = counting(tumbling(seconds=10), lateness=lateness)

    with pytest.raises(ConfigError, match=f"lateness: stored 1000, declared {lateness * 1000}"):
        Bench(after, tmp_path / "other", closing, storage=first.storage).open(first.checkpoint())


def test_a_start_is_refused_for_it_before_anything_is_decided(tmp_path: Path, closing: ExitStack) -> None:
    first = counted(tumbling(seconds=10), tmp_path, closing)
    push_to_windows(first.open(), [("a", 1, 1)], 0)
    handles = first.checkpoint()

    ensure_same_definitions(counting(tumbling(seconds=10)), handles)
    ensure_same_definitions(counting(tumbling(seconds=20)), undefined(handles))
    with pytest.raises(ConfigError, match="state 'windows' of operator 'windows' was stored with another definition"):
        ensure_same_definitions(counting(tumbling(seconds=20)), handles)


def test_a_join_goes_on_with_its_own_table_only(tmp_path: Path, closing: ExitStack) -> None:
    def looking(table: str) -> Plan:
        pipeline = Pipeline("tables")
        orders: Stream[Row] = pipeline.source(ListSource([]), name="orders")
        rates: Any = pipeline.table(ListSource([]), name=table, values=Record[str, int])
        by_key: Any = orders.key_by(lambda row: row[0], name="by-key", values=Row)
        by_key.join(rates, lambda *both: both, name="join").sink(MemorySink(), name="sink")
        return pipeline.plan()

    first = Bench(looking("rates"), tmp_path, closing)
    first.open()
    handles = first.checkpoint()

    ensure_same_definitions(looking("rates"), handles)
    with pytest.raises(ConfigError, match="state 'table' of operator 'join' .*table: stored rates, declared others"):
        ensure_same_definitions(looking("others"), handles)
    with pytest.raises(ConfigError, match="table: stored rates, declared others"):
        Bench(looking("others"), tmp_path / "other", closing, storage=first.storage).open(handles)


def test_after_how_many_rows_a_global_window_has_a_result_may_change(tmp_path: Path, closing: ExitStack) -> None:
    first = counted(global_(every=4), tmp_path, closing)
    push_to_windows(first.open(), [("a", 1, 1)], 0)

    counted(global_(every=2), tmp_path / "other", closing, storage=first.storage).open(first.checkpoint())
