"""What time makes due in slices: what comes in between, and what a snapshot holds there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, monotonic, on_clock, session, tumbling
from kafka_eos.abc.state import StateHandle
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.plan import Plan
from kafka_eos.runtime.operators.due_work import DueWork
from kafka_eos.runtime.operators.event_time import WatermarkSchedule
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from tests.unit.runtime.operators.test_event_time import Bench, rows

KEYS = 3000
SLICES = WatermarkSchedule(0.0, lambda: 0.0, slice=0.0)
"""One step at a time."""


class Once(ProcessFunction[int, int, int]):
    """Emits each key seven milliseconds after its row, but the odd ones say nothing."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()

    def process(self, key: int, value: int) -> Iterable[int]:
        self.timers.register(self.ctx.timestamp + 7)
        return []

    def on_timer(self, key: int, time: int) -> Iterable[int]:
        return [key] if key % 2 == 0 else []


def waiting(kind: str) -> Pipeline:
    """Keys wait for time nine, and a second operator behind them for the same."""
    found = Pipeline("slices")
    keyed = found.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic()).key_by(lambda v: v)
    match kind:
        case "timers":
            out: Any = keyed.process(Once, name="first")
        case "sessions":
            windows = keyed.window(session(gap=0.007))
            out = windows.fold(name="first", init=int, step=lambda a, v: v, merge=max).map(lambda each: each.key)
        case _:
            given: dict[str, Any] = {"lateness": 1.0} if kind == "lateness" else {}
            windows = keyed.window(tumbling(seconds=0.010), **given)
            out = windows.fold(name="first", init=int, step=lambda a, v: v, state=int).map(lambda each: each.key)
    behind = out.key_by(lambda key: "all", values=int).window(tumbling(seconds=0.010))
    behind.fold(name="second", init=int, step=lambda a, v: a + 1, state=int).map(lambda each: -each.value).sink(
        MemorySink(), name="counts"
    )
    out.sink(MemorySink(), name="sink")
    return found


class Sliced(Bench):
    """A chain whose watermarks take one step at a time."""

    def outputs(self) -> Any:
        return {"sink": self.out.append, "counts": self.out.append}

    def begin(self, handles: Iterable[StateHandle] = ()) -> None:
        self.open(list(handles))

    def snapshot(self) -> list[StateHandle]:
        self.chain.flush(whole=False)
        return [backend.snapshot(Epoch(1))(self.storage) for backend in self.backends.values()]

    def named(self) -> list[str]:
        return [
            text.partition("/")[2] for batch in self.out for text in format_provenance(batch, "job", Term(1), Epoch(1))
        ]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def fill(bench: Sliced) -> None:
    for start in range(0, KEYS, 1000):
        bench.chain.push("source", rows(list(range(start, start + 1000)), [2] * 1000))


def amid(kind: str, directory: Path, closing: ExitStack, storage: MemoryStorage) -> tuple[Plan, list[StateHandle]]:
    """A plan, and its state between two slices."""
    plan = waiting(kind).plan()
    bench = Sliced(plan, directory, closing, SLICES, storage)
    bench.begin()
    fill(bench)
    bench.chain.push("source", rows([KEYS], [10]))
    assert bench.chain.has_due_work
    return plan, bench.snapshot()


@pytest.mark.parametrize("kind", ["timers", "sessions", "windows", "lateness"])
def test_what_one_watermark_makes_due_is_done_in_slices_of_which_a_snapshot_may_be_taken(
    kind: str, tmp_path: Path, closing: ExitStack
) -> None:
    """Killed between two slices and restored, all comes once, and the watermark goes on behind all of it."""
    storage, plan = MemoryStorage(), waiting(kind).plan()
    one = Sliced(plan, tmp_path / "one", closing, SLICES, storage)
    one.begin()
    fill(one)
    assert not one.chain.has_due_work
    one.chain.push("source", rows([KEYS], [10]))
    steps = 0
    while len(one.values) < KEYS // 4:
        assert one.chain.has_due_work
        one.chain.continue_due()
        steps += 1
    handles, before = one.snapshot(), len(one.values)
    assert one.chain.has_due_work and min(one.values) >= 0, "the watermark has gone on too early"

    other = Sliced(plan, tmp_path / "other", closing, SLICES, storage)
    other.begin(handles)
    other.chain.push("source", rows([KEYS], [10]))  # nothing new: event time is where it was
    while other.chain.has_due_work:
        other.chain.continue_due()

    values, names = one.values[:before] + other.values, one.named()[:before] + other.named()
    wanted = range(0, KEYS, 2) if kind == "timers" else range(KEYS)
    assert steps > 0
    assert sorted(values) == sorted([*wanted, -len(wanted)])
    assert values[-1] == -len(wanted)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("verb", [tumbling(seconds=0.010), session(gap=0.007)])
