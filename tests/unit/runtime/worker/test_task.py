"""Tasks of several subtasks with a memory between them: every snapshot is a consistent cut, in every order of events.

The network is two queues a channel: what has not left yet, and what cannot be overtaken any more. A seed decides what
happens next; a failing one is in the test's id.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.core.ids import Term
from kafka_eos.core.records import MIN_EVENT_TIME, Batch, RecordCounts, Watermark
from kafka_eos.plan import ChainSpec
from kafka_eos.protocol.barrier_alignment import CheckpointMode
from kafka_eos.runtime.exchange.input_queues import Barrier, BatchOrFrame, InputChannel
from kafka_eos.runtime.exchange.spilling_queue import SpillingQueue, size_of
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.segment_task import Task, TaskParts
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import seeds

SUBTASKS = 3
ROWS = 40
WINDOW = 40
"""Bytes that may be on their way from one subtask to another: some five rows."""
SOURCE = ChainSpec(0, ("in",), ("key", "stay"), ("in", "key", "stay"))
TARGET = ChainSpec(1, ("key", "stay"), (), ("out",))
KEY, STAY = 0, 1
EDGES = {"key": KEY, "stay": STAY}
"""Every row goes both ways: to the subtask of its key, and as a copy through a forward exchange."""
COPY = 1000
CAPACITY = 1000
"""Rows that may wait for answers in a subtask; a queue of its own is always taken in."""
Row = tuple[int, int]
"""(sender, number); a copy has ``COPY`` more."""


def batch_of(rows: list[Row]) -> Batch[Row]:
    return Batch(rows, range(len(rows)), ListOrigin("in", "topic", 0, 0, rows))


def frame_of(rows: list[Row]) -> bytes:
    return json.dumps(rows).encode()


def rows_of(rows: BatchOrFrame) -> list[Row]:
    return [(s, n) for s, n in json.loads(rows)] if isinstance(rows, bytes) else rows.values


@dataclass
class Counting:
    """A reader of numbered rows."""

    subtask: int
    next: int = 0

    def poll(self, most: int, wait: float) -> Batch[Row] | None:
        end = min(ROWS, self.next + most)
        rows = [(self.subtask, n) for n in range(self.next, end)]
        self.next = end
        return batch_of(rows) if rows else None

    def positions(self) -> Any:
        return {"split": {"offset": self.next}}


@dataclass
class Writing:
    """A writer: what it seals is the rows since the epoch before."""

    rows: list[Row] = field(default_factory=list)
    sealed: list[int] = field(default_factory=list)

    def seal(self, name: Any) -> Any:
        assert self.sealed in ([], list(range(1, name.epoch.n))), "an epoch was left out, or sealed twice"
        self.sealed.append(name.epoch.n)
        rows, self.rows = self.rows, []
        return lambda: rows


class Logged(list[bytes]):
    """A log that can be read."""

    add = list.append
    dropped = False

    def drop(self) -> None:
        self.dropped = True


class Subtasks:
    """All subtasks, and what is between them. With a ``disk``, blocked channels hold up to ``may_hold`` bytes there.

    ``asks``: copies wait for answers, which come by chance.
    """

    def __init__(
        self,
        mode: CheckpointMode,
        aligned_timeout: float,
        seed: int,
        may_hold: int = 0,
        disk: Path | None = None,
        asks: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.may_hold, self.disk, self.asks = may_hold, disk, asks
        self.on_the_way: dict[tuple[int, int], int] = defaultdict(int)
        """Bytes that a sender has no credit back for, by sender and receiver."""
        self.unsent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.urgent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        """Barriers that overtake what is unsent."""
        self.sent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.sliced = 0
        """Snapshots that were taken while something due was not done."""
        self.subtasks = [Subtask(self, n, mode, aligned_timeout) for n in range(SUBTASKS)]

    def target(self, row: Row) -> int:
        return row[0] if row[1] >= COPY else (row[0] * 7 + row[1] * 5) % SUBTASKS

    def step(self) -> None:
        """One thing happens somewhere."""
        subtask = self.random.choice(self.subtasks)
        peer = self.random.choice([other.number for other in self.subtasks if other is not subtask])
        match self.random.randrange(4):
            case 0:
                subtask.tasks[0].read(self.random.randint(1, 4), 0.0)
            case 1:
                subtask.tasks[1].process(self.random.randint(1, 3))
            case 2:
                channel = subtask.number, peer
                if (queue := self.urgent[channel] or self.unsent[channel]) and self.may_leave(channel, queue[0]):
                    self.sent[channel].append(queue.popleft())
            case _:
                self.arrive(peer, subtask)

    def may_leave(self, channel: tuple[int, int], entry: Any) -> bool:
        """Take credit for rows, if there is any. One frame may pass at any time."""
        size = len(entry[1]) if entry[0] == "rows" else 0
        if size and self.on_the_way[channel] and self.on_the_way[channel] + size > WINDOW:
            return False
        self.on_the_way[channel] += size
        return True

    def arrive(self, sender: int, receiver: Subtask) -> None:
        if queue := self.sent[sender, receiver.number]:
            kind, what, aligned = queue.popleft()
            task = receiver.tasks[1]
            match kind:
                case "rows":
                    task.receive_rows(KEY, sender, what)
                case "watermark":
                    task.receive_watermark(KEY, sender, what)
                case _:
                    task.receive_barrier(KEY, sender, what, aligned)

    def work(self, task: Task) -> None:
        """All that the task can do alone, though its exits have no room now and then."""
        for _ in range(1000):
            task.process(5)

    def drain(self) -> None:
        for _ in range(10_000):
            self.step()
            read = all(s.reader.next == ROWS and s.tasks[1].idle for s in self.subtasks)
            if read and not any([*self.sent.values(), *self.unsent.values(), *self.urgent.values()]):
                return
        raise AssertionError("rows are stuck")


@dataclass
class SourceChain:
    """What becomes of the rows of the source: see ``OperatorChain``."""

    subtask: Subtask
    counts: RecordCounts = field(default_factory=RecordCounts)
    has_due_work: bool = False

    def push(self, head: str, batch: Batch[Row]) -> None:
        self.subtask.route(batch)

    def note_empty_read(self, source: str) -> None:
        """No row, and no time."""

    def flush(self, *, whole: bool) -> None:
        """It collects nothing."""

    def emit_answered(self) -> int:
        return 0


@dataclass
class TargetChain:
    """What becomes of rows behind the exchanges."""

    subtask: Subtask
    counts: RecordCounts = field(default_factory=RecordCounts)
    due: int = 0
    """Slices of what event time has made due, which are not done yet."""
    waiting: list[Row] = field(default_factory=list)
    """For their answers."""

    @property
    def has_due_work(self) -> bool:
        return self.due > 0

    def push(self, head: str, batch: Batch[Row]) -> None:
        assert not self.has_due_work, "rows overtake what is due"
        if self.subtask.cluster.asks and head == "stay":
            assert len(self.waiting) < CAPACITY, "nobody has looked whether more may come"
            self.waiting += batch.values
        else:
            self.subtask.done_with(batch.values)
        assert all(n % COPY > self.subtask.times[head] for _, n in batch.values), "a row is late"

    def continue_due(self) -> None:
        assert self.has_due_work
        self.due -= 1

    def emit_answered(self) -> int:
        assert not self.has_due_work, "answers overtake what is due"
        answered = self.subtask.cluster.random.choice((0, 0, 0, 0, 1, 2))
        answers, self.waiting = self.waiting[:answered], self.waiting[answered:]
        self.subtask.done_with(answers)
        return len(answers)

    def is_full(self, head: str) -> bool:
        return head == "stay" and len(self.waiting) >= CAPACITY

    def has_pending(self, head: str) -> bool:
        return head == "stay" and bool(self.waiting)

    def pass_barrier(self, head: str) -> bool:
        return False

    def list_pending_rows(self, head: str) -> list[Batch[Row]]:
        return [batch_of(self.waiting)] if self.has_pending(head) else []

    def advance(self, head: str, watermark: Watermark) -> None:
        times = self.subtask.times
        assert watermark.time > times[head]
        assert not self.has_due_work, "one watermark overtakes another"
        times[head] = watermark.time
        self.due = self.subtask.cluster.random.choice((0, 0, 1, 3))

    def flush(self, *, whole: bool) -> None:
        assert not (whole and self.has_due_work), "what is due would be left under way"
        self.subtask.cluster.sliced += self.has_due_work


@dataclass
class Subtask:
    """One worker: see ``TaskSession`` and ``Exchanges``."""

    cluster: Subtasks
    number: int
    mode: CheckpointMode
    aligned_timeout: float
    processed_rows: list[Row] = field(default_factory=list)
    at_snapshot: dict[int, list[Row]] = field(default_factory=dict)
    done: dict[tuple[int, int], ChainSnapshot] = field(default_factory=dict)
    prepared: list[Row] = field(default_factory=list)
    """Output that the answers so far name."""
    prepared_at: dict[int, list[Row]] = field(default_factory=dict)
    logs: list[tuple[int, int, Logged]] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=lambda: {"key": MIN_EVENT_TIME, "stay": MIN_EVENT_TIME})
    """How far event time has come, by head. The number of a row is its time."""
    said: int = MIN_EVENT_TIME
    """The newest watermark that this one's source has sent."""
    waiting_sources: frozenset[str] = frozenset()
    excluded_sources: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.reader = Counting(self.number)
        rest: Any = (Term(1), 1, self.mode, self.aligned_timeout, self, self)
        inputs = [*(self.input(KEY, sender) for sender in range(SUBTASKS)), self.input(STAY, self.number)]
        backends: Any = {"state": self}
        self.writer = Writing()
        writers: Any = {"out": self.writer}
        source, target = [SourceChain(self), TargetChain(self)]  # type: Any, Any
        self.tasks = [
            Task(SOURCE, TaskParts(source, {"in": self.reader}, {}, {}), [], EDGES, *rest),
            Task(TARGET, TaskParts(target, {}, backends, writers), inputs, EDGES, *rest),
        ]

    def input(self, edge: int, sender: int) -> InputChannel:
        if self.cluster.disk is None:
            return InputChannel(edge, sender)

        def encode(entry: Any) -> bytes | None:
            return None if isinstance(entry, Barrier | Watermark) else self.freeze(edge, entry)

        file = self.cluster.disk / f"{self.number}-{edge}-{sender}"
        queue = SpillingQueue[Any](file, 2 * WINDOW, encode, size_of)
        return InputChannel(edge, sender, queue=queue, spill_limit=self.cluster.may_hold)

    def snapshot(self, epoch: Any) -> Any:
        """The state of the target segment is what it has processed."""
        self.at_snapshot[epoch.n] = list(self.processed_rows)

    def pending_timers(self) -> None:
        """It has none."""

    def route(self, batch: Batch[Row]) -> None:
        """Send each row to the subtask of its key, and its copy to this one."""
        parts: dict[int, list[Row]] = defaultdict(list)
        for row in batch.values:
            parts[self.cluster.target(row)].append(row)
        for target, rows in parts.items():
            if target == self.number:
                self.tasks[1].receive_rows(KEY, target, batch_of(rows))
            else:
                self.cluster.unsent[self.number, target].append(("rows", frame_of(rows), False))
        self.tasks[1].receive_rows(STAY, self.number, batch_of([(s, n + COPY) for s, n in batch.values]))
        if self.cluster.random.random() < 0.5:
            self.send_watermark(Watermark(self.reader.next - 1))

    def done_with(self, values: list[Row]) -> None:
        self.processed_rows += values
        self.writer.rows += values

    def send_watermark(self, watermark: Watermark) -> None:
        self.said = watermark.time
        for target in range(SUBTASKS):
            if target != self.number:
                self.cluster.unsent[self.number, target].append(("watermark", watermark, False))
        for edge in EDGES.values():
            self.tasks[1].receive_watermark(edge, self.number, watermark)

    def decode(self, edge: int, rows: BatchOrFrame) -> Batch[Row]:
        return batch_of(rows_of(rows))

    def freeze(self, edge: int, rows: BatchOrFrame) -> bytes:
        return frame_of(rows_of(rows))

    def processed(self, edge: int, sender: int, rows: BatchOrFrame) -> None:
        return None

    def credit(self, edge: int, sender: int, size: int) -> None:
        if sender != self.number:
            self.cluster.on_the_way[sender, self.number] -= size
            assert self.cluster.on_the_way[sender, self.number] >= 0, "credit was given twice"

    def has_room(self, edge: int) -> bool:
        return self.cluster.random.random() < 0.8

    def open_log(self, segment: ChainSpec, epoch: int, edge: int, name: str) -> Any:
        self.logs.append((segment.index, epoch, Logged()))
        return self.logs[-1][-1]

    def send_barrier(self, edge: int, epoch: int, overtake: bool, aligned: bool) -> list[bytes]:
        overtaken: list[bytes] = []
        for target in range(SUBTASKS):
            queue = self.cluster.unsent[self.number, target]
            if target == self.number or edge == STAY:
                continue
            if overtake:
                kept = [entry for entry in queue if entry[0] != "barrier"]  # older ones are given up
                queue.clear()
                queue.extend(kept)
                overtaken += [what for kind, what, _ in kept if kind == "rows"]
                self.cluster.urgent[self.number, target].append(("barrier", epoch, aligned))
            else:
                queue.append(("barrier", epoch, aligned))
        return overtaken

    def deliver_barrier(self, edge: int, epoch: int, aligned: bool) -> None:
        self.tasks[1].receive_barrier(edge, self.number, epoch, aligned)

    def on_captured(self, segment: ChainSpec, captured: ChainSnapshot) -> None:
        assert (segment.index, captured.epoch) not in self.done
        self.done[segment.index, captured.epoch] = captured
        if segment is TARGET:
            self.prepare(captured.precommits)
            self.prepared_at[captured.epoch] = list(self.prepared)

    def prepare(self, precommits: Any) -> None:
        for precommit in precommits:
            self.prepared += precommit()

    def abort(self, epoch: int) -> None:
        """The supervisor gave the epoch up."""
        for task in self.tasks:
            self.prepare(task.abort(epoch))


