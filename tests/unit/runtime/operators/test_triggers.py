"""Results of windows before their end: by count, by the clock, and with each row in one of them only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from operator import add
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_eos import (
    KeyedStream,
    OutputTag,
    Pipeline,
    PlanError,
    Stream,
    Windowed,
    agg,
    bounded,
    days,
    global_,
    monotonic,
    on_clock,
    on_count,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.plan.explain import explain
from kafka_eos.runtime.operators import windows
from kafka_eos.runtime.state.memory_store import read_rows
from kafka_eos.testing import AdvanceClock, ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.unit.runtime.operators.test_event_time import Bench

NOW = 1_700_000_000_000
Verb = Callable[[KeyedStream[str, int]], Stream[Any]]
Row = tuple[int, int]
"""Event time and amount of a row of the only key."""


def built(verb: Verb, strategy: Any = None) -> Plan:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource([]), name="in")
    timed = source.with_timestamps(watermarks=monotonic() if strategy is None else strategy, name="times")
    verb(timed.key_by(lambda n: "k", values=int)).sink(MemorySink(), name="out")
    return pipeline.plan()


def out(verb: Verb, given: Iterable[Row | AdvanceClock], strategy: Any = None, batch_size: int = 500) -> list[Any]:
    """Start, end and value of each result."""
    inputs = [each if isinstance(each, AdvanceClock) else TimestampedValue(each[1], each[0]) for each in given]
    found = run_local(built(verb, strategy), {"in": inputs}, now=NOW, batch_size=batch_size)["out"]
    return [(each.window.start, each.window.end, each.value) for each in found]


def summed(assigner: Any, trigger: Any, **others: Any) -> Verb:
    def verb(keyed: KeyedStream[str, int]) -> Stream[Windowed[str, int]]:
        windows = keyed.window(assigner, trigger=trigger, **others)
        return windows.fold(name="w", init=int, step=add, merge=add)

    return verb


TEN = tumbling(seconds=0.010)


@pytest.mark.parametrize("lateness", [0, 0.005])
@pytest.mark.parametrize("batch_size", [1, 500])
def test_by_count_a_window_has_a_result_with_each_so_many_rows_and_the_whole_at_its_end(
    batch_size: int, lateness: float
) -> None:
    found = out(
        summed(TEN, on_count(2), lateness=lateness),
        [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (10, 1)],
        batch_size=batch_size,
    )

    assert found == [(0, 10, 3), (0, 10, 15), (0, 10, 31)]


def test_a_result_that_a_row_makes_has_no_update_number_of_a_fold_before_it(tmp_path: Path) -> None:
    def verb(keyed: KeyedStream[str, int]) -> Stream[Any]:
        totals = keyed.fold(name="total", init=int, step=add, emit=lambda key, total: total)
        return totals.key_by(str, name="by-total", values=int).window(TEN, trigger=on_count(1)).reduce(add, name="w")

    with ExitStack() as closing:
        bench, _ = opened(tmp_path, closing, verb)
        bench.open()
        push(bench, 0, 1)

    assert [found.value for found in bench.values] == [1, 2]
    assert [batch.updates for batch in bench.out] == [None] * len(bench.out)


def test_rows_of_several_windows_are_counted_in_each() -> None:
    found = out(summed(TEN, on_count(2)), [(0, 1), (11, 10), (5, 2), (12, 20), (40, 0)], bounded(0.02))

    assert found == [(0, 10, 3), (10, 20, 30), (0, 10, 3), (10, 20, 30)]


def test_purging_each_row_is_in_one_result() -> None:
    given = [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (10, 1)]

    assert out(summed(TEN, on_count(2).purging()), given) == [(0, 10, 3), (0, 10, 12), (0, 10, 16)]
    assert out(summed(TEN, on_count(2).purging()), given[:4] + given[5:]) == [(0, 10, 3), (0, 10, 12)]
    assert out(summed(TEN, on_count(1).purging()), given[:2]) == [(0, 10, 1), (0, 10, 2)]


def test_a_session_has_results_by_count_also_when_a_row_makes_two_one() -> None:
    given = [(0, 1), (8, 2), (4, 4), (5, 8), (40, 0)]

    assert out(summed(session(gap=0.005), on_count(3)), given, bounded(0.02)) == [(0, 13, 7), (0, 13, 15)]


@pytest.mark.parametrize("trigger", [on_count(2), on_clock(every=1)])
@pytest.mark.parametrize("lateness", [0, 0.005])
@pytest.mark.parametrize("assigner", [TEN, session(gap=0.005)])
def test_with_a_trigger_what_cannot_be_stored_shows_at_the_first_row(
    assigner: Any, lateness: float, trigger: Any
) -> None:
    def verb(keyed: KeyedStream[str, int]) -> Stream[Any]:
        windows = keyed.window(assigner, trigger=trigger, lateness=lateness)
        return windows.fold(name="w", init=set, step=lambda a, n: a | {n}, merge=lambda a, b: a | b)

    with pytest.raises(PoisonRecord, match="its accumulator cannot be stored"):
        out(verb, [(0, 1)])


@pytest.mark.parametrize("assigner", [TEN, session(gap=0.005)])
@pytest.mark.parametrize("lateness", [0, 0.005])
@pytest.mark.parametrize("batch_size", [1, 500])
def test_by_count_what_a_window_holds_is_copied_for_its_results_and_not_for_each_row(
    assigner: Any, lateness: float, batch_size: int
) -> None:
    copied: list[int] = []

    def merge(one: int, other: int) -> int:
        copied.append(one)
        return one + other

    def verb(keyed: KeyedStream[str, int]) -> Stream[Any]:
        windows = keyed.window(assigner, trigger=on_count(10), lateness=lateness)
        return windows.fold(name="w", init=int, step=add, merge=merge)

    found = out(verb, [(n // 10, 1) for n in range(100)], batch_size=batch_size)

    assert [value for _, _, value in found] == [*range(10, 101, 10)]
    assert len(copied) == 10


def test_by_the_clock_a_window_that_has_got_rows_has_a_result_and_no_other() -> None:
    """The clock stands at a whole multiple of ten seconds at first."""
    given = [
        (0, 1),
        AdvanceClock(4),
        (1, 2),
        AdvanceClock(7),
        AdvanceClock(30),
        (2, 4),
        (11, 8),
        AdvanceClock(20),
        AdvanceClock(60),
    ]

    assert out(summed(TEN, on_clock(every=10)), given, bounded(0.1)) == [(0, 10, 3), (0, 10, 7), (10, 20, 8)]


def test_by_the_clock_overlapping_windows_have_results_for_all_that_a_row_is_in() -> None:
    given = [(7, 1), AdvanceClock(15), (12, 2), AdvanceClock(15)]
    slid = sliding(seconds=0.010, every=0.005)

    assert out(summed(slid, on_clock(every=10)), given, bounded(1)) == [
        (0, 10, 1), (5, 15, 1), (5, 15, 3), (10, 20, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("lateness", [0, 1])
@pytest.mark.parametrize(
    ("assigner", "ends"),
    [
        (TEN, [10]),
        (sliding(seconds=0.010, every=0.005), [10, 15]),
        (tumbling(seconds=0.010, early=0.005), [10]),
    ],
)
def test_by_the_clock_a_window_has_a_result_again_when_more_rows_come_to_where_some_are(
    assigner: Any, ends: list[int], lateness: float
) -> None:
    given = [(7, 1), AdvanceClock(15), (8, 2), AdvanceClock(15)]

    found = out(summed(assigner, on_clock(every=10), lateness=lateness), given, bounded(1))

    assert [(end, value) for _, end, value in found] == [(end, value) for value in (1, 3) for end in ends]


def test_by_the_clock_a_session_has_its_result_so_far_and_one_that_became_another_has_none() -> None:
    given = [(0, 1), (8, 2), AdvanceClock(15), (4, 4), AdvanceClock(15), AdvanceClock(15), (40, 0)]

    assert out(summed(session(gap=0.005), on_clock(every=10)), given, bounded(0.02)) == [
        (0, 5, 1), (8, 13, 2), (0, 13, 7), (0, 13, 7),
    ]  # fmt: skip


def test_by_the_clock_a_session_has_no_result_because_another_of_its_key_has_got_rows() -> None:
    given = [(0, 1), (20, 2), AdvanceClock(11), (21, 4), AdvanceClock(11)]

    found = out(summed(session(gap=0.005), on_clock(every=10)), given, strategy=bounded(1))

    assert found == [(0, 5, 1), (20, 25, 2), (20, 26, 6)]


def test_by_the_clock_nothing_comes_of_a_session_that_became_part_of_one_that_is_gone() -> None:
    given = [(20, 1), (18, 2), AdvanceClock(5), AdvanceClock(11)]

    found = out(summed(session(gap=0.005), on_clock(every=10)), given, monotonic().with_clock(after=1), batch_size=1)

    assert found == [(18, 25, 3)]


@pytest.mark.parametrize(("assigner", "end"), [(TEN, 10), (session(gap=0.005), 5)])
def test_by_the_clock_a_window_that_is_over_and_takes_late_rows_has_no_result(assigner: Any, end: int) -> None:
    given = [(0, 1), (end, 2), AdvanceClock(11)]
    verb = summed(assigner, on_clock(every=10), lateness=1)

    assert out(verb, given, batch_size=1) == [(0, end, 1), (end, 2 * end, 2)]
    assert out(verb, given, bounded(0.001), batch_size=1) == [(0, end, 1), (end, 2 * end, 2)], "by the clock, both"


def test_by_the_clock_and_purging_each_row_is_in_one_result() -> None:
    given = [(0, 1), (1, 2), AdvanceClock(15), (2, 4), AdvanceClock(5), (3, 8), (10, 0)]

    assert out(summed(TEN, on_clock(every=10).purging()), given) == [(0, 10, 3), (0, 10, 4), (0, 10, 8)]


def test_a_window_that_is_over_has_no_result_by_the_clock_any_more() -> None:
    given = [(0, 1), (10, 2), AdvanceClock(15)]

    assert out(summed(TEN, on_clock(every=10)), given) == [(0, 10, 1), (10, 20, 2)]
    assert out(summed(TEN, on_clock(every=10), lateness=0.1), given) == [(0, 10, 1), (10, 20, 2)]


def test_late_rows_make_results_again_whatever_the_trigger() -> None:
    late = OutputTag("late", int)

    def verb(keyed: KeyedStream[str, int]) -> Stream[Any]:
        windows = keyed.window(TEN, trigger=on_count(2), lateness=0.010, late=late)
        found = windows.fold(name="w", init=int, step=add)
        found.side_output(late).sink(MemorySink(), name="late")
        return found

    assert out(verb, [(0, 1), (10, 2), (1, 4), (2, 8)], batch_size=1) == [(0, 10, 1), (0, 10, 5), (0, 10, 13)]


def test_all_that_a_window_may_hold_has_results_before_its_end() -> None:
    given = [(0, 1), (1, 5), (2, 3), AdvanceClock(11), (10, 0)]
    for trigger, results in ((on_count(2), 2), (on_clock(every=10), 2)):
        for verb in (
            lambda windows: windows.reduce(max, name="w"),
            lambda windows: windows.process(lambda key, window, values: [Windowed(key, window, values)], name="w"),
            lambda windows: windows.top_n(1, name="w", by=int),
            lambda windows: windows.rate(name="w"),
        ):
            assert len(out(lambda keyed, v=verb, t=trigger: v(keyed.window(TEN, trigger=t)), given)) == results

    plan = built(
        lambda keyed: keyed.window(TEN, trigger=on_count(2)).aggregate(agg.count(), total=agg.sum(int), name="w")
    )
    found = run_local(plan, {"in": [TimestampedValue(n, n) for n in range(4)]})["out"]
    assert [(row.start, row.end, row.count, row.total) for row in found] == [(0, 10, 2, 1), (0, 10, 4, 6)]


def test_a_row_whose_result_is_refused_has_changed_nothing() -> None:
    def fails(key: str, window: Any, total: int) -> Windowed[str, int]:
        if total == 3:
            raise ValueError("three")
        return Windowed(key, window, total)

    def verb(keyed: KeyedStream[str, int]) -> Stream[Any]:
        return keyed.window(TEN, trigger=on_count(2)).fold(name="w", init=int, step=add, emit=fails)

    with pytest.raises(PoisonRecord, match="three"):
        out(verb, [(0, 1), (1, 2)])


ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=40)


@examples(20)
@given(ROWS, st.integers(1, 4), st.sampled_from(["tumbling", "session", "purging"]), st.integers(1, 10))
def test_results_by_count_are_those_of_the_rows_one_by_one(
    given: list[Row], each: int, kind: str, batch_size: int
) -> None:
    """No row is late; then a window has one for each so many rows, and the last one is the whole."""
    trigger = on_count(each).purging() if kind == "purging" else on_count(each)
    assigner = session(gap=0.010) if kind == "session" else TEN
    found = out(summed(assigner, trigger), [*given, (1000, 0)], bounded(0.1), batch_size)
    found = [each for each in found if each[0] < 1000]
    if kind == "session":
        whole = out(summed(assigner, None), [*given, (1000, 0)], bounded(0.1), batch_size)
        assert not Counter(whole) - Counter(found), "each session has its result at its end"
        assert len(found) - len(whole) <= len(given) // each
        return
    held: dict[int, list[int]] = defaultdict(list)
    wanted: Counter[Any] = Counter()
    for time, amount in given:
        mine = held[time // 10 * 10]
        mine.append(amount)
        if len(mine) % each == 0:
            wanted[time // 10 * 10, time // 10 * 10 + 10, sum(mine[-each:] if kind == "purging" else mine)] += 1
    for start, mine in held.items():
        rest = mine[len(mine) // each * each :] if kind == "purging" else mine
        if rest:
            wanted[start, start + 10, sum(rest)] += 1
    assert Counter(found) == wanted


class Clock:
    now = NOW

    def __call__(self) -> int:
        return self.now


def opened(directory: Path, closing: ExitStack, verb: Verb) -> tuple[Bench, Clock]:
    pipeline = Pipeline("p")
    timed = pipeline.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic(), name="times")
    verb(timed.key_by(lambda n: "k", values=int)).sink(MemorySink(), name="sink")
    clock = Clock()
    return Bench(pipeline.plan(), directory, closing, clock=clock), clock


def push(bench: Bench, *times: int) -> None:
    origin = ListOrigin("source", "source", 0, 0, [1] * len(times), times)
    bench.chain.push("source", Batch([1] * len(times), range(len(times)), origin))


def stored(bench: Bench, directory: Path) -> dict[str, int]:
    """Rows by state of the windows."""
    (handle,) = [handle for handle in bench.checkpoint() if handle.operator == "w"]
    found: Counter[str] = Counter()
    for name, block in read_rows(handle, bench.storage, directory):
        found[name] += len(list(block))
    return dict(found)


@pytest.mark.parametrize("assigner", [TEN, session(gap=0.005), sliding(seconds=0.010, every=0.005)])
def test_nothing_is_left_of_windows_that_are_over_nor_of_what_waited_for_the_clock(
    tmp_path: Path, assigner: Any
) -> None:
    with ExitStack() as closing:
        bench, clock = opened(tmp_path, closing, summed(assigner, on_clock(every=10)))
        bench.open()
        push(bench, *range(0, 100, 3))
        push(bench, 1000)
        before = stored(bench, tmp_path)
        clock.now += 20_000
        left = stored(bench, tmp_path)

    assert before["windows"] == before["changed"] == left["windows"] == 1
    assert left.get("changed", 0) == left.get("processing-timers", 0) == 0
    assert left.get("sessions", 1) == 1


@pytest.mark.parametrize(("assigner", "last"), [(session(gap=0.005), 11), (TEN, 9)])
def test_results_by_the_clock_have_the_last_moment_of_their_window_as_time(
    assigner: Any, last: int, tmp_path: Path
) -> None:
    with ExitStack() as closing:
        bench, clock = opened(tmp_path, closing, summed(assigner, on_clock(every=10)))
        bench.open()
        push(bench, 7)
        clock.now += 10_000
        bench.chain.tick()

    assert [list(batch.event_times or ()) for batch in bench.out] == [[last]]


def test_each_result_has_a_name_of_its_own_and_the_last_moment_of_its_window_as_time(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench, clock = opened(tmp_path, closing, summed(sliding(seconds=0.010, every=0.005), on_clock(every=10)))
        bench.open()
        push(bench, 7, 12)
        bench.out.clear()
        clock.now += 10_000
        bench.chain.tick()
        found = [
            (value.window.end, time)
            for batch in bench.out
            for value, time in zip(batch.values, batch.event_times or (), strict=True)
        ]
        names = [
            parse_provenance(text) for batch in bench.out for text in format_provenance(batch, "job", Term(1), Epoch(1))
        ]

    assert found == [(15, 14), (20, 19)]
    assert {(name.source, name.topic, name.offset) for name in names} == {("w", "processing-timers", NOW + 10_000)}
    assert len({name.identity for name in names}) == 2


@pytest.mark.parametrize("assigner", [TEN, session(gap=0.005)])
def test_results_by_count_and_of_late_rows_have_the_last_moment_of_their_window_as_time(
    tmp_path: Path, assigner: Any
) -> None:
    with ExitStack() as closing:
        bench, _ = opened(tmp_path, closing, summed(assigner, on_count(2), lateness=0.1))
        bench.open()
        for moment in (1, 2, 50, 3):
            push(bench, moment)
        found = [
            (value.window.end - 1, time)
            for batch in bench.out
            for value, time in zip(batch.values, batch.event_times or (), strict=True)
        ]

    assert len(found) == 3
    assert all(last == time for last, time in found)


def test_the_chain_knows_when_the_clock_is_to_be_looked_at(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench, clock = opened(tmp_path, closing, summed(TEN, on_clock(every=10)))
        chain = bench.open()
        chain.tick()
        assert chain.get_next_time() is None
        clock.now += 1
        push(bench, 1)
        assert chain.get_next_time() == NOW + 10_000


def test_a_function_that_fails_when_the_clock_asks_for_a_result_stops_the_job_and_is_named(tmp_path: Path) -> None:
    def failing(keyed: KeyedStream[str, int]) -> Stream[Any]:
        windows = keyed.window(TEN, trigger=on_clock(every=10))
        return windows.process(lambda key, window, values: [1 // 0], name="w")

    with ExitStack() as closing:
        bench, clock = opened(tmp_path, closing, failing)
        bench.open()
        push(bench, 1)
        clock.now += 10_000

        with pytest.raises(PoisonRecord, match=r"processing-timers of w, key 'k', time .*ZeroDivisionError"):
            bench.chain.tick()


def test_what_waits_for_the_clock_survives(tmp_path: Path) -> None:
    with ExitStack() as closing:
        before, _ = opened(tmp_path / "before", closing, summed(TEN, on_clock(every=10)))
        before.open()
        push(before, 1, 2)
        handles = before.checkpoint()
        after, later = opened(tmp_path / "after", closing, summed(TEN, on_clock(every=10)))
        after.storage = before.storage
        after.open(handles)
        later.now += 60_000
        after.chain.tick()

    assert [found.value for found in after.values] == [2]


@pytest.mark.parametrize("assigner", [TEN, session(gap=0.005), sliding(seconds=0.010, every=0.005)])
def test_windows_declare_what_waits_for_the_clock_beside_what_waits_for_event_time(assigner: Any) -> None:
    node: Any = built(summed(assigner, on_clock(every=10))).node("w")

    assert [each.name for each in windows(node).list_timer_states()] == ["event-timers", "processing-timers", "changed"]
    assert [each.name for each in windows(replace(node, trigger=None)).list_timer_states()] == ["event-timers"]


def test_a_trigger_of_the_clock_can_be_left_out_later(tmp_path: Path) -> None:
    with ExitStack() as closing:
        before, _ = opened(tmp_path / "before", closing, summed(TEN, on_clock(every=10)))
        before.open()
        push(before, 1, 2)
        handles = before.checkpoint()
        after, _ = opened(tmp_path / "after", closing, summed(TEN, None))
        after.storage = before.storage
        after.open(handles)
        push(after, 10)

        assert [found.value for found in after.values] == [2]
        assert set(stored(after, tmp_path)) == {"windows"}


@pytest.mark.parametrize(
    ("assigner", "trigger", "says"),
    [
        (rows(3), on_count(2), "already emit results by number of rows"),
        (global_(every=3), on_clock(every=2), "already emit results by number of rows"),
        (sliding(seconds=2, every=1), on_count(2), "a row is in several windows"),
        (tumbling(seconds=2, early=1), on_count(2), "a row is in several windows"),
        (sliding(seconds=2, every=1), on_clock(every=2).purging(), r"it needs tumbling"),
        (session(gap=2), on_count(2).purging(), r"it needs tumbling"),
        (TEN, on_count, "are its brackets missing"),
        (TEN, on_count(2).purging, "are its brackets missing"),
        (TEN, 5, "not 5: are its brackets missing"),
    ],
)
def test_what_cannot_be_is_refused_with_the_line(assigner: Any, trigger: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        built(summed(assigner, trigger))


@pytest.mark.parametrize("trigger", [on_count(2).purging(), on_clock(every=2).purging()])
def test_purging_is_refused_where_late_rows_would_be_in_results_of_others(trigger: Any) -> None:
    with pytest.raises(PlanError, match=r"omit \.purging\(\) or lateness="):
        built(summed(TEN, trigger, lateness=0.02))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_count_is_one_row_or_more(wrong: Any) -> None:
    with pytest.raises(PlanError, match="must be at least 1"):
        on_count(wrong)


@pytest.mark.parametrize("wrong", [0, 0.0001, float("nan")])
def test_an_interval_is_some_milliseconds(wrong: Any) -> None:
    with pytest.raises(PlanError, match="the time between two results"):
        on_clock(every=wrong)


def test_explain_tells_the_trigger() -> None:
    assert "with a result every 2 rows" in explain(built(summed(TEN, on_count(2))))
    purging = on_clock(every=5).purging()
    assert "with a result every 5 s of the clock, each row in one result only" in explain(built(summed(TEN, purging)))
    assert built(summed(days("UTC"), on_count(2)))
