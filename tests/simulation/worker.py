"""A worker: segments behind gates, channels between them, a writer, and a thread that prepares.

Rule: every decision about barriers is ``alignment.Gate``'s; what is here is what an engine does with its answers.
One call of ``Worker.step`` does one small thing, chosen by chance, so that everything can happen in between.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.barrier_alignment import CompleteSnapshot, GateAction, InputGate, TakeSnapshot
from tests.simulation.durable import InFlight, Manifest, Refused, Sink, State, Violation, stored_as
from tests.simulation.scenario import SPLITS, Input, Row, Scenario

SOURCE = "source"
FORWARD = -1
"""What a forward exchange is called among the outputs of its segment."""
CREDIT = 4
"""Rows that may wait in each stage of a channel. A feedback edge has no limit: else a full loop would stand still."""

Copy = tuple[Row, int]
"""A row on its way, and the number of visits behind it (the index of its next one in its path)."""


@dataclass(frozen=True, slots=True)
class Barrier:
    epoch: int
    aligned: bool


Item = Copy | Barrier


@dataclass(slots=True, eq=False)
class Channel:
    """First in, first out from ``out`` over ``wire`` to ``queue``; barriers may overtake in the first and the last."""

    name: tuple[str, int]
    receiver: Segment
    limit: float
    slow: bool = False
    held_until: float = 0.0
    """When the network delivers again."""
    out: deque[Item] = field(default_factory=deque)
    wire: deque[Item] = field(default_factory=deque)
    queue: deque[Item] = field(default_factory=deque)

    @property
    def full(self) -> bool:
        return len(self.out) >= self.limit

    def overtake(self, barrier: Barrier) -> list[Copy]:
        """Put the barrier before the rows that wait to be sent, but behind older barriers. Returns those rows."""
        behind = next((n for n in range(len(self.out), 0, -1) if isinstance(self.out[n - 1], Barrier)), 0)
        rows = [item for item in list(self.out)[behind:] if isinstance(item, tuple)]
        self.out.insert(behind, barrier)
        return rows

    def before(self, epoch: int, missing: bool) -> list[Copy]:
        """Rows in the queue that stand before the epoch's barrier; all if the barrier is still to come."""
        rows: list[Copy] = []
        for item in self.queue:
            if isinstance(item, tuple):
                rows.append(item)
            elif isinstance(item, Barrier) and item.epoch == epoch:
                return rows
        return rows if missing else []