def run(
    mode: CheckpointMode,
    aligned_timeout: float,
    seed: int,
    last_aligned: bool,
    may_hold: int = 0,
    disk: Path | None = None,
    asks: bool = False,
) -> tuple[Subtasks, list[int]]:
    """Some epochs one after the other, as the supervisor begins them, then the rest of the input."""
    cluster = Subtasks(mode, aligned_timeout, seed, may_hold, disk, asks)
    epochs = list(range(1, 5))
    for epoch in epochs:
        for _ in range(cluster.random.randint(0, 60)):
            cluster.step()
        for subtask in cluster.random.sample(cluster.subtasks, SUBTASKS):
            subtask.tasks[0].trigger(epoch, aligned=last_aligned and epoch == epochs[-1])
            for _ in range(cluster.random.randint(0, 10)):
                cluster.step()
        for _ in range(20_000):
            if all((segment, epoch) in s.done for s in cluster.subtasks for segment in (0, 1)):
                break
            cluster.step()
        else:
            raise AssertionError(f"epoch {epoch} is never complete")
    cluster.drain()
    assert not any(cluster.on_the_way.values()), "a sender did not get its credit back"
    for subtask in cluster.subtasks:
        assert subtask.times == {"key": min(s.said for s in cluster.subtasks), "stay": subtask.said}
    return cluster, epochs


