"""Event time through a chain of operators: who gets which time, how far it has come, and what fires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, Stream, WatermarkStrategy, bounded, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.core.errors import EnvironmentFailed, PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import MIN_EVENT_TIME, Batch, Watermark
from kafka_eos.plan import Plan, TimestampsNode
from kafka_eos.runtime.operators.event_time import AT_BARRIERS, WITH_EACH_BATCH, WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.ttl_clock import wall_clock
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import AdvanceClock, ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin

Verbs = Callable[[Stream[Any]], Stream[Any]]


class Tumbling(ProcessFunction[str, int, tuple[str, int, int]]):
    """Sums of windows of ten."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.sums = ctx.map_state("sums", int, int)

    def process(self, key: str, value: int) -> Iterable[tuple[str, int, int]]:
        end = self.ctx.timestamp // 10 * 10 + 10
        self.sums.put(end, (self.sums.get(end) or 0) + value)
        self.timers.register(end - 1)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[tuple[str, int, int]]:
        total = self.sums.get(time + 1) or 0
        self.sums.remove(time + 1)
        yield key, time + 1, total


class Every(ProcessFunction[str, int, tuple[int, int, int]]):
    """Fires every ten milliseconds from the first record on; says what the context says."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()

    def process(self, key: str, value: int) -> Iterable[tuple[int, int, int]]:
        self.timers.register(self.ctx.timestamp + 10)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[tuple[int, int, int]]:
        self.timers.register(time + 10)
        yield time, self.ctx.timestamp, self.ctx.watermark


def pipeline(
    verbs: Verbs, fn: Any = None, *, strategy: WatermarkStrategy = monotonic(), on_error: Any = "stop"
) -> Pipeline:
    found = Pipeline("timed")
    source = found.source(ListSource([]), name="source", on_error=on_error)
    verbs(source.with_timestamps(fn, watermarks=strategy)).sink(MemorySink(), name="sink")
    return found


def processed(function: Any, **given: Any) -> Pipeline:
    return pipeline(
        lambda s: s.key_by(lambda v: "k" if isinstance(v, int) else v[0]).process(function, name="fn"), **given
    )


def rows(values: Sequence[Any], times: Sequence[int], partition: int = 0, source: str = "source") -> Batch[Any]:
    origin = ListOrigin(source, source, partition, 0, values, times)
    return Batch(list(values), range(len(values)), origin)


@dataclass
class Bench:
    """A chain over state in memory, whose checkpoints another one goes on with."""

    plan: Plan
    directory: Path
    closing: ExitStack
    pace: WatermarkSchedule = WITH_EACH_BATCH
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    out: list[Batch[Any]] = field(default_factory=list)
    clock: Callable[[], int] = wall_clock

    def open(self, handles: Sequence[StateHandle] = (), splits: Sequence[str] = ("source/0",)) -> OperatorChain:
        self.backends = {
            node.name: open_backend(
                "memory", node.name, self.directory / node.name, range(128),
                [h for h in handles if h.operator == node.name], self.storage, by_split=isinstance(node,
                TimestampsNode),
            )
            for node in self.plan.nodes
            if node.stateful
        }  # fmt: skip
        self.chain = OperatorChain(self.plan, self.backends, self.outputs(), pace=self.pace, clock=self.clock)
        self.closing.callback(self.chain.close)
        for source in self.plan.sources:
            self.chain.assign(source.name, [split for split in splits if split.startswith(source.name)])
        return self.chain

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        return {"sink": self.out.append}

    def checkpoint(self) -> list[StateHandle]:
        self.chain.flush()
        return [backend.snapshot(Epoch(1))(self.storage) for backend in self.backends.values()]

    @property
    def values(self) -> list[Any]:
        return [value for batch in self.out for value in batch.values]


@pytest.fixture
def closing() -> Iterable[ExitStack]:
    with ExitStack() as stack:
        yield stack


# ---------------------------------------------------------------- times of rows


def test_the_time_of_a_row_is_that_of_its_record() -> None:
    class Says(ProcessFunction[str, Any, int]):
        def open(self, ctx: ProcessContext) -> None:
            self.ctx = ctx

        def process(self, key: str, value: Any) -> Iterable[int]:
            return [self.ctx.timestamp] * 2

    flow = processed(Says)

    assert run_local(flow, {"source": [TimestampedValue(1, 7), TimestampedValue(2, -5)]}) == {"sink": [7, 7, -5, -5]}


def test_or_what_a_function_says(tmp_path: Path, closing: ExitStack) -> None:
    flow = Pipeline("timed")
    timed = flow.source(ListSource([]), name="source").with_timestamps(lambda v: v * 100, watermarks=monotonic())
    timed.flat_map(lambda v: [v, v]).filter(lambda v: v > 1).sink(MemorySink(), name="sink")
    bench = Bench(flow.plan(), tmp_path, closing)
    bench.open().push("source", rows([1, 2, 3], [0, 0, 0]))

    assert [list(batch.event_times or ()) for batch in bench.out] == [[200, 200, 300, 300]]


@pytest.mark.parametrize(
    ("said", "why"), [("now", "whole number"), (1.5, "whole number"), (True, "whole"), (10**18, "whole")]
)
def test_what_is_no_time_refuses_the_record(said: object, why: str) -> None:
    flow = Pipeline("timed")
    timed = flow.source(ListSource([]), name="source").with_timestamps(lambda v: said, watermarks=monotonic())  # type: ignore[arg-type,return-value]
    timed.sink(MemorySink(), name="sink")

    with pytest.raises(PoisonRecord, match=why):
        run_local(flow, {"source": [1]})


def test_a_record_without_a_timestamp_is_refused_and_the_error_says_what_to_do() -> None:
    with pytest.raises(PoisonRecord, match="pass with_timestamps a function"):
        run_local(processed(Tumbling), {"source": [1]})


def test_refused_rows_do_not_move_event_time() -> None:
    def time(value: int) -> int:
        if value == 99:
            raise ValueError("no")
        return value

    flow = Pipeline("timed")
    source = flow.source(ListSource([]), name="source", on_error=DeadLetters(MemorySink()))
    timed = source.with_timestamps(time, watermarks=monotonic()).key_by(lambda v: "k")
    timed.process(Tumbling, name="fn").sink(MemorySink(), name="sink")
    found = run_local(flow, {"source": [1, 99, 5]})

    assert found["sink"] == []
    assert len(found["source-dead-letters"]) == 1


# ---------------------------------------------------------------- what fires


def test_a_window_fires_when_event_time_has_come_to_its_end_and_not_before() -> None:
    flow = processed(Tumbling)
    early = [TimestampedValue(("a", 1), 3), TimestampedValue(("b", 2), 8), TimestampedValue(("a", 4), 9)]

    def summed(value: tuple[str, int]) -> int:
        return value[1]

    flow = pipeline(lambda s: s.key_by(lambda v: v[0], values=tuple[str, int]).process(_Amounts, name="fn"))
    assert run_local(flow, {"source": early}) == {"sink": []}
    assert run_local(flow, {"source": [*early, TimestampedValue(("c", 0), 10)]}) == {
        "sink": [("a", 10, 5), ("b", 10, 2)]
    }


class _Amounts(Tumbling):
    def process(self, key: str, value: Any) -> Iterable[tuple[str, int, int]]:
        return super().process(key, value[1])


def test_a_row_within_the_bound_is_in_its_window_and_a_later_one_finds_it_closed() -> None:
    flow = processed(Tumbling, strategy=bounded(0.005))
    in_time = [TimestampedValue(1, 3), TimestampedValue(1, 14), TimestampedValue(1, 9), TimestampedValue(1, 16)]

    assert run_local(flow, {"source": in_time}, batch_size=1) == {"sink": [("k", 10, 2)]}


def test_timers_that_set_the_next_one_do_not_depend_on_how_far_event_time_leaps() -> None:
    flow = processed(Every)
    at_once = [TimestampedValue(1, 5), TimestampedValue(2, 36)]
    step_by_step = [TimestampedValue(1, 5), *(TimestampedValue(2, time) for time in range(6, 37))]
    due = [(time, time, time) for time in (15, 25, 35)]

    assert run_local(flow, {"source": at_once}, batch_size=1)["sink"][:3] == due
    firsts = [said for said in run_local(flow, {"source": step_by_step}, batch_size=1)["sink"] if said[0] % 10 == 5]
    assert firsts == due


def test_a_timer_for_the_past_fires_as_soon_as_event_time_goes_on() -> None:
    class Late(Every):
        def process(self, key: str, value: int) -> Iterable[tuple[int, int, int]]:
            at = self.timers.register(3)
            return [(0, at, self.ctx.watermark)]

        def on_timer(self, key: str, time: int) -> Iterable[tuple[int, int, int]]:
            return [(1, time, self.ctx.watermark)]

    found = run_local(
        processed(Late),
        {"source": [TimestampedValue(1, 1), TimestampedValue(1, 50), TimestampedValue(1, 60)]},
        batch_size=1,
    )

    assert found == {"sink": [(0, 3, MIN_EVENT_TIME), (0, 3, 0), (1, 3, 3), (0, 50, 49), (1, 50, 50)]}


def test_what_a_call_that_raises_has_set_and_deleted_does_not_count() -> None:
    class Refusing(Tumbling):
        def process(self, key: str, value: int) -> Iterable[tuple[str, int, int]]:
            if value < 0:
                self.timers.register(20)
                self.timers.delete(9)
                raise ValueError("negative")
            return super().process(key, value)

    flow = processed(Refusing, on_error=DeadLetters(MemorySink()))
    found = run_local(flow, {"source": [TimestampedValue(1, 3), TimestampedValue(-1, 4), TimestampedValue(0, 40)]})

    assert found["sink"] == [("k", 10, 1)]


def test_a_deleted_timer_does_not_fire() -> None:
    class Undone(Tumbling):
        def process(self, key: str, value: int) -> Iterable[tuple[str, int, int]]:
            super().process(key, value)
            if value == 2:
                self.timers.delete(9)
            return []

    given = [TimestampedValue(1, 3), TimestampedValue(2, 4), TimestampedValue(1, 30)]

    assert run_local(processed(Undone), {"source": given}) == {"sink": []}


def test_what_on_timer_raises_stops_the_job_without_dead_letters_and_names_key_and_time() -> None:
    class Broken(Tumbling):
        def on_timer(self, key: str, time: int) -> Iterable[tuple[str, int, int]]:
            raise ZeroDivisionError("no amounts")

    with pytest.raises(PoisonRecord, match=r"timers of fn, key 'k', time 9.*no amounts.*or fix on_timer"):
        run_local(processed(Broken), {"source": [TimestampedValue(1, 3), TimestampedValue(1, 30)]})


def test_what_a_sink_refuses_of_a_timer_is_told_as_a_firing() -> None:
    pipeline = Pipeline("timers")
    stream = pipeline.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic())
    stream.key_by(lambda value: "k").process(Tumbling, name="fn").map(lambda row: row).sink(
        KafkaSink("out", value=str), name="sink"
    )

    with pytest.raises(PoisonRecord) as refused:
        run_local(pipeline, {"source": [TimestampedValue(1, 3), TimestampedValue(1, 30)]})

    assert str(refused.value).startswith("the firing at timers of fn, key group ")
    assert ", time 9, failed in operator 'sink': ValueError: expected str, got tuple. " in str(refused.value)
    assert "fix the function that emits it" in str(refused.value)


def test_but_the_environments_fault_takes_the_job_back() -> None:
    class Offline(Tumbling):
        def on_timer(self, key: str, time: int) -> Iterable[tuple[str, int, int]]:
            raise ConnectionError("nobody there")

    with pytest.raises(EnvironmentFailed, match="nobody there"):
        run_local(processed(Offline), {"source": [TimestampedValue(1, 3), TimestampedValue(1, 30)]})


def test_what_a_source_says_of_exceptions_holds_for_timers_behind_it() -> None:
    class Gone(Exception):
        pass

    class Offline(Tumbling):
        def on_timer(self, key: str, time: int) -> Iterable[tuple[str, int, int]]:
            raise Gone

    flow = Pipeline("timed")
    source = flow.source(ListSource([]), name="source", environment_errors=Gone)
    timed = source.with_timestamps(watermarks=monotonic()).key_by(lambda v: "k")
    timed.process(Offline, name="fn").sink(MemorySink(), name="sink")

    with pytest.raises(EnvironmentFailed):
        run_local(flow, {"source": [TimestampedValue(1, 3), TimestampedValue(1, 30)]})


# ---------------------------------------------------------------- where watermarks come from and meet


def test_all_partitions_count_and_the_slowest_holds_the_others_back(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(processed(Tumbling).plan(), tmp_path, closing)
    chain = bench.open(splits=["source/0", "source/1"])

    chain.push("source", rows([1], [3]))
    chain.push("source", rows([1], [25]))
    assert bench.values == []
    chain.push("source", rows([1], [12], partition=1))
    assert bench.values == [("k", 10, 1)]


def test_a_partition_that_is_found_later_is_waited_for(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(processed(Tumbling).plan(), tmp_path, closing)
    chain = bench.open()
    chain.push("source", rows([1], [3]))
    chain.assign("source", ["source/1"])

    chain.push("source", rows([1], [25]))
    assert bench.values == []


def test_a_silent_partition_is_not_waited_for_if_so_asked(tmp_path: Path, closing: ExitStack) -> None:
    now = [0.0]
    pace = WatermarkSchedule(0.0, lambda: now[0])
    flow = processed(Tumbling, strategy=monotonic().with_idleness(1.5))
    bench = Bench(flow.plan(), tmp_path, closing, pace)
    chain = bench.open(splits=["source/0", "source/1"])
    chain.push("source", rows([1, 1], [3, 25]))
    for now[0] in (0.9, 1.8):
        assert bench.values == []
        chain.push("source", rows([1], [26]))

    assert bench.values == [("k", 10, 1)]


@pytest.mark.parametrize("strategy", [monotonic().with_clock(after=1.5), monotonic().with_idleness(1.5)])
def test_barriers_behind_which_nobody_reads_are_no_silence(
    strategy: WatermarkStrategy, tmp_path: Path, closing: ExitStack
) -> None:
    """A worker that has no room for more rows reads none: those that wait for it are not late."""
    now = [0.0]
    bench = Bench(
        processed(Tumbling, strategy=strategy).plan(), tmp_path, closing, WatermarkSchedule(0.0, lambda: now[0])
    )
    chain = bench.open(splits=["source/0", "source/1"])
    chain.push("source", rows([1, 1], [3, 25]))
    for now[0] in (0.9, 1.8, 2.7, 3.6, 4.5):
        chain.flush()
    chain.push("source", rows([1], [26]))

    assert bench.values == []


def test_windows_close_with_the_clock_when_no_rows_come_if_so_asked() -> None:
    flow = processed(Tumbling, strategy=monotonic().with_clock(after=5))
    given = [TimestampedValue(1, 3), AdvanceClock(4.9), TimestampedValue(1, 4), AdvanceClock(4.9)]

    assert run_local(flow, {"source": given}) == {"sink": []}
    assert run_local(flow, {"source": [*given, AdvanceClock(0.1), TimestampedValue(1, 20_000)]}) == {
        "sink": [("k", 10, 2)]
    }


def test_streams_that_meet_stand_at_the_least_of_both() -> None:
    flow = Pipeline("timed")
    one, other = (flow.source(ListSource([]), name=n).with_timestamps(watermarks=monotonic()) for n in ("a", "b"))
    one.union(other).key_by(lambda v: "k").process(Tumbling, name="fn").sink(MemorySink(), name="sink")

    assert run_local(flow, {"a": [TimestampedValue(1, 3), TimestampedValue(1, 30)], "b": [TimestampedValue(1, 4)]}) == {
        "sink": []
    }
    assert run_local(
        flow,
        {
            "a": [TimestampedValue(1, 3), TimestampedValue(1, 30)],
            "b": [TimestampedValue(1, 4), TimestampedValue(1, 15)],
        },
    ) == {"sink": [("k", 10, 2)]}


def test_outputs_of_timers_have_their_time_and_come_before_it_goes_on() -> None:
    class Twice(Tumbling):
        def process(self, key: str, value: Any) -> Iterable[tuple[str, int, int]]:
            return super().process(key, value[2])

    flow = pipeline(
        lambda s: (
            s.key_by(lambda v: str(v % 3))
            .process(Tumbling, name="first")
            .key_by(lambda v: "all")
            .process(Twice, name="second")
        )
    )
    found = run_local(flow, {"source": [*(TimestampedValue(v, v) for v in range(10)), TimestampedValue(0, 11)]})

    assert found == {"sink": [("all", 10, sum(range(10)))]}


def test_watermarks_wait_for_the_barrier_where_the_engine_says_so(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(processed(Tumbling).plan(), tmp_path, closing, AT_BARRIERS)
    chain = bench.open()
    chain.push("source", rows([1, 1], [3, 30]))

    assert bench.values == []
    chain.flush()
    assert bench.values == [("k", 10, 1)]


def test_they_leave_at_an_exchange_behind_the_rows_and_come_in_again_behind_it(
    tmp_path: Path, closing: ExitStack
) -> None:
    plan = processed(Tumbling).plan()
    left: list[Any] = []
    backends = {
        node.name: open_backend("memory", node.name, tmp_path / node.name, range(128), [], MemoryStorage())
        for node in plan.nodes
        if node.stateful
    }
    out: list[Batch[Any]] = []
    given: Any = ({"sink": out.append}, {"key-by-1": left.append})
    chain = OperatorChain(plan, backends, *given, signals={"key-by-1": left.append}, pace=WITH_EACH_BATCH)
    chain.assign("source", ["source/0"])
    chain.push("source", rows([1, 2], [3, 30]))
    batch, watermark = left

    assert watermark == Watermark(29)
    chain.push("key-by-1", batch)
    chain.advance("key-by-1", watermark)
    assert [value for each in out for value in each.values] == [("k", 10, 1)]


# ---------------------------------------------------------------- what a checkpoint holds


def test_event_time_goes_on_after_a_restart_where_it_was(tmp_path: Path, closing: ExitStack) -> None:
    flow = processed(Tumbling)
    one, other = (
        Bench(flow.plan(), tmp_path / name, closing, storage=storage) for storage in [MemoryStorage()] for name in "ab"
    )
    one.open(splits=["source/0", "source/1"])
    one.chain.push("source", rows([1], [3]))
    one.chain.push("source", rows([1], [18], partition=1))
    handles = one.checkpoint()
    other.open(handles, splits=["source/0", "source/1"])
    other.chain.push("source", rows([1], [25]))

    assert (one.values, other.values) == ([], [("k", 10, 1)])


def test_a_split_takes_its_time_along_to_another_subtask(tmp_path: Path, closing: ExitStack) -> None:
    """Two subtasks read a split each; then one reads both, or each reads the other's."""
    plan = pipeline(lambda s: s).plan()
    storage = MemoryStorage()
    handles: list[StateHandle] = []
    for subtask, partition in enumerate((0, 1)):
        groups = range(subtask * 64, subtask * 64 + 64)
        backend = open_backend(
            "memory", "source-timestamps", tmp_path / f"{subtask}", groups, [], storage, by_split=True
        )
        chain = OperatorChain(plan, {"source-timestamps": backend}, {"sink": lambda batch: None})
        chain.assign("source", [f"source/{partition}"])
        chain.push("source", rows([1], [10 + partition], partition=partition))
        handles.append(backend.snapshot(Epoch(1))(storage))

    def after(splits: Sequence[str], groups: range, name: str) -> dict[Any, Any]:
        backend = open_backend("memory", "source-timestamps", tmp_path / name, groups, handles, storage, by_split=True)
        chain = OperatorChain(plan, {"source-timestamps": backend}, {"sink": lambda batch: None})
        chain.assign("source", splits)
        again = backend.snapshot(Epoch(2))(storage)
        return dict(stored(again, storage, tmp_path / f"{name}-read"))

    assert after(["source/0", "source/1"], range(128), "both") == {"source/0": 10, "source/1": 11}
    assert after(["source/1"], range(64), "other") == {"source/1": 11}