@dataclass(slots=True)
class Capture:
    """What one segment adds to a snapshot."""

    state: State
    offsets: dict[int, int]
    received: list[Copy] = field(default_factory=list)
    unsent: list[Copy] = field(default_factory=list)
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An acknowledgement. ``sealed`` are all committables since the epoch that the worker knows to be decided."""

    offsets: dict[int, int]
    state: State
    received: tuple[Copy, ...]
    unsent: tuple[Copy, ...]
    sealed: tuple[tuple[EpochId, int], ...]

    @property
    def in_flight(self) -> InFlight:
        return tuple((row.id, at) for row, at in (*self.received, *self.unsent))

    @property
    def files(self) -> frozenset[str]:
        return stored_as(self.state, self.in_flight)


@dataclass(slots=True, eq=False)
class Segment:
    """What lies between two exchanges, in one worker."""

    index: int
    gate: InputGate
    inputs: dict[object, Channel] = field(default_factory=dict)
    outputs: dict[int, list[Channel]] = field(default_factory=dict)
    """By segment that reads it: a channel to each worker; of a forward exchange the only one."""
    state: State = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return any(channel.full for channels in self.outputs.values() for channel in channels)


Tell = Callable[[str, EpochId | None, int, Answer | None], None]
Upload = Callable[[frozenset[str]], None]


class Worker:
    """One subtask of everything. ``tell`` is the way to the coordinator: kind, epoch, worker, answer."""

    def __init__(
        self,
        scenario: Scenario,
        rows: Input,
        index: int,
        parallelism: int,
        term: Term,
        sink: Sink,
        upload: Upload,
        tell: Tell,
    ) -> None:
        self.index, self.term, self._scenario, self._sink, self._tell = index, term, scenario, sink, tell
        self._upload = upload
        self._input, self._parallelism = rows, parallelism
        self.segments = [self._segment(n) for n in range(scenario.segments)]
        self.outgoing: list[Channel] = []
        self.incoming: list[Channel] = []
        self.control: deque[tuple[str, EpochId | None]] = deque()
        self.stalled_until = 0.0
        self.dead = False
        self._begun = self._over = False
        self.lose_triggers = 0
        self._offsets = {split: 0 for split in range(SPLITS) if split % parallelism == index}
        self._captures: dict[int, dict[int, Capture]] = {}
        self._late: dict[int, dict[int, Capture]] = {}
        """Of epochs to whose end all segments have come: they are uploaded and answered, also if aborted meanwhile."""
        self._uploaded: Answer | None = None
        """What has been uploaded last, until it is told."""
        self._stored: frozenset[str] = frozenset()
        """Files that this worker has uploaded."""
        self._sealed: list[tuple[EpochId, int]] = []
        self._sealed_up_to = -1
        self._tasks: deque[tuple[str, EpochId, int]] = deque()
        self._writing: int | None = None
        self._numbers: dict[int, int] = {}
        self._now = 0.0

    def _segment(self, index: int) -> Segment:
        senders = range(self._parallelism)
        regular = {("forward", n) for n in senders} if index else {SOURCE}
        back = {("back", n) for n in senders if any(head == index for _, head in self._scenario.feedback)}
        stay = {("stay", self.index)} if index and index == self._scenario.shortcut else set[tuple[str, int]]()
        channels, timeout = frozenset(regular | back | stay), self._scenario.aligned_timeout
        return Segment(index, InputGate(channels, self._scenario.mode, timeout, frozenset(back)))

    # ------------------------------------------------------------ start

    def restore(self, manifest: Manifest) -> None:
        """State and offsets of what this worker owns."""
        self._offsets.update({s: at for s, at in manifest.offsets.items() if s in self._offsets})
        last = self._scenario.segments - 1
        for (segment, key), visits in manifest.state.items():
            if key % self._parallelism == self.index:
                self.segments[segment].state[segment, key] = list(visits)
                if segment == last:
                    self._numbers[key] = sum(1 for (row, at) in visits if self._is_last(row, at))

    def replay(self, copies: Sequence[Copy]) -> None:
        """Rows in flight come before anything else, those nearest to the sink first: they are the oldest."""
        for row, at in copies:
            if row.keys[self._scenario.path(row)[at]] % self._parallelism == self.index:
                self._visit(row, at)

    def _is_last(self, row: tuple[int, int], at: int) -> bool:
        return at == len(self._scenario.path(self._input[row[0]][row[1]])) - 1

    # ------------------------------------------------------------ one step

    def step(self, chance: random.Random, now: float) -> None:
        """Do one thing. Nothing happens if the one that chance chooses has nothing to do."""
        self._now = now
        kind = chance.random()
        if kind < 0.12:
            self._obey()
        elif kind < 0.2:
            self._prepare()
        elif kind < 0.4:
            self._send(chance)
        elif kind < 0.6:
            self._receive(chance)
        else:
            self._process(chance)

    def _send(self, chance: random.Random) -> None:
        ready = [c for c in self.outgoing if c.out and len(c.wire) < c.limit]
        if ready:
            channel = ready[int(chance.random() * len(ready))]
            channel.wire.append(channel.out.popleft())

    def _receive(self, chance: random.Random) -> None:
        ready = [c for c in self.incoming if c.wire and len(c.queue) < c.limit and c.held_until <= self._now]
        if not ready:
            return
        channel = ready[int(chance.random() * len(ready))]
        if channel.slow and chance.random() < 0.6:
            return
        item, segment = channel.wire.popleft(), channel.receiver
        channel.queue.append(item)
        if isinstance(item, tuple):
            epoch = segment.gate.epochs_logging(channel.name)
            if epoch is not None and epoch in self._captures:
                self._captures[epoch][segment.index].received.append(item)
        elif segment.gate.is_due_on_receipt(item.epoch, item.aligned):
            self._barrier(segment, channel.name, item)

    def _process(self, chance: random.Random) -> None:
        if not self._begun:
            return
        segment = self.segments[int(chance.random() * len(self.segments))]
        self._apply(segment, segment.gate.on_tick(self._now))
        if segment.full:
            return
        blocked = segment.gate.blocked_channels if segment.gate.pending else frozenset()
        ready = [c for c in segment.inputs.values() if c.queue and c.name not in blocked]
        if ready:
            channel = ready[int(chance.random() * len(ready))]
            item = channel.queue.popleft()
            if isinstance(item, tuple):
                self._visit(*item)
            else:
                self._barrier(segment, channel.name, item)
        elif segment.index == 0:
            self._read(chance)

    def _read(self, chance: random.Random) -> None:
        if self._over:
            return
        left = [split for split, at in self._offsets.items() if at < self._scenario.rows]
        if left and chance.random() < self._scenario.pace:
            split = left[int(chance.random() * len(left))]
            row = self._input[split][self._offsets[split]]
            self._offsets[split] += 1
            self._emit(row, 1)

    def _visit(self, row: Row, at: int) -> None:
        path = self._scenario.path(row)
        segment = path[at]
        key = row.keys[segment]
        self.segments[segment].state.setdefault((segment, key), []).append((row.id, at))
        if at + 1 < len(path):
            self._emit(row, at + 1)
            return
        if self._writing is None:
            self._writing = self._sink.begin(self.term)
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        self._sink.write(self._writing, key, number, row.id)

    def _emit(self, row: Row, at: int) -> None:
        if row.stays and at == 1:
            self.segments[0].outputs[FORWARD][0].out.append((row, at))
            return
        path = self._scenario.path(row)
        channels = self.segments[path[at - 1]].outputs[path[at]]
        channels[row.keys[path[at]] % self._parallelism].out.append((row, at))

    # ------------------------------------------------------------ barriers

    def _obey(self) -> None:
        """Take one message of the coordinator."""
        if not self.control:
            return
        kind, epoch = self.control.popleft()
        if epoch is None:
            self._begun, self._over = True, kind == "read no more"
        elif kind in ("trigger", "save") and self.lose_triggers:
            self.lose_triggers -= 1
        elif kind in ("trigger", "save"):
            self._barrier(self.segments[0], SOURCE, Barrier(epoch.epoch.n, kind == "save"))
        elif kind == "abort":
            self._forget(epoch.epoch.n)
            self._seal(epoch)  # as the engine does, whose writers may share a transaction
            self._tasks.append(("confirm", epoch, 0))
        else:
            self._sealed = [(tag, t) for tag, t in self._sealed if tag > epoch]

    def _forget(self, epoch: int) -> None:
        self._captures.pop(epoch, None)
        for segment in self.segments:
            self._apply(segment, segment.gate.on_abort(epoch))

    def _barrier(self, segment: Segment, channel: object, barrier: Barrier) -> None:
        self._apply(segment, segment.gate.on_barrier(channel, barrier.epoch, self._now, barrier.aligned))

    def _apply(self, segment: Segment, answer: tuple[InputGate, tuple[GateAction, ...]]) -> None:
        segment.gate, actions = answer
        for action in actions:
            match action:
                case TakeSnapshot() as snapshot:
                    self._capture(segment, snapshot)
                case CompleteSnapshot(epoch):
                    self._complete(segment, epoch)

    def _capture(self, segment: Segment, snapshot: TakeSnapshot) -> None:
        epoch, barrier = snapshot.epoch, Barrier(snapshot.epoch, snapshot.aligned)
        capture = Capture(
            state={place: list(visits) for place, visits in segment.state.items()},
            offsets=dict(self._offsets) if segment.index == 0 else {},
        )
        for channel in segment.inputs.values():
            missing = epoch == segment.gate.epochs_logging(channel.name)
            capture.received += channel.before(epoch, missing)
        capture.unsent += self._forward(segment, barrier, snapshot.unaligned)
        if segment.index == self._scenario.segments - 1:
            self._seal(EpochId(Epoch(epoch), self.term))
        self._captures.setdefault(epoch, {})[segment.index] = capture
        for channel in segment.inputs.values():
            if barrier in channel.queue:
                self._barrier(segment, channel.name, barrier)

    def _forward(self, segment: Segment, barrier: Barrier, unaligned: bool) -> list[Copy]:
        overtaken: list[Copy] = []
        for channels in segment.outputs.values():
            for channel in channels:
                if unaligned:
                    overtaken += channel.overtake(barrier)
                else:
                    channel.out.append(barrier)
        return overtaken

    def _seal(self, epoch: EpochId) -> None:
        """What is written from now on belongs to a later epoch."""
        newer, self._sealed_up_to = epoch.epoch.n > self._sealed_up_to, max(self._sealed_up_to, epoch.epoch.n)
        if newer and self._writing is not None:
            self._sealed.append((epoch, self._writing))
            self._tasks.append(("prepare", epoch, self._writing))
            self._writing = None

    def _complete(self, segment: Segment, epoch: int) -> None:
        captures = self._captures.get(epoch)
        if captures is None or segment.index not in captures:
            raise Violation(f"segment {segment.index} completed epoch {epoch} without a snapshot")
        captures[segment.index].complete = True
        if len(captures) == len(self.segments) and all(c.complete for c in captures.values()):
            self._late[epoch] = self._captures.pop(epoch)
            self._tasks.append(("upload", EpochId(Epoch(epoch), self.term), 0))
            self._tasks.append(("answer", EpochId(Epoch(epoch), self.term), 0))

    # ------------------------------------------------------------ beside it

    def _prepare(self) -> None:
        """One thing of the pre-commit thread: in order, so an answer follows all that it names."""
        if not self._tasks:
            return
        kind, epoch, transaction = self._tasks.popleft()
        match kind:
            case "upload":
                self._uploaded = self._answer(epoch, self._late.pop(epoch.epoch.n))
                self._store(self._uploaded.files)
            case "answer":
                self._tell("ack", epoch, self.index, self._uploaded)
            case "confirm":
                self._tell("confirm", epoch, self.index, None)
            case _:
                self._prepare_output(transaction)

    def _store(self, files: frozenset[str]) -> None:
        """As RocksDB's files are: what this worker has stored once it does not store again."""
        self._upload(files - self._stored)
        self._stored |= files

    def _prepare_output(self, transaction: int) -> None:
        try:
            self._sink.prepare(transaction)
        except Refused:
            self.dead = True
            self._tell("died", None, self.index, None)

    def _answer(self, epoch: EpochId, captures: dict[int, Capture]) -> Answer:
        state: State = {}
        for capture in captures.values():
            state.update(capture.state)
        return Answer(
            offsets=captures[0].offsets,
            state=state,
            received=tuple(copy for n in sorted(captures) for copy in captures[n].received),
            unsent=tuple(copy for n in sorted(captures) for copy in captures[n].unsent),
            sealed=tuple((tag, t) for tag, t in self._sealed if tag <= epoch),
        )