def test_barriers_come_between_two_slices_of_what_is_due_but_those_that_leave_nothing_under_way() -> None:
    clusters = [run(CheckpointMode.UNALIGNED, 0.0, seed, last_aligned=True)[0] for seed in range(20)]

    assert sum(cluster.sliced for cluster in clusters) > 0


def below(cluster: Subtasks, epoch: int) -> dict[int, list[Row]]:
    """By target: the rows that the sources had read when they took their part of the epoch."""
    found: dict[int, list[Row]] = {n: [] for n in range(SUBTASKS)}
    for subtask in cluster.subtasks:
        end = subtask.done[0, epoch].positions["in"]["split"]["offset"]  # type: ignore[index]
        for n in range(int(str(end))):
            for row in ((subtask.number, n), (subtask.number, n + COPY)):
                found[cluster.target(row)].append(row)
    return found


def stored(cluster: Subtasks, epoch: int) -> dict[int, list[Row]]:
    """By target: what a restart would have: state, then rows that had arrived, then rows that had not left."""
    found = {s.number: list(s.at_snapshot[epoch]) for s in cluster.subtasks}
    for kind in ("received", "overtaken"):
        for subtask in cluster.subtasks:
            for segment in (0, 1):
                for rows in chain.from_iterable(getattr(subtask.done[segment, epoch], kind).values()):
                    for row in rows_of(rows):
                        found[cluster.target(row)].append(row)
    return found