def stored(handle: StateHandle, storage: MemoryStorage, directory: Path) -> Iterable[tuple[Any, Any]]:
    from kafka_eos.abc.state import StateDescriptor
    from kafka_eos.codecs import KeyCodec, state_codec

    groups = range(handle.key_groups[0], handle.key_groups[1] + 1)
    backend = open_backend("memory", "source-timestamps", directory, groups, [handle], storage, by_split=True)
    return backend.value(StateDescriptor("newest", KeyCodec(), state_codec(int))).items()


# ---------------------------------------------------------------- what a firing is called


def texts(batches: Iterable[Batch[Any]]) -> list[str]:
    return [
        parse_provenance(text).identity
        for batch in batches
        for text in format_provenance(batch, "job", Term(1), Epoch(1))
    ]


def fired(tmp_path: Path, batches: Sequence[Batch[Any]], function: Any = Tumbling) -> list[str]:
    with ExitStack() as closing:
        flow = pipeline(
            lambda s: s.key_by(lambda v: v % 5).process(function, name="fn").flat_map(lambda v: [v, v]),
            lambda v: v - 20,
        )
        bench = Bench(flow.plan(), tmp_path, closing)
        chain = bench.open()
        for batch in batches:
            chain.push("source", batch)
        return texts(bench.out)