def test_what_a_snapshot_has_left_is_done_before_any_row(verb: Any, tmp_path: Path, closing: ExitStack) -> None:
    """A row that comes when its window is over makes its result once more, behind the first."""
    flow = Pipeline("slices")
    keyed = flow.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic()).key_by(lambda v: v)
    windows = keyed.window(verb, lateness=1.0)
    out = windows.fold(name="first", init=int, step=lambda a, v: a + 1, merge=lambda a, b: a + b)
    out.map(lambda each: (each.key, each.value)).sink(MemorySink(), name="sink")
    plan, storage = flow.plan(), MemoryStorage()
    one = Sliced(plan, tmp_path / "one", closing, SLICES, storage)
    one.begin()
    fill(one)
    one.chain.push("source", rows([KEYS], [10]))
    handles, before = one.snapshot(), one.values
    left = min(set(range(KEYS)) - {key for key, _ in before})

    other = Sliced(plan, tmp_path / "other", closing, SLICES, storage)
    other.begin(handles)
    other.chain.resume()
    while other.chain.has_due_work:
        other.chain.continue_due()
    other.chain.push("source", rows([left], [2]))

    results = [(key, value) for key, value in before + other.values if key == left]
    assert results == [(left, 1), (left, 2)]
    assert sorted(key for key, value in before + other.values if value == 1) == list(range(KEYS))


def test_what_several_operators_have_left_is_done_from_the_last_one_on(tmp_path: Path, closing: ExitStack) -> None:
    """So no row comes to one that is not done."""
    plan, storage = waiting("timers").plan(), MemoryStorage()
    one = Sliced(plan, tmp_path / "one", closing, SLICES, storage)
    one.begin()
    fill(one)
    one.chain.push("source", rows([KEYS], [10]))
    handles = one.snapshot()
    other = Sliced(plan, tmp_path / "other", closing, WatermarkSchedule(0.0, lambda: 0.0), storage)
    other.begin(handles)
    order: list[str] = []
    for node in ("first", "second"):
        operator: Any = other.chain._operators[node]
        operator.advance = partial(_noting, order, node, operator.advance)

    other.chain.resume()

    assert order == ["second", "first"]
    assert not other.chain.has_due_work
    assert sorted(one.values + other.values) == list(range(0, KEYS, 2))


def _noting(order: list[str], node: str, advance: Any, time: int) -> Any:
    order.append(node)
    return advance(time)


def test_the_end_of_an_epoch_that_leaves_nothing_under_way_does_all_of_it(tmp_path: Path, closing: ExitStack) -> None:
    bench = Sliced(waiting("timers").plan(), tmp_path, closing, SLICES)
    bench.begin()
    fill(bench)
    bench.chain.push("source", rows([KEYS], [10]))
    assert bench.chain.has_due_work

    bench.chain.flush()

    assert not bench.chain.has_due_work
    assert bench.values[-1] == -KEYS // 2


def test_timers_that_say_nothing_let_others_come_in_between(tmp_path: Path, closing: ExitStack) -> None:
    class Silent(Once):
        def on_timer(self, key: int, time: int) -> Iterable[int]:
            return []

    flow = Pipeline("silent")
    source = flow.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic())
    source.key_by(lambda v: v).process(Silent, name="first").sink(MemorySink(), name="sink")
    bench = Sliced(flow.plan(), tmp_path, closing, SLICES)
    bench.begin()
    fill(bench)

    bench.chain.push("source", rows([KEYS], [10]))

    assert bench.chain.has_due_work


def test_what_is_due_later_waits_for_what_is_not_done() -> None:
    done: list[str] = []

    def steps(name: str, count: int) -> Iterator[None]:
        for number in range(count):
            done.append(f"{name}{number}")
            yield

    due = DueWork(0.0, lambda: 0.0)
    due.begin(steps("a", 2))
    due.begin(steps("b", 1))
    assert done == ["a0"] and due.is_pending
    due.run_slice()
    assert done == ["a0", "a1"]
    due.run_slice()
    assert done == ["a0", "a1", "b0"]
    due.run_all()
    assert not due.is_pending