@pytest.mark.parametrize(
    ("mode", "aligned_timeout"),
    [
        (CheckpointMode.ALIGNED, math.inf),
        (CheckpointMode.UNALIGNED, 0.0),
        (CheckpointMode.UNALIGNED, 1e-6),
        (CheckpointMode.UNALIGNED, math.inf),
    ],
    ids=["aligned", "unaligned", "switches over", "never switches"],
)
@pytest.mark.parametrize("seed", seeds(20))
def test_every_snapshot_is_a_consistent_cut(mode: CheckpointMode, aligned_timeout: float, seed: int) -> None:
    cluster, epochs = run(mode, aligned_timeout, seed, last_aligned=bool(seed % 2))

    for epoch in epochs:
        wanted, found = below(cluster, epoch), stored(cluster, epoch)
        for target in range(SUBTASKS):
            for way in product(range(SUBTASKS), (True, False)):
                channel = [row for row in wanted[target] if _way(row) == way]
                assert [row for row in found[target] if _way(row) == way] == channel, (epoch, way, target)
        under_way = any(d.received or any(d.overtaken.values()) for s in cluster.subtasks for d in
                        (s.done[0, epoch], s.done[1, epoch]))  # fmt: skip
        assert not (under_way and (mode is CheckpointMode.ALIGNED or aligned_timeout == math.inf))
        assert not (under_way and seed % 2 and epoch == epochs[-1]), "an aligned epoch left rows under way"
    for subtask in cluster.subtasks:
        assert len(subtask.processed_rows) == len(set(subtask.processed_rows))
    assert sum(len(s.processed_rows) for s in cluster.subtasks) == 2 * SUBTASKS * ROWS