def test_a_firing_is_called_after_operator_key_and_time_wherever_reads_begin_and_end(tmp_path: Path) -> None:
    values, times = list(range(40)), list(range(-20, 20))
    whole = fired(tmp_path / "a", [rows(values, times)])
    split = fired(tmp_path / "b", [rows(values[:7], times[:7]), *(rows([v], [v - 20]) for v in values[7:])])

    assert sorted(whole) == sorted(split)
    assert len(set(whole)) == len(whole) == 3 * 5 * 2
    first = parse_provenance(f"job.1.1/{whole[0]}")
    assert (first.source, first.topic, first.offset) == ("fn", "timers", -11)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(24)), st.sampled_from([1, 5, 100]))
def test_any_order_within_the_bound_gives_the_windows_of_a_batch_computation(
    order: Sequence[int], batch_size: int
) -> None:
    given = [*(TimestampedValue(time, time) for time in order), TimestampedValue(0, 1000)]
    flow = processed(Tumbling, strategy=bounded(0.024))
    found = run_local(flow, {"source": given}, batch_size=batch_size)

    assert found == {"sink": [("k", 10, sum(range(10))), ("k", 20, sum(range(10, 20))), ("k", 30, sum(range(20, 24)))]}


# ---------------------------------------------------------------- what is refused


