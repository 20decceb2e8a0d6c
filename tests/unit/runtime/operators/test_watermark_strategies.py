"""Watermarks of a strategy of one's own: what it knows of a split is in the checkpoint, and time never goes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from kafka_eos import Pipeline, PlanError, ProcessContext, ProcessFunction, WatermarkStrategy, generated, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import EnvironmentFailed, PoisonRecord
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import MIN_EVENT_TIME, Batch
from kafka_eos.plan import TimestampsNode
from kafka_eos.runtime.operators.event_time import WITH_EACH_BATCH
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin


class Known(msgspec.Struct, frozen=True):
    """Of a split: the last mark, and how many rows there were."""

    mark: int | None = None
    rows: int = 0


def on_event(known: Known | None, value: Any, time: int) -> Known:
    """A row "mark" says that all before it is there."""
    known = known or Known()
    return Known(time if value == "mark" else known.mark, known.rows + 1)


MARKED = generated(Known, on_event=on_event, watermark=lambda known: known.mark)


class Says(ProcessFunction[str, Any, int]):
    """The watermark, as each row finds it."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx = ctx

    def process(self, key: str, value: Any) -> Iterable[int]:
        return [self.ctx.watermark]

    def on_timer(self, key: str, time: int) -> Iterable[int]:
        return []


def flow(strategy: WatermarkStrategy = MARKED, **given: Any) -> Pipeline:
    pipeline = Pipeline("marked")
    source = pipeline.source(ListSource([]), name="source", **given)
    timed = source.with_timestamps(watermarks=strategy, name="times").key_by(lambda v: "k")
    timed.process(Says, name="fn").sink(MemorySink(), name="sink")
    return pipeline