@pytest.mark.parametrize(
    ("mode", "aligned_timeout"),
    [(CheckpointMode.ALIGNED, math.inf), (CheckpointMode.UNALIGNED, 0.0), (CheckpointMode.UNALIGNED, 1e-6)],
    ids=["aligned", "unaligned", "switches over"],
)
def test_rows_that_wait_for_answers_are_in_every_cut_but_in_one_that_leaves_nothing(
    mode: CheckpointMode, aligned_timeout: float
) -> None:
    held = 0
    for seed in range(40):
        cluster, epochs = run(mode, aligned_timeout, seed, last_aligned=True, asks=True)
        for epoch in epochs:
            wanted, found = below(cluster, epoch), stored(cluster, epoch)
            for target, *way in product(range(SUBTASKS), range(SUBTASKS), (True, False)):
                channel = [row for row in wanted[target] if _way(row) == tuple(way)]
                assert [row for row in found[target] if _way(row) == tuple(way)] == channel, (seed, epoch, way, target)
            parts = [s.done[1, epoch].received.get(STAY) for s in cluster.subtasks]
            assert epoch < epochs[-1] or not any(parts), "an aligned epoch left rows that wait"
            held += sum(bool(part) for part in parts)
        assert sum(len(set(s.processed_rows)) for s in cluster.subtasks) == 2 * SUBTASKS * ROWS
    assert held > 20


def _way(row: Row) -> tuple[int, bool]:
    """Sender, and whether it stayed there: within a way rows keep their order."""
    return row[0], row[1] >= COPY


