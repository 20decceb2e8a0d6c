"""Timers in processing time: what the clock has come to fires, once, in the order of time, and is named for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline, PlanError, ProcessContext, ProcessFunction, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import EnvironmentFailed, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.event_time import AT_BARRIERS
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import AdvanceClock, ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin

Said = tuple[Any, ...]


class Silent(ProcessFunction[str, int, Said]):
    """Fires ten seconds after the last record of a key."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.processing_timers()
        self.set = ctx.value_state("set", int)

    def process(self, key: str, value: int) -> Iterable[Said]:
        if (before := self.set.get()) is not None:
            self.timers.delete(before)
        self.set.put(self.timers.register(self.ctx.processing_time + 10_000))
        return []

    def on_processing_timer(self, key: str, time: int) -> Iterable[Said]:
        self.set.clear()
        yield key, time, self.ctx.timestamp


class Both(ProcessFunction[str, int, Said]):
    """Timers in both times, of the same numbers."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.events, self.clocks = ctx, ctx.timers(), ctx.processing_timers()

    def process(self, key: str, value: int) -> Iterable[Said]:
        self.events.register(5)
        self.clocks.register(5)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[Said]:
        yield "event", time

    def on_processing_timer(self, key: str, time: int) -> Iterable[Said]:
        yield "clock", time


def flow(function: Any, *, timed: bool = False, on_error: Any = "stop", key: Callable[[Any], Any] = str) -> Pipeline:
    pipeline = Pipeline("clocked")
    source = pipeline.source(ListSource([]), name="source", on_error=on_error)
    stream = source.with_timestamps(watermarks=monotonic()) if timed else source
    stream.key_by(key).process(function, name="fn").sink(MemorySink(), name="sink")
    return pipeline


@dataclass
class Bench:
    """A chain under a clock that stands, whose checkpoints others go on with."""

    pipeline: Pipeline
    directory: Path
    closing: ExitStack
    backend: str = "memory"
    now: int = 0
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    out: list[Batch[Any]] = field(default_factory=list)

    def open(self, handles: list[StateHandle] | None = None, groups: range = range(128)) -> OperatorChain:
        plan = self.pipeline.plan()
        opened = len(list(self.directory.iterdir()))
        self.state = open_backend(
            self.backend,
            "fn",
            self.directory / f"fn-{opened}",
            groups,
            handles or (),
            self.storage,  # type: ignore[arg-type]
        )
        self.closing.callback(self.state.close)
        chain = OperatorChain(
            plan, {"fn": self.state}, {"sink": self.out.append}, pace=AT_BARRIERS, clock=lambda: self.now
        )
        self.closing.callback(chain.close)
        return chain

    def snapshot(self, chain: OperatorChain) -> StateHandle:
        chain.flush()
        return self.state.snapshot(Epoch(1))(self.storage)

    def take(self) -> list[Any]:
        found = [value for batch in self.out for value in batch.values]
        self.out.clear()
        return found


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def rows(*values: Any) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("source", "source", 0, 0, values))


# ---------------------------------------------------------------- what fires


def test_a_timer_fires_when_the_clock_has_come_to_it_and_its_output_has_its_time() -> None:
    given = [1, AdvanceClock(9), 1, AdvanceClock(9.999), 2, AdvanceClock(0.001), AdvanceClock(60)]

    found = run_local(flow(Silent), {"source": given}, now=500)["sink"]

    assert found == [("1", 19_500, 19_500), ("2", 29_499, 29_499)]


def test_it_needs_no_watermarks_and_those_of_events_do_not_fire_it() -> None:
    found = run_local(
        flow(Both, timed=True), {"source": [TimestampedValue(1, 0), TimestampedValue(1, 50)]}, now=0, batch_size=1
    )["sink"]

    assert found == [("event", 5)]


def test_both_kinds_are_told_apart_and_fire_once_each() -> None:
    given = [TimestampedValue(1, 0), AdvanceClock(1), TimestampedValue(1, 50), AdvanceClock(1)]
    found = run_local(flow(Both, timed=True, key=lambda v: "k"), {"source": given}, now=0)["sink"]

    # The second record sets them again: what the clock has passed, for the next moment.
    assert found == [("clock", 5), ("event", 5), ("clock", 1001)]


def test_the_end_of_an_epoch_looks_at_the_clock(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(Silent), tmp_path, closing)
    chain = bench.open()
    chain.push("source", rows(1))
    bench.now = 10_000
    chain.flush()

    assert bench.take() == [("1", 10_000, 10_000)]


def test_a_timer_that_sets_the_next_one_goes_on_step_by_step() -> None:
    class Every(Silent):
        def on_processing_timer(self, key: str, time: int) -> Iterable[Said]:
            self.timers.register(time + 10_000)
            yield (time,)

    assert run_local(flow(Every), {"source": [1, AdvanceClock(35)]}, now=0)["sink"] == [(10_000,), (20_000,), (30_000,)]


def test_timers_of_one_key_and_time_are_one_and_keys_fire_in_their_order() -> None:
    class Same(Silent):
        def process(self, key: str, value: int) -> Iterable[Said]:
            for _ in range(2):
                self.timers.register(7)
            return []

    assert run_local(flow(Same), {"source": [2, 1, 2, AdvanceClock(1)]}, now=0)["sink"] == [("1", 7, 7), ("2", 7, 7)]


def test_what_a_call_that_raises_has_set_does_not_count() -> None:
    class Refusing(Silent):
        def process(self, key: str, value: int) -> Iterable[Said]:
            super().process(key, value)
            raise ValueError("no")

    found = run_local(flow(Refusing, on_error=DeadLetters(MemorySink())), {"source": [1, AdvanceClock(60)]})

    assert found["sink"] == []


# ---------------------------------------------------------------- names


def test_a_firing_has_a_name_that_no_firing_in_event_time_has(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(Both, key=lambda v: "k"), tmp_path, closing)
    bench.pipeline = flow(Both, timed=True, key=lambda v: "k")
    plan = bench.pipeline.plan()
    backends = {
        node.name: open_backend("memory", node.name, tmp_path / node.name, range(128), (), bench.storage)
        for node in plan.nodes
        if node.stateful
    }
    chain = OperatorChain(plan, backends, {"sink": bench.out.append}, clock=lambda: 10)
    closing.callback(chain.close)
    chain.assign("source", ["source/0"])
    chain.push("source", Batch([1, 1], range(2), ListOrigin("source", "source", 0, 0, [1, 1], [0, 50])))
    chain.flush()

    names = [
        parse_provenance(text) for batch in bench.out for text in format_provenance(batch, "job", Term(1), Epoch(1))
    ]
    assert [(name.source, name.topic, name.offset) for name in names] == [
        ("fn", "timers", 5),
        ("fn", "processing-timers", 5),
    ]
    assert len({name.ordinal for name in names}) == 1
    assert [list(batch.origin.timestamps()) for batch in bench.out] == [[5], [5]]


def test_a_firing_before_1970_can_be_named() -> None:
    assert parse_provenance("job.1.2/fn/processing-timers/3/-7/0.1-2-0").offset == -7
    with pytest.raises(ValueError, match="not a provenance"):
        parse_provenance("job.1.2/fn/other/3/-7/0.1-2-0")


# ---------------------------------------------------------------- after a restart


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_what_was_due_while_the_job_was_down_fires_at_once_and_once(
    tmp_path: Path, closing: ExitStack, backend: str
) -> None:
    bench = Bench(flow(Silent), tmp_path, closing, backend)
    chain = bench.open()
    chain.push("source", rows(1, 2))
    bench.now = 5000
    handle = bench.snapshot(chain)
    assert bench.take() == []

    bench.now = 60_000
    chain = bench.open([handle])
    chain.tick()
    assert [said[:2] for said in bench.take()] == [("1", 10_000), ("2", 10_000)]
    handle = bench.snapshot(chain)
    chain = bench.open([handle])
    chain.tick()
    assert bench.take() == []


def test_timers_are_divided_with_the_keys(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(Silent), tmp_path, closing)
    chain = bench.open()
    chain.push("source", rows(*range(20)))
    handle = bench.snapshot(chain)
    bench.now = 60_000

    found = []
    for subtask in range(3):
        bench.open([handle], key_group_range(subtask, 3)).tick()
        mine = [said[0] for said in bench.take()]
        assert mine
        found += mine
    assert sorted(found) == sorted(map(str, range(20)))


def test_a_clock_that_is_set_back_fires_nothing_twice(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(Silent), tmp_path, closing)
    chain = bench.open()
    chain.push("source", rows(1))
    bench.now = 60_000
    handle = bench.snapshot(chain)
    assert [said[:2] for said in bench.take()] == [("1", 10_000)]

    bench.now = 0
    chain = bench.open([handle])
    chain.push("source", rows(1))
    bench.now = 60_000
    chain.tick()
    assert bench.take() == []
    bench.now = 60_001
    chain.tick()
    assert [said[:2] for said in bench.take()] == [("1", 60_001)]


def test_a_chain_says_when_it_is_worth_looking_at_the_clock(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(Silent), tmp_path, closing)
    chain = bench.open()
    chain.tick()
    assert chain.get_next_time() is None
    chain.push("source", rows(1))
    bench.now = 3000
    chain.push("source", rows(2))
    chain.tick()
    assert chain.get_next_time() == 10_000
    bench.now = 10_000
    chain.tick()
    assert chain.get_next_time() == 13_000
    assert list(chain.clock_operators) == ["fn"]


# ---------------------------------------------------------------- what is refused


def test_what_it_raises_stops_the_job_and_names_key_and_time() -> None:
    class Broken(Silent):
        def on_processing_timer(self, key: str, time: int) -> Iterable[Said]:
            raise ZeroDivisionError("none")

    with pytest.raises(PoisonRecord, match=r"processing-timers of fn, key '1', time 10000.*or fix on_processing_timer"):
        run_local(flow(Broken), {"source": [1, AdvanceClock(10)]}, now=0)


def test_but_the_environments_fault_takes_the_job_back_as_the_source_says() -> None:
    class Gone(Exception):
        pass

    class Offline(Silent):
        def on_processing_timer(self, key: str, time: int) -> Iterable[Said]:
            raise Gone

    pipeline = Pipeline("clocked")
    source = pipeline.source(ListSource([]), name="source", environment_errors=Gone)
    source.key_by(str).process(Offline, name="fn").sink(MemorySink(), name="sink")

    with pytest.raises(EnvironmentFailed):
        run_local(pipeline, {"source": [1, AdvanceClock(10)]})


class NoMethod(ProcessFunction[str, int, Said]):
    def open(self, ctx: ProcessContext) -> None:
        self.ctx = ctx
        ctx.processing_timers()

    def process(self, key: str, value: int) -> list[Said]:
        return []


class Looks(ProcessFunction[str, int, Said]):
    def open(self, ctx: ProcessContext) -> None:
        self.ctx = ctx

    def process(self, key: str, value: int) -> Iterable[Said]:
        yield (self.ctx.processing_time,)


class TakesTheName(Silent):
    def open(self, ctx: ProcessContext) -> None:
        ctx.value_state("processing-timers", int)


@pytest.mark.parametrize(
    ("function", "why"),
    [(NoMethod, "defines on_processing_timer"), (Looks, "defines on_processing_timer"), (TakesTheName, "is taken")],
)
def test_who_works_with_the_clock_defines_what_it_calls(function: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        run_local(flow(function), {"source": [1]})


def test_event_timers_are_another_method() -> None:
    class Wrong(Silent):
        def open(self, ctx: ProcessContext) -> None:
            ctx.timers()

    with pytest.raises(PlanError, match=r"defines on_timer\(key"):
        run_local(flow(Wrong), {"source": []})


def test_explain_says_whose_timers() -> None:
    assert "keeps state and timers of the clock" in flow(Silent).explain()
    assert "keeps state and timers\n" in flow(Both, timed=True).explain()