def test_what_cannot_wait_is_done_ahead_of_what_is_due() -> None:
    """Also from within a step of something due."""
    done: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for number in range(2):
            done.append(f"{name}{number}")
            yield

    def outer() -> Iterator[None]:
        yield
        due.run_now(steps("inner"))
        done.append("outer")

    due = DueWork(0.0, lambda: 0.0)
    due.begin(steps("a"))
    due.run_now(steps("b"))
    assert done == ["a0", "b0", "b1"] and due.is_pending
    due.begin(outer())
    due.run_all()
    assert done == ["a0", "b0", "b1", "a1", "inner0", "inner1", "outer"] and not due.is_pending


def test_the_time_counts_from_when_the_first_thing_is_due_until_the_last_one_is_done() -> None:
    now, done = 1.0, list[str]()

    def step(name: str) -> Iterator[None]:
        for part in "ab":
            done.append(name + part)
            yield

    due = DueWork(0.0, lambda: now)
    due.begin(step("1"))
    now = 3.0
    due.begin(step("2"))
    assert done == ["1a"] and due.seconds_pending == 2.0
    now = 4.0
    due.run_slice()
    assert due.seconds_pending == 3.0 and due.is_pending
    due.run_all()
    now = 9.0
    assert done == ["1a", "1b", "2a", "2b"] and due.seconds_pending == 3.0
    due.begin(step("3"))
    now = 10.0
    assert due.seconds_pending == 4.0
    due.run_all()
    now = 12.0
    assert due.seconds_pending == 4.0


def test_no_split_is_silent_while_what_is_due_keeps_the_worker_from_reading(tmp_path: Path, closing: ExitStack) -> None:
    """One split brings nothing but its first rows, and is waited for however long windows take to close."""
    now = 0.0
    flow = Pipeline("silent")
    strategy = monotonic().with_idleness(0.9)
    keyed = flow.source(ListSource([]), name="source").with_timestamps(watermarks=strategy).key_by(lambda v: v)
    windows = keyed.window(tumbling(seconds=0.010)).fold(name="first", init=int, step=lambda n, _: n + 1, state=int)
    windows.map(lambda found: found.window.end).sink(MemorySink(), name="sink")
    bench = Sliced(flow.plan(), tmp_path, closing, WatermarkSchedule(0.0, lambda: now, slice=0.0))
    bench.open(splits=["source/0", "source/1"])
    fill(bench)
    bench.chain.push("source", rows([KEYS], [10]))
    bench.chain.push("source", rows([KEYS], [10], 1))
    while bench.chain.has_due_work:
        now += 0.7
        bench.chain.continue_due()
    assert now > 4 and set(bench.values) == {10}

    bench.chain.push("source", rows([KEYS], [30]))
    bench.chain.flush()
    assert set(bench.values) == {10}

    now += 1.0
    bench.chain.push("source", rows([KEYS], [31]))
    bench.chain.flush()
    assert set(bench.values) == {10, 20}


def test_however_often_the_clock_is_looked_at_meanwhile_one_look_waits_for_its_turn(
    tmp_path: Path, closing: ExitStack
) -> None:
    looks: list[int] = []

    def clock() -> int:
        looks.append(1)
        return 10_000 + len(looks)

    flow = Pipeline("looks")
    keyed = flow.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic()).key_by(lambda v: v)
    windows = keyed.window(tumbling(seconds=0.010), trigger=on_clock(every=60))
    windows.fold(name="first", init=int, step=lambda n, _: n + 1, state=int).sink(MemorySink(), name="sink")
    bench = Sliced(flow.plan(), tmp_path, closing, SLICES, clock=clock)
    bench.begin()
    fill(bench)
    bench.chain.push("source", rows([KEYS], [10]))
    assert bench.chain.has_due_work
    looks.clear()

    for _ in range(50):
        bench.chain.tick()
    assert not looks
    bench.chain.flush()
    bench.chain.tick()

    assert len(looks) <= 3
    assert len(bench.values) == KEYS


def test_a_slice_may_be_all_of_it() -> None:
    done: list[int] = []

    def steps() -> Iterator[None]:
        for number in range(3):
            done.append(number)
            yield

    due = DueWork(60.0, lambda: 0.0)
    due.begin(steps())

    assert done == [0, 1, 2] and not due.is_pending