@pytest.mark.parametrize(
    ("mode", "aligned_timeout"),
    [(CheckpointMode.ALIGNED, math.inf), (CheckpointMode.UNALIGNED, 0.0), (CheckpointMode.UNALIGNED, 1e-6)],
    ids=["aligned", "unaligned", "switches over"],
)
@pytest.mark.parametrize("seed", seeds(30))
def test_epochs_that_are_aborted_leave_their_output_to_the_next(
    mode: CheckpointMode, aligned_timeout: float, seed: int
) -> None:
    """What an answer names is all output up to its snapshot, that of epochs that were given up before included."""
    cluster = Subtasks(mode, aligned_timeout, seed)
    control: dict[int, deque[tuple[Any, int]]] = {n: deque() for n in range(SUBTASKS)}
    begun, given_up, due = 0, set[int](), False
    while begun < 8 or due or any(control.values()):
        if due and _whole(cluster, begun):
            due = False
        elif due and cluster.random.random() < 0.02:
            given_up.add(begun)
            _tell(control, _abort, begun)
            due = False
        elif not due and begun < 8 and not any(control.values()) and cluster.random.random() < 0.1:
            begun, due = begun + 1, True
            _tell(control, _trigger, begun)
        _obey(cluster, control)
        cluster.step()
    cluster.drain()

    for epoch in set(range(1, 9)) - given_up:
        for subtask in cluster.subtasks:
            assert subtask.prepared_at[epoch] == subtask.at_snapshot[epoch], (epoch, subtask.number)
            left = [log for segment, of, log in subtask.logs if log.dropped != ((segment, of) not in subtask.done)]
            assert left == [], "logs of an epoch that was given up are kept, or others are not"
        for target in range(SUBTASKS):
            assert sorted(stored(cluster, epoch)[target]) == sorted(below(cluster, epoch)[target])


@pytest.mark.parametrize(
    ("mode", "aligned_timeout"),
    [(CheckpointMode.UNALIGNED, 0.0), (CheckpointMode.UNALIGNED, 1e-6), (CheckpointMode.AT_LEAST_ONCE, math.inf)],
    ids=["unaligned", "switches over", "at least once"],
)
@pytest.mark.parametrize("seed", seeds(20))
def test_an_aligned_epoch_leaves_nothing_under_way_whatever_comes_late(
    mode: CheckpointMode, aligned_timeout: float, seed: int
) -> None:
    """Barriers of an epoch that was given up may come between its own: they say nothing of how it is to be taken."""
    cluster = Subtasks(mode, aligned_timeout, seed)
    control: dict[int, deque[tuple[Any, int]]] = {n: deque() for n in range(SUBTASKS)}
    aligned, epoch, due, steps = set[int](), 0, False, 0
    while epoch < 8 or due or any(control.values()):
        steps += 1
        assert steps < 60_000, f"epoch {epoch} is never complete"
        if due and _whole(cluster, epoch):
            due = False
        elif due and epoch not in aligned and cluster.random.random() < 0.02:
            _tell(control, _abort, epoch)
            due = False
        elif not due and epoch < 8 and not any(control.values()) and cluster.random.random() < 0.1:
            epoch, due = epoch + 1, True
            if cluster.random.random() < 0.5:
                aligned.add(epoch)
            _tell(control, _trigger_aligned if epoch in aligned else _trigger, epoch)
        _obey(cluster, control)
        cluster.step()
    cluster.drain()

    for epoch in aligned:
        parts = [subtask.done[segment, epoch] for subtask in cluster.subtasks for segment in (0, 1)]
        assert not any(part.received or part.overtaken for part in parts)
        for target in range(SUBTASKS):
            assert sorted(stored(cluster, epoch)[target]) == sorted(below(cluster, epoch)[target])


def _whole(cluster: Subtasks, epoch: int) -> bool:
    """Has everybody answered?"""
    return all((segment, epoch) in subtask.done for subtask in cluster.subtasks for segment in (0, 1))


def _tell(control: dict[int, deque[tuple[Any, int]]], errand: Any, epoch: int) -> None:
    for queue in control.values():
        queue.append((errand, epoch))


def _obey(cluster: Subtasks, control: dict[int, deque[tuple[Any, int]]]) -> None:
    """Now and then some subtask hears the next word of the supervisor."""
    number = cluster.random.randrange(SUBTASKS)
    if control[number] and cluster.random.random() < 0.2:
        errand, epoch = control[number].popleft()
        errand(cluster.subtasks[number], epoch)


def _trigger(subtask: Subtask, epoch: int) -> None:
    subtask.tasks[0].trigger(epoch, aligned=False)


def _trigger_aligned(subtask: Subtask, epoch: int) -> None:
    subtask.tasks[0].trigger(epoch, aligned=True)


