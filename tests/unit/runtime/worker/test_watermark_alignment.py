"""Workers that keep their splits together: what is read is in bounds, and all of it is read, however late they hear."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos import Pipeline, PlanError, WatermarkStrategy, monotonic
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.plan import Plan
from kafka_eos.protocol.watermark_alignment import NO_SPLIT, SlowestSplits
from kafka_eos.runtime.operators.event_time import WITH_EACH_BATCH, WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.worker.watermark_alignment import WatermarkAligner
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink

STORAGE = MemoryStorage()
MILLISECONDS = 0.001


def together(drift: int, group: str = "default") -> WatermarkStrategy:
    return monotonic().with_alignment(max_drift=drift * MILLISECONDS, group=group)


class Worker:
    """One of several, with a share of the splits of every source."""

    def __init__(
        self,
        plan: Plan,
        splits: Mapping[str, set[str]],
        chain: OperatorChain,
        ends: Mapping[str, Positions],
        alone: bool,
    ) -> None:
        self.now, self._chain = 0.0, chain
        task = TaskContext(JobContext("job", Term(1), {}), 0, 1, "source", Services())
        self.readers = {}
        for source in plan.sources:
            positions = {SplitId(split): {"index": 0} for split in sorted(splits[source.name])}
            self.readers[source.name] = source.source.reader(task, positions)
            chain.assign(source.name, list(positions))
        self.drift = WatermarkAligner.of(plan, self.readers, chain.event_time.get_operator, ends, alone)
        self._splits: dict[str, list[Any]] = {}
        for source in plan.sources:
            assert isinstance(source.source, ListSource)
            self._splits.update(source.source.splits)

    def comes(self, split: str, *times: int) -> None:
        """Rows that can be read from now on."""
        self._splits[split].extend(times)

    def read(self, most: int) -> list[tuple[str, int]]:
        """Once from every source; the splits that brought something, and their newest times."""
        self.drift.update_pauses()
        found: list[tuple[str, int]] = []
        for name, reader in self.readers.items():
            batch = reader.poll(most, 0.0)
            if batch is None:
                self._chain.note_empty_read(name)
            else:
                found.append((f"{name}/{batch.origin.partitions[0]}", max(batch.values)))
                self._chain.push(name, batch)
        return found

    @property
    def idle(self) -> set[str]:
        return {
            split
            for split, each in self._chain.event_time.get_operator("in-times").get_split_progress().items()
            if each.idle
        }

    @property
    def time(self) -> int:
        """How far event time has come behind the only source."""
        return self._chain.event_time.get_operator("in-times").watermark(None).time

    @property
    def lag(self) -> int:
        return sum(reader.lag() or 0 for reader in self.readers.values())

    @property
    def times(self) -> dict[str, int]:
        """How far each split is that has brought something."""
        return {split: time for each in self._chain.event_time.by_split.values() for split, time in each.items()}


@contextmanager
def workers(
    sources: Mapping[str, tuple[WatermarkStrategy, list[list[int]]]],
    number: int = 1,
    ends: Mapping[str, Positions] | None = None,
) -> Iterator[list[Worker]]:
    """``sources``: by name, the strategy and the times of each split."""
    pipeline = Pipeline("p")
    for name, (strategy, splits) in sources.items():
        source = ListSource([], splits=len(splits), name=name)
        for at, times in enumerate(splits):
            source.splits[SplitId(f"{name}/{at}")].extend(times)
        stream = pipeline.source(source, name=name).with_timestamps(int, watermarks=strategy, name=f"{name}-times")
        stream.sink(MemorySink(), name=f"{name}-out")
    plan = pipeline.plan()
    with ExitStack() as closing:
        directory = Path(closing.enter_context(TemporaryDirectory()))
        found = []
        for subtask in range(number):
            backends = {
                node.name: open_backend(
                    "memory", node.name, directory / f"{node.name}-{subtask}", range(128), (), STORAGE, by_split=True
                )
                for node in plan.nodes
                if node.stateful
            }
            clock = Clock()
            pace = WatermarkSchedule(WITH_EACH_BATCH.every, clock)
            chain = OperatorChain(plan, backends, {sink.name: lambda batch: None for sink in plan.sinks}, pace=pace)
            closing.callback(chain.close)
            share = {
                name: {f"{name}/{at}" for at in range(len(splits)) if at % number == subtask}
                for name, (_, splits) in sources.items()
            }
            worker = Worker(plan, share, chain, ends or {}, number == 1)
            clock.of = worker
            found.append(worker)
        yield found


class Clock:
    of: Worker | None = None

    def __call__(self) -> float:
        return 0.0 if self.of is None else self.of.now


def test_a_split_that_is_a_day_ahead_is_read_once_and_waits() -> None:
    slow, fast = list(range(0, 1000, 10)), list(range(86_400_000, 86_401_000, 10))
    with workers({"slow": (together(60), [slow]), "fast": (together(60), [fast])}) as (worker,):
        found = [worker.read(5) for _ in range(20)]

        assert [name for names in found for name, _ in names] == ["slow/0", "fast/0"] + ["slow/0"] * 19
        worker.read(5)
        assert [name for name, _ in worker.read(5)] == ["fast/0"], "the slow one has nothing more"


def test_sources_of_other_groups_do_not_wait_for_each_other() -> None:
    slow, fast = list(range(100)), list(range(86_400_000, 86_400_100))
    with workers({"slow": (together(60), [slow]), "fast": (together(60, "other"), [fast])}) as (worker,):
        assert [len(worker.read(5)) for _ in range(20)] == [2] * 20


def test_a_split_that_says_nothing_is_waited_for_until_it_is_idle_if_the_strategy_says_when() -> None:
    strategy = together(60).with_idleness(1.5)
    with workers({"in": (strategy, [[], list(range(0, 1000, 100))])}) as (worker,):
        assert [worker.read(1) for _ in range(3)] == [[("in/1", 0)], [], []]
        for _ in range(2):
            worker.now += 1.0
            assert worker.read(1) == []
        assert [worker.read(1) for _ in range(2)] == [[("in/1", 100)], [("in/1", 200)]]


def test_a_split_that_waits_is_not_idle() -> None:
    """Else event time would go on to where it will be read from, when it waits for long enough."""
    strategy = together(60).with_idleness(1.5)
    with workers({"in": (strategy, [[0, 10, 20, 30], [1000, 1001]])}) as (worker,):
        found = [worker.read(1), worker.read(1)]
        for _ in range(3):
            worker.now += 1.0
            found.append(worker.read(1))

        assert [split for brought in found for split, _ in brought] == ["in/0", "in/1", "in/0", "in/0", "in/0"]
        assert worker.idle == set()


@pytest.mark.parametrize("silent", [1, 6])
def test_what_a_silent_split_gets_while_it_waits_is_not_late(silent: int) -> None:
    """It goes on and is not read at once: the one that was slow is in front of it. It has been idle, or not yet."""
    strategy = together(60).with_idleness(1.5)
    with workers({"in": (strategy, [[], [1000]])}) as (worker,):
        worker.read(1)
        for _ in range(silent):
            worker.now += 1.0
            worker.read(1)
        assert worker.idle == ({"in/0", "in/1"} if silent > 1 else set())
        worker.comes("in/0", 0, 500, 990, 1500)
        worker.read(1)
        worker.comes("in/1", 1001)
        found = []
        while not found or found[-1] != ("in/1", 1001):
            worker.now += 0.5
            assert worker.time < 1001
            found += worker.read(1)

        assert [time for _, time in found] == [500, 990, 1500, 1001]
        assert worker.idle == set()


def test_a_bounded_run_does_not_wait_for_a_split_that_is_at_its_end() -> None:
    strategy = together(60).with_idleness(10**6)
    ends = {"in": {SplitId("in/0"): {"index": 1}, SplitId("in/1"): {"index": 10}}}
    with workers({"in": (strategy, [[0], list(range(1000, 2000, 100))])}, ends=ends) as (worker,):
        found = [worker.read(1) for _ in range(11)]

        assert [name for names in found for name, _ in names] == ["in/0"] + ["in/1"] * 10


def test_a_worker_of_several_reads_no_further_than_its_first_batch_before_it_has_heard_of_the_others() -> None:
    with workers({"in": (together(60), [[0, 100, 200], [5, 105, 205]])}, 2) as (one, other):
        assert [one.read(1) for _ in range(3)] == [[("in/0", 0)], [], []]
        assert other.read(1) == [("in/1", 5)]
        other.drift.update_pauses()
        one.drift.set_remote_slowest(other.drift.local_slowest)
        assert [one.read(1) for _ in range(3)] == [[("in/0", 100)], [], []]


def test_a_worker_says_how_far_it_is_when_that_has_changed() -> None:
    with workers({"in": (together(60), [[0, 100], [5]])}, 2) as (one, _):
        one.drift.update_pauses()
        assert one.drift.take_changes() is not None
        assert one.drift.take_changes() is None
        one.read(1)
        one.drift.update_pauses()
        assert one.drift.take_changes() == {"default": -1}


SPLITS = st.lists(st.lists(st.integers(0, 200), max_size=30).map(sorted), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(SPLITS, min_size=1, max_size=2), st.integers(0, 50), st.integers(1, 3), st.integers(1, 4), st.randoms())
def test_all_is_read_and_none_is_ahead_by_more_than_it_may_and_a_batch(
    sources: list[list[list[int]]], drift: int, number: int, most: int, chance: random.Random
) -> None:
    """Of any number of workers, with words that come late or soon. Times of a split go up, so what is heard is past."""
    strategy = together(drift)
    with workers({f"s{n}": (strategy, splits) for n, splits in enumerate(sources)}, number) as found:
        said = SlowestSplits.of(range(number))
        under_way: list[tuple[int, Mapping[str, int]]] = []
        quiet = 0
        while any(worker.lag for worker in found):
            subtask = chance.randrange(number)
            worker = found[subtask]
            least = min(_slow(each) for each in found)
            before = worker.times
            brought = worker.read(most)
            for split, _ in brought:
                if split in before:
                    assert before[split] <= least + drift, "it was ahead, and read"
            if (news := worker.drift.take_changes()) is not None:
                said = said.update(subtask, news)
                under_way += [(n, each) for n, each in said.of_others().items() if n != subtask]
            # Words to one worker come in order; how many have come by now is chance.
            for _ in range(chance.randrange(len(under_way) + 1)):
                target, each = under_way.pop(0)
                found[target].drift.set_remote_slowest(each)
            quiet = 0 if brought else quiet + 1
            assert quiet < 1000, "nothing is read any more"


def _slow(worker: Worker) -> int:
    """The time of the slowest that has something left."""
    left = {
        split
        for reader in worker.readers.values()
        for split in reader.positions().keys() - set(reader.list_splits_at_end())
    }
    return min((worker.times.get(split, MIN_EVENT_TIME) for split in left), default=NO_SPLIT)


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan"), "5", None])
def test_a_bound_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(PlanError, match="max_drift must be at least 0 seconds"):
        monotonic().with_alignment(max_drift=wrong)


@pytest.mark.parametrize("wrong", ["", 1, None])
def test_a_group_has_a_name(wrong: Any) -> None:
    with pytest.raises(PlanError, match="group must be a string"):
        monotonic().with_alignment(max_drift=1, group=wrong)