def test_timers_without_event_time_are_refused_by_the_plan() -> None:
    flow = Pipeline("timed")
    flow.source(ListSource([]), name="s").key_by(lambda v: v).process(Tumbling, name="fn").sink(
        MemorySink(), name="out"
    )

    with pytest.raises(PlanError, match=r"would never fire.*with_timestamps"):
        flow.plan()


def test_so_they_are_where_only_one_of_two_streams_has_it() -> None:
    flow = Pipeline("timed")
    timed = flow.source(ListSource([]), name="a").with_timestamps(watermarks=monotonic())
    both = timed.union(flow.source(ListSource([]), name="b"))
    both.key_by(lambda v: v).process(Tumbling, name="fn").sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match="would never fire"):
        flow.plan()


def test_and_behind_a_fold_with_merge() -> None:
    flow = pipeline(
        lambda s: (
            s.key_by(lambda v: v)
            .fold(name="sum", init=int, step=lambda a, v: a + v, merge=lambda a, b: a + b)
            .key_by(lambda v: v[0], values=tuple[int, int])
            .process(Tumbling, name="fn")
        )
    )

    with pytest.raises(PlanError, match="merge="):
        flow.plan()


def test_and_in_a_loop() -> None:
    def body(stream: Stream[int]) -> tuple[Stream[int], Stream[int]]:
        made = stream.key_by(lambda v: v, values=int).process(Tumbling, name="fn").map(lambda v: v[2])
        return made, made.filter(lambda v: v > 1)

    flow = pipeline(lambda s: s.iterate(body, name="rounds", values=int))

    with pytest.raises(PlanError, match="in a loop"):
        flow.plan()