def _abort(subtask: Subtask, epoch: int) -> None:
    subtask.abort(epoch)


@pytest.mark.parametrize("seed", seeds(15))
def test_at_least_once_loses_nothing(seed: int) -> None:
    cluster, epochs = run(CheckpointMode.AT_LEAST_ONCE, math.inf, seed, last_aligned=False)

    for epoch in epochs:
        wanted, found = below(cluster, epoch), stored(cluster, epoch)
        for target in range(SUBTASKS):
            assert set(wanted[target]) <= set(found[target])


@pytest.mark.parametrize("seed", seeds(15))
def test_rows_under_way_of_the_epoch_before_are_processed_first_and_stored_again(seed: int) -> None:
    cluster = Subtasks(CheckpointMode.UNALIGNED, 0.0, seed)
    old = [[(100 + s.number, n) for n in range(6)] for s in cluster.subtasks]
    for subtask, rows in zip(cluster.subtasks, old, strict=True):
        subtask.tasks[1].restored_rows[0] = deque(batch_of([row]) for row in rows)
    for _ in range(cluster.random.randint(0, 40)):
        cluster.step()
    for subtask in cluster.subtasks:
        subtask.tasks[0].trigger(1, aligned=False)
    for _ in range(20_000):
        cluster.step()
        if all((1, 1) in s.done for s in cluster.subtasks):
            break
    cluster.drain()

    for subtask, rows in zip(cluster.subtasks, old, strict=True):
        assert subtask.processed_rows[: len(rows)] == rows
        logged = [row for part in subtask.done[1, 1].received.get(0, []) for row in rows_of(part) if row[0] >= 100]
        assert [row for row in subtask.at_snapshot[1] if row[0] >= 100] + logged == rows


def test_an_aligned_epoch_waits_for_rows_under_way_in_the_segment_of_a_source() -> None:
    cluster = Subtasks(CheckpointMode.UNALIGNED, 0.0, 0)
    around: Any = cluster.subtasks[0]
    mixed = ChainSpec(1, ("in", "key"), (), ("in", "key", "out"))
    readers: Any = {"in": Counting(0)}
    chain: Any = TargetChain(around)
    parts = TaskParts(chain, readers, {}, {})
    task = Task(mixed, parts, [], EDGES, Term(1), 1, CheckpointMode.UNALIGNED, 0.0, around, around)
    task.restored_rows[KEY] = deque(batch_of([(1, n)]) for n in range(3))
    task.trigger(1, aligned=True)
    task.abort(1)
    task.trigger(2, aligned=True)

    assert (1, 2) not in around.done
    cluster.work(task)
    assert (1, 1) not in around.done
    assert not around.done[1, 2].received
    task.restored_rows[KEY].append(batch_of([(1, 3)]))
    task.trigger(3, aligned=False)
    assert [rows_of(part) for part in around.done[1, 3].received[KEY]] == [[(1, 3)]]


def test_what_the_pipeline_does_to_a_value_later_does_not_change_a_snapshot() -> None:
    """Rows of the same worker are not encoded on their way: the log must not share its values with user code."""
    cluster = Subtasks(CheckpointMode.UNALIGNED, 0.0, 0)
    task = cluster.subtasks[0].tasks[1]
    batch = batch_of([(0, 1)])
    task.receive_rows(0, 0, batch)
    task.receive_barrier(0, 1, 1, aligned=False)
    batch.values[0] = (0, 999)  # as a map function does that changes its argument
    for sender in (0, 2):
        task.receive_barrier(0, sender, 1, aligned=False)
    task.receive_barrier(STAY, 0, 1, aligned=False)

    assert [rows_of(part) for part in cluster.subtasks[0].done[1, 1].received[0]] == [[(0, 1)]]


def test_an_epoch_that_is_given_up_frees_what_waits_for_it() -> None:
    cluster = Subtasks(CheckpointMode.ALIGNED, math.inf, 0)
    task = cluster.subtasks[0].tasks[1]
    cluster.random = random.Random(1)
    task.receive_barrier(0, 1, 1, aligned=False)
    task.receive_rows(0, 1, batch_of([(1, 0)]))
    for _ in range(20):
        task.process(5)
    assert cluster.subtasks[0].processed_rows == [], "a blocked channel was read"

    task.abort(1)
    for _ in range(20):
        task.process(5)

    assert cluster.subtasks[0].processed_rows == [(1, 0)]