class Bench:
    """Chains that go on with the checkpoints of others."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._storage, self._closing = directory, MemoryStorage(), ExitStack()

    def open(
        self,
        strategy: WatermarkStrategy,
        handles: list[StateHandle] | None = None,
        splits: tuple[str, ...] = ("t/0",),
        groups: range = range(128),
    ) -> None:
        plan = flow(strategy).plan()
        self.out: list[Any] = []
        self._backends = {}
        for node in plan.nodes:
            if node.stateful:
                own = [handle for handle in handles or () if handle.operator == node.name]
                path = self._directory / str(len(list(self._directory.iterdir())))
                by_split = isinstance(node, TimestampsNode)
                self._backends[node.name] = open_backend(
                    "memory", node.name, path, groups, own, self._storage, by_split=by_split
                )
        take = lambda batch: self.out.extend(batch.values)  # noqa: E731
        self._chain = OperatorChain(plan, self._backends, {"sink": take}, pace=WITH_EACH_BATCH)
        self._closing.callback(self._chain.close)
        self._chain.assign("source", splits)

    def read(self, value: Any, time: int, partition: int = 0) -> None:
        self._chain.push("source", Batch([value], range(1), ListOrigin("source", "t", partition, 0, [value], [time])))

    def reached(self) -> dict[str, int]:
        """The event time of each split that has had rows."""
        (found,) = self._chain.event_time.by_split.values()
        return found

    def stop(self) -> list[StateHandle]:
        self._chain.flush()
        return [backend.snapshot(Epoch(1))(self._storage) for backend in self._backends.values()]

    def close(self) -> None:
        self._closing.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_event_time_goes_on_when_the_strategy_says_so_and_to_where_it_says() -> None:
    rows = [
        TimestampedValue("a", 50),
        TimestampedValue("mark", 30),
        TimestampedValue("a", 40),
        TimestampedValue("mark", 70),
        TimestampedValue("a", 80),
    ]

    assert run_local(flow(), {"source": rows}, batch_size=1) == {"sink": [MIN_EVENT_TIME, MIN_EVENT_TIME, 30, 30, 70]}


def test_it_never_goes_back_whatever_is_said() -> None:
    rows = [TimestampedValue("mark", 70), TimestampedValue("mark", 30), TimestampedValue("a", 80)]

    assert run_local(flow(), {"source": rows}, batch_size=1)["sink"] == [MIN_EVENT_TIME, 70, 70]


def test_the_slowest_split_counts_and_one_that_says_nothing_holds_back(bench: Bench) -> None:
    bench.open(MARKED, splits=("t/0", "t/1"))
    bench.read("mark", 50)
    bench.read("a", 60, partition=1)
    bench.read("mark", 20, partition=1)
    bench.read("a", 61)

    assert bench.out == [MIN_EVENT_TIME, MIN_EVENT_TIME, MIN_EVENT_TIME, 20]


def test_what_is_known_of_a_split_goes_on_after_a_restart_with_whoever_reads_it(bench: Bench) -> None:
    bench.open(MARKED, splits=("t/0", "t/1"))
    bench.read("mark", 50)
    bench.read("mark", 20, partition=1)
    handles = bench.stop()
    stored = [state for handle in handles for state in handle.states if handle.operator == "times"]
    assert [state["name"] for state in stored] == ["generated"]

    bench.open(MARKED, handles, splits=("t/1",), groups=key_group_range(1, 2))
    bench.read("a", 21, partition=1)
    bench.read("mark", 90, partition=1)
    bench.read("a", 91, partition=1)
    assert bench.out == [20, 20, 90]


@pytest.mark.parametrize(("strategy", "behind"), [(MARKED, 0), (monotonic(), 1)], ids=["own", "monotonic"])
def test_each_of_several_splits_goes_on_with_whoever_reads_it_and_is_left_to_it(
    bench: Bench, strategy: WatermarkStrategy, behind: int
) -> None:
    first = {f"t/{n}": 100 - n for n in range(6)}
    bench.open(strategy, splits=(*first,))
    for split, time in first.items():
        bench.read("mark", time, partition=int(split[2:]))
    handles, stopped = bench.stop(), []

    for number, mine in enumerate((("t/1", "t/3", "t/4", "t/9"), ("t/0", "t/2", "t/5"))):
        bench.open(strategy, handles, mine, key_group_range(number, 2))
        assert bench.reached() == {split: first[split] - behind for split in mine if split in first}
        for split in mine:
            bench.read("mark", 200 - int(split[2:]), partition=int(split[2:]))
        stopped.append(bench.stop())
    for one, other in (stopped, stopped[::-1]):
        bench.open(strategy, [*one, *other], splits=("t/9", *first))
        assert bench.reached() == {split: 200 - int(split[2:]) - behind for split in ("t/9", *first)}


@pytest.mark.parametrize(("before", "after", "found"), [(MARKED, monotonic(), 69), (monotonic(), MARKED, 49)])
def test_a_job_may_change_its_strategy_and_event_time_stays(
    bench: Bench, before: WatermarkStrategy, after: WatermarkStrategy, found: int
) -> None:
    bench.open(before)
    bench.read("mark", 50)
    handles = bench.stop()

    bench.open(after, handles)
    bench.read("a", 70)
    bench.read("a", 60)
    assert bench.out[-1] == found
    assert [handle.states[0]["name"] for handle in bench.stop() if handle.operator == "times"] == [
        "newest" if after == monotonic() else "generated"
    ]


def _fails(known: Any, value: Any, time: int) -> Any:
    raise LookupError("unknown")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (generated(int, on_event=_fails, watermark=int), "LookupError: unknown"),
        (generated(int, on_event=lambda known, value, time: None, watermark=int), "on_event returned None"),  # type: ignore[arg-type,return-value]
        (generated(int, on_event=lambda known, value, time: 2**64, watermark=lambda known: 1), "cannot be stored"),
        (generated(int, on_event=lambda known, value, time: 1, watermark=lambda known: 10**18), "whole number"),
        (generated(int, on_event=lambda known, value, time: 1, watermark=lambda known: "now"), "whole number"),  # type: ignore[arg-type,return-value]
    ],
)
def test_what_goes_wrong_there_stops_the_job_with_the_record(strategy: WatermarkStrategy, why: str) -> None:
    pipeline = flow(strategy, on_error=DeadLetters(MemorySink()))

    with pytest.raises(PoisonRecord, match=rf"source/0/0(?s:.)*'times'(?s:.)*{why}(?s:.)*generated"):
        run_local(pipeline, {"source": [TimestampedValue(1, 5)]})


def test_the_environments_fault_takes_the_job_back() -> None:
    def offline(known: Any, value: Any, time: int) -> int:
        raise ConnectionError

    with pytest.raises(EnvironmentFailed):
        run_local(flow(generated(int, on_event=offline, watermark=int)), {"source": [TimestampedValue(1, 5)]})


def test_what_could_not_be_stored_or_awaited_is_refused_with_the_users_line() -> None:
    async def waits(known: Any, value: Any, time: int) -> int:
        return 1

    with pytest.raises(PlanError, match=r"(?s)on_event of generated is a coroutine.*test_watermark_strategies.py"):
        flow(generated(int, on_event=waits, watermark=int))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"(?s)path.*test_watermark_strategies.py"):
        flow(generated(Unstorable, on_event=lambda known, value, time: Unstorable(), watermark=lambda known: 1))


class Unstorable(BaseModel):
    path: Path = Path()


def test_explain_names_it() -> None:
    assert "as its generator says, idle after 5 s" in flow(MARKED.with_idleness(5)).explain()