def test_times_are_given_right_behind_a_source() -> None:
    flow = Pipeline("timed")
    moved = flow.source(ListSource([]), name="s").rebalance(name="spread", values=int)
    moved.with_timestamps(watermarks=monotonic()).sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match=r"'spread'.*directly after the source"):
        flow.plan()


def test_who_defines_no_on_timer_cannot_set_one() -> None:
    class Forgetful(ProcessFunction[str, int, int]):
        def open(self, ctx: ProcessContext) -> None:
            self.timers = ctx.timers()

        def process(self, key: str, value: int) -> list[int]:
            return [value]

    with pytest.raises(PlanError, match="defines on_timer"):
        run_local(processed(Forgetful), {"source": []})


def test_a_time_where_there_is_none_is_an_error_that_says_what_to_do() -> None:
    class Says(ProcessFunction[str, int, int]):
        def open(self, ctx: ProcessContext) -> None:
            self.ctx = ctx

        def process(self, key: str, value: int) -> Iterable[int]:
            return [self.ctx.timestamp]

    flow = Pipeline("untimed")
    flow.source(ListSource([]), name="s").key_by(lambda v: v).process(Says, name="fn").sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match="put .with_timestamps"):
        run_local(flow, {"s": [1]})


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_a_bound_is_a_time(seconds: float) -> None:
    with pytest.raises(PlanError, match="at least 0"):
        bounded(seconds)


def test_an_idle_time_is_more_than_nothing() -> None:
    with pytest.raises(PlanError, match="greater than 0"):
        monotonic().with_idleness(0)


def test_a_silence_is_more_than_nothing() -> None:
    with pytest.raises(PlanError, match="must be greater than 0"):
        monotonic().with_clock(after=0)