# ---------------------------------------------------------------- blocked input on the disk


@pytest.mark.parametrize("may_hold", [30, 100_000])
@pytest.mark.parametrize("seed", seeds(15))
def test_a_snapshot_is_a_consistent_cut_when_blocked_channels_hold_their_rows(
    tmp_path: Path, seed: int, may_hold: int
) -> None:
    cluster, epochs = run(CheckpointMode.ALIGNED, math.inf, seed, False, may_hold, tmp_path)

    for epoch in epochs:
        for target in range(SUBTASKS):
            assert sorted(stored(cluster, epoch)[target]) == sorted(below(cluster, epoch)[target]), (epoch, target)
    for subtask in cluster.subtasks:
        for way in product(range(SUBTASKS), (True, False)):
            rows = [row for row in subtask.processed_rows if _way(row) == way]
            assert rows == sorted(set(rows)), "rows of one channel changed their order, or came twice"
    assert sum(len(s.processed_rows) for s in cluster.subtasks) == 2 * SUBTASKS * ROWS


def test_a_blocked_channel_lets_its_sender_go_on_as_far_as_it_may_hold(tmp_path: Path) -> None:
    cluster = Subtasks(CheckpointMode.ALIGNED, math.inf, 1, may_hold=5 * WINDOW, disk=tmp_path)
    task = cluster.subtasks[0].tasks[1]
    rows = deque(("rows", frame_of([(1, n)])) for n in range(100))
    while cluster.may_leave((1, 0), rows[0]):
        task.receive_rows(KEY, 1, rows.popleft()[1])
    task.receive_barrier(KEY, 1, 1, aligned=True)
    cluster.work(task)
    before = len(rows)
    while cluster.may_leave((1, 0), rows[0]):
        task.receive_rows(KEY, 1, rows.popleft()[1])
    held = before - len(rows)

    assert 5 * WINDOW <= held * 8 <= 7 * WINDOW, "what it may hold, and what may be on its way"
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) >= 2 * WINDOW, "beyond memory is the disk"
    task.abort(1)
    cluster.work(task)
    assert cluster.on_the_way[1, 0] == 0
    assert cluster.subtasks[0].processed_rows == [(1, n) for n in range(100 - len(rows))]
    assert list(tmp_path.iterdir()) == [], "what was read is gone"


# ---------------------------------------------------------------- inputs


def test_what_is_held_is_counted_as_it_came_whatever_the_disk_made_of_it(tmp_path: Path) -> None:
    """Rows of the same worker have no size, but those that were on the disk come back as bytes."""
    queue = SpillingQueue[Any](tmp_path / "held", 1, lambda e: e if isinstance(e, bytes) else frame_of(rows_of(e)))
    entry = InputChannel(0, 0, queue=queue, spill_limit=100)
    for _ in range(3):
        for n in range(5):
            entry.put(batch_of([(0, n)]))
        entry.credit_early()
        while entry.queued:
            entry.take()

    for _ in range(100):
        entry.put(bytes(10))
    assert entry.credit_early() == 100


@pytest.mark.parametrize("given_up", [True, False], ids=["given up", "complete"])
def test_barriers_of_epochs_that_are_over_do_not_hide_one_that_drags(given_up: bool) -> None:
    """They keep their places among rows that take long."""
    cluster = Subtasks(CheckpointMode.UNALIGNED, 1e-3, 0)
    subtask = cluster.subtasks[0]
    task = subtask.tasks[1]
    for edge, sender in task.inputs:
        task.receive_rows(edge, sender, batch_of([(sender, 0)]))
        task.receive_barrier(edge, sender, 1, aligned=given_up)
    if given_up:
        task.abort(1)
    else:
        time.sleep(0.002)
        task.process(0)
        assert (1, 1) in subtask.done
    for edge, sender in task.inputs:
        task.receive_barrier(edge, sender, 2, aligned=False)
    time.sleep(0.002)
    task.process(0)

    assert (1, 2) in subtask.done
    assert subtask.processed_rows == []
