"""One segment of the plan at work in one worker: its inputs, its gate, and its snapshots.

Rows come from the segment's sources, and from its input channels; they run through the chain, which ends in writers
and in the exchanges to the next segments. The gate (``protocol.barrier_alignment``) says what a barrier does.

Rule: a snapshot is taken between two batches and is whole: positions of the sources, state, writers sealed, barrier
sent on every tail, in one go. Nothing else of this worker runs in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from kafka_eos._util import log_context
from kafka_eos._util.failpoints import hit
from kafka_eos.abc.sink import Writer
from kafka_eos.abc.source import Reader
from kafka_eos.abc.state import StateBackend, Upload
from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Tally, Watermark
from kafka_eos.plan import Segment
from kafka_eos.protocol.barrier_alignment import Action, Complete, Gate, Mode, Snapshot
from kafka_eos.protocol.watermarks import Inputs
from kafka_eos.runtime.epoch_reports import Prepare, Span
from kafka_eos.runtime.exchange.in_flight_rows import Log
from kafka_eos.runtime.exchange.input_queues import Input, Marker, Queue, Rows
from kafka_eos.runtime.worker.task_resources import pending_timers
from kafka_eos.runtime.worker.task_stats import Spent

A = TypeVar("A")
T = TypeVar("T")

_LONG = 0.02
"""Seconds of work after which a barrier that overtakes may not have to wait for more rows."""


@dataclass(slots=True)
class Captured:
    """A segment's part of an epoch. The rows under way, by exchange, are complete when the gate says so."""

    positions: dict[str, Positions]
    uploads: list[Upload]
    precommits: list[Prepare]
    tally: Tally
    """What the segment has counted since the session began."""
    timers: dict[str, int] = field(default_factory=dict)
    """How many are pending, by operator."""
    received: dict[int, Log] = field(default_factory=dict)
    """Rows that had arrived here, or arrived before the barrier of their channel."""
    overtaken: dict[int, Log] = field(default_factory=dict)
    """Rows that had not left yet: they come after those that the receivers had."""
    unanswered: bool = False
    """A row waits for an answer that waited at the first barrier of the session."""
    blocked: float = 0.0
    """Seconds that the snapshot kept the worker from processing."""
    aligning: float = 0.0
    """Seconds from the first barrier to the last."""
    spans: list[Span] = field(default_factory=list)

    def drop(self) -> None:
        """Its rows under way are stored, or nobody wants them."""
        for log in (*self.received.values(), *self.overtaken.values()):
            log.drop()


@dataclass(frozen=True, slots=True)
class OpenSnapshot:
    """The epoch that a segment has captured, and whose barriers have not all come. ``since``: when the first came."""

    epoch: int
    captured: Captured
    since: float


class Surroundings(Protocol):
    """What a task needs of the worker around it."""

    def push(self, segment: Segment, head: str, batch: Batch[Any] | None) -> None:
        """Run rows through the segment; None after a read that brought nothing but, perhaps, bad records."""

    def advance_time(self, segment: Segment, head: str, watermark: Watermark) -> None:
        """Event time has come so far behind the head of the segment."""

    def busy(self, segment: Segment) -> bool:
        """Is what time has made due in the segment not done yet?"""

    def go_on(self, segment: Segment) -> None:
        """Do a slice more of it."""

    def collect(self, segment: Segment) -> int:
        """Run the rows of the segment that are answered by now on through it; returns how many."""

    def full(self, head: str) -> bool:
        """Do so many rows that came by ``head`` wait for answers that no more should come?"""

    def holding(self, head: str) -> bool:
        """Do rows that came by ``head`` wait for answers?"""

    def held(self, head: str) -> Sequence[Batch[Any]]:
        """The rows that came by ``head`` and wait for answers."""

    def unanswered(self, head: str) -> bool:
        """A barrier passes these rows. Has one of them waited since the first barrier of the session?"""

    def flush(self, segment: Segment, whole: bool) -> None:
        """Run what the segment's operators have gathered in this epoch through it; ``whole``: all that is due, too."""

    def tally(self, segment: Segment) -> Tally:
        """What the segment has counted since the session began."""

    def sealed(self, segment: Segment) -> None:
        """The writers of the segment begin with the next epoch."""

    def waits(self, source: str) -> bool:
        """Is the source not to be read yet?"""

    def passed_over(self, segment: Segment, source: str) -> None:
        """It was not: event time may go on without it."""

    def room(self, edge: int) -> bool:
        """May more rows be made for this exchange?"""

    def forward_here(self, edge: int, epoch: int, aligned: bool) -> None:
        """Pass the barrier on in this subtask."""

    def log(self, segment: Segment, edge: int, epoch: int, name: str) -> Log:
        """A new log of the epoch, by that name, for rows that are under way on the exchange."""

    def captured(self, segment: Segment, epoch: int, captured: Captured) -> None:
        """The segment's part of the epoch is complete."""


class Wires(Protocol):
    """The exchanges, as a task needs them."""

    def decode(self, edge: int, rows: Rows) -> Batch[Any]: ...

    def as_now(self, edge: int, rows: Rows) -> bytes:
        """The rows for a log, whatever the user's code will do to their values when they are processed."""

    def processed(self, edge: int, sender: int, rows: Rows) -> None:
        """The rows are processed."""

    def credit(self, edge: int, sender: int, size: int) -> None:
        """The sender may send so many bytes more."""

    def forward(self, edge: int, epoch: int, overtake: bool, aligned: bool) -> Iterable[bytes]:
        """Send the barrier to all other subtasks; returns the rows that it overtakes, to be looked at now."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The open parts of a segment, by operator name."""

    readers: Mapping[str, Reader[Any]]
    backends: Mapping[str, StateBackend]
    writers: Mapping[str, Writer[Any]]


class Task:
    """``edges`` numbers the exchanges of the plan; ``inputs`` are those of this segment, one a sender."""

    def __init__(
        self,
        segment: Segment,
        parts: Parts,
        inputs: Sequence[Input],
        edges: Mapping[str, int],
        term: Term,
        first_epoch: int,
        mode: Mode,
        aligned_timeout: float,
        around: Surroundings,
        wires: Wires,
    ) -> None:
        self.segment, self.parts, self._term, self._around, self._wires = segment, parts, term, around, wires
        self._tails = [edges[name] for name in segment.tails if name in edges]
        self._heads = {edges[name]: name for name in segment.heads if name in edges}
        self.inputs = {entry.channel: entry for entry in inputs}
        self._back = [entry for entry in inputs if entry.feedback]
        channels = frozenset([*self.inputs, *(("source", name) for name in parts.readers)])
        self._gate = Gate(channels, mode, aligned_timeout, frozenset(entry.channel for entry in self._back))
        self._event_time = {edge: Inputs.of(sender for at, sender in self.inputs if at == edge) for edge in self._heads}
        """How far it has come, by exchange: all of its channels together."""
        self.replay: dict[int, Queue[Rows]] = {}
        """Rows that were under way in the epoch that this session continues, by exchange: processed before all others,
        one exchange after the other."""
        self._postponed: Marker | None = None
        """The barrier of an aligned epoch: the sources' waits until those rows are processed, and all that is due."""
        self._sealed = first_epoch - 1
        """The newest epoch that the writers have sealed. They seal each, whatever becomes of it, in turn."""
        self._carried: list[Prepare] = []
        """Output of epochs that were given up: it belongs to the next one."""
        self.spent = Spent()
        self.own = dict.fromkeys((*parts.readers, *parts.backends, *parts.writers), 0.0)
        """Seconds that parts took outside of the chain, by operator: reads that brought something, snapshots, seals."""
        self.records = dict.fromkeys(parts.readers, 0)
        """How many have been read, by source."""
        self._open: OpenSnapshot | None = None

    # ------------------------------------------------------------ arrivals

    def rows(self, edge: int, sender: int, rows: Rows) -> None:
        """Rows have arrived."""
        entry = self.inputs[edge, sender]
        held = self._is_held(entry)
        entry.put(self._wires.as_now(edge, rows) if held else rows)
        if held:
            self._hold(entry)
        if self._gate.logged_by(entry.channel) is not None:
            self._log(edge, [rows])

    def watermark(self, edge: int, sender: int, watermark: Watermark) -> None:
        """A watermark has arrived behind rows that may still wait here."""
        self.inputs[edge, sender].put(watermark)

    def barrier(self, edge: int, sender: int, epoch: int, aligned: bool) -> None:
        """A barrier has arrived behind rows that may still wait here."""
        entry = self.inputs[edge, sender]
        now = time.monotonic()
        marker = Marker(epoch, now, aligned)
        entry.put(marker)
        if self._gate.on_receipt(epoch, aligned):
            self._report(entry.channel, marker)

    def trigger(self, epoch: int, aligned: bool) -> None:
        """The barrier of the sources: their positions are the cut. ``aligned``: nothing may be left under way."""
        marker = Marker(epoch, time.monotonic(), aligned)
        if aligned and (self._replaying or self._around.busy(self.segment)):
            self._postponed = marker
        else:
            self._report_sources(marker)

    def abort(self, epoch: int) -> list[Prepare]:
        """The epoch is given up: forget what was captured of it. Returns what is to be prepared of its output.

        All writers seal it, those too whose barrier has not come: writers of one worker may share a transaction.
        """
        self._gate, _ = self._gate.abort(epoch)
        if self._postponed is not None and self._postponed.epoch == epoch:
            self._postponed = None
        if self._open is not None and self._open.epoch == epoch:
            captured, self._open = self._open.captured, None
            captured.drop()
            self._carried += captured.precommits
        return self._seal(epoch)

    def _seal(self, epoch: int) -> list[Prepare]:
        """Seal up to ``epoch`` what is not sealed; returns all that is to be prepared and is not named by an answer."""
        precommits, self._carried = self._carried, []
        for number in range(self._sealed + 1, epoch + 1):
            hit("sink.seal")
            name = EpochId(Epoch(number), self._term)
            writers = self.parts.writers.items()
            precommits += [Prepare(sink, self._timed(sink, writer.seal, name)) for sink, writer in writers]
        self._sealed = max(self._sealed, epoch)
        self._around.sealed(self.segment)
        return precommits

    def _timed(self, operator: str, work: Callable[[A], T], argument: A) -> T:
        began = time.perf_counter()
        done = work(argument)
        self.own[operator] += time.perf_counter() - began
        return done

    # ------------------------------------------------------------ work

    def work(self, most: int) -> int:
        """Process up to ``most`` waiting entries, fewer if they take long; returns how many."""
        self._tick()
        done = self._go_on()
        if self._postponed is not None and not self._replaying and not self._around.busy(self.segment):
            marker, self._postponed = self._postponed, None
            self._report_sources(marker)
        until = time.monotonic() + _LONG
        done += self._around.collect(self.segment) if self._room() else 0
        while done < most and self._step():
            done += 1
            if time.monotonic() > until:
                break
        return done

    def _go_on(self) -> int:
        """What time has made due goes on before all rows, while there is room for it; returns 1 if it did."""
        if not (self._around.busy(self.segment) and self._has_room()):
            return 0
        began = time.perf_counter()
        self._around.go_on(self.segment)
        self.spent.busy += time.perf_counter() - began
        return 1

    def read(self, batch_size: int, wait: float) -> int:
        """Read from every source of the segment once; returns the number of records. ``wait`` seconds at most."""
        behind = self._replaying or any(entry.waiting > LIMITS.loop_entries_before_a_read for entry in self._back)
        if behind or not self.parts.readers or not self._room():
            return 0
        records = 0
        for name, reader in self.parts.readers.items():
            if ("source", name) in self._gate.blocked:
                continue
            if self._around.waits(name):
                self._around.passed_over(self.segment, name)
                continue
            asked = time.perf_counter()
            log_context.enter(name)
            batch = reader.poll(batch_size, wait)
            log_context.leave()
            read = time.perf_counter()
            if batch is not None:
                records += len(batch)
                self.records[name] += len(batch)
                self.spent.reading += read - asked
                self.own[name] += read - asked
            self._around.push(self.segment, name, batch)
            self.spent.busy += time.perf_counter() - read
        return records

    @property
    def may_tick(self) -> bool:
        """May timers of the clock make rows here? Those that were under way go first."""
        return not self._replaying and self._room()

    @property
    def idle(self) -> bool:
        """Nothing is waiting here."""
        waiting = self._replaying or any(entry.queue for entry in self.inputs.values())
        held = any(map(self._around.holding, self._heads.values()))
        return not (waiting or held or self._around.busy(self.segment))

    @property
    def _replaying(self) -> bool:
        return any(self.replay.values())

    def _room(self) -> bool:
        """May rows be processed? They come behind what is due already."""
        return not self._around.busy(self.segment) and self._has_room()

    def _has_room(self) -> bool:
        return self.spent.room(all(map(self._around.room, self._tails)))

    def _step(self) -> bool:
        for edge, queue in self.replay.items():
            if queue:
                if not self._room() or self._around.full(self._heads[edge]):
                    return False
                self._process(edge, queue.popleft())
                return True
        blocked = self._gate.blocked
        return any(self._take(entry) for entry in self._fairly() if entry.channel not in blocked)

    def _fairly(self) -> list[Input]:
        """Inputs with something in them, those that wait longest in number of entries first."""
        return sorted((e for e in self.inputs.values() if e.queue), key=lambda e: -e.waiting)

    def _take(self, entry: Input) -> bool:
        first = entry.queue[0]
        if isinstance(first, Marker):
            if first.aligned and (self._around.holding(self._heads[entry.edge]) or self._around.busy(self.segment)):
                return False
            entry.take()
            self._report(entry.channel, replace(first, at=time.monotonic()))
            if self._is_held(entry):
                self._hold(entry)
            return True
        if not self._room():
            return False
        owed = entry.owed
        entry.take()
        if isinstance(first, Watermark):
            self._advance(entry, first)
            return True
        self._process(entry.edge, first)
        self._wires.processed(entry.edge, entry.sender, first)
        self._wires.credit(entry.edge, entry.sender, owed)
        return True

    def _is_held(self, entry: Input) -> bool:
        """Is the channel blocked, and its sender not to wait for that?"""
        return entry.may_hold > 0 and entry.channel in self._gate.blocked

    def _hold(self, entry: Input) -> None:
        self._wires.credit(entry.edge, entry.sender, entry.hold())

    def _process(self, edge: int, rows: Rows) -> None:
        began = time.perf_counter()
        self._around.push(self.segment, self._heads[edge], self._wires.decode(edge, rows))
        self.spent.busy += time.perf_counter() - began

    def _advance(self, entry: Input, watermark: Watermark) -> None:
        before = self._event_time[entry.edge]
        after = self._event_time[entry.edge] = before.on(entry.sender, watermark)
        if after.watermark != before.watermark:
            began = time.perf_counter()
            self._around.advance_time(self.segment, self._heads[entry.edge], after.watermark)
            self.spent.busy += time.perf_counter() - began

    # ------------------------------------------------------------ barriers

    def _tick(self) -> None:
        """Alignment that takes too long becomes unaligned, also where barriers wait behind rows."""
        now, patience = time.monotonic(), self._gate.aligned_timeout
        if self._gate.mode is not Mode.UNALIGNED or not patience:
            return
        for entry in self.inputs.values():
            if entry.channel in self._gate.blocked:
                continue
            awaited = (m for m in entry.markers if not m.aligned and self._gate.awaits(entry.channel, m.epoch))
            marker = next(awaited, None)
            if marker is not None and now >= marker.at + patience:
                self._report(entry.channel, marker)
        gate, actions = self._gate.tick(now)
        self._carry_out(gate, actions)

    def _report_sources(self, marker: Marker) -> None:
        for name in self.parts.readers:
            self._report(("source", name), marker)

    def _report(self, channel: object, marker: Marker) -> None:
        hit("align.barrier")
        gate, actions = self._gate.barrier(channel, marker.epoch, marker.at, marker.aligned)
        self._carry_out(gate, actions)

    def _carry_out(self, gate: Gate, actions: Sequence[Action]) -> None:
        since = math.inf if self._gate.pending is None else self._gate.pending.since
        self._gate = gate
        for action in actions:
            match action:
                case Snapshot() as snapshot:
                    self._snapshot(snapshot, since)
                case Complete(epoch=epoch):
                    self._complete(epoch)
        if self._gate.mode is Mode.UNALIGNED and self._open is not None:
            # Barriers that wait in queues count as soon as their epoch is captured.
            epoch = self._open.epoch
            for entry in self.inputs.values():
                marker = entry.marker(epoch)
                if marker is not None and self._gate.logged_by(entry.channel) == epoch:
                    self._report(entry.channel, marker)

    def _complete(self, epoch: int) -> None:
        opened, self._open = self._capturing, None
        captured, now = opened.captured, time.time()
        captured.aligning = time.monotonic() - opened.since
        captured.spans.append(Span("align", now - captured.aligning, now, self.segment.heads[0]))
        hit("align.complete")
        self._around.captured(self.segment, epoch, captured)

    @property
    def _capturing(self) -> OpenSnapshot:
        if self._open is None:
            raise Bug(f"segment {self.segment.heads[0]} captures no epoch")
        return self._open

    def _snapshot(self, snapshot: Snapshot, since: float) -> None:
        """Capture the segment. ``since``: when the first barrier came, if that was before now."""
        epoch, began = snapshot.epoch, time.monotonic()
        self._around.flush(self.segment, snapshot.aligned)
        hit("source.capture.before")
        positions = {source: reader.positions() for source, reader in self.parts.readers.items()}
        hit("source.capture.after")
        uploads = [self._timed(name, backend.snapshot, Epoch(epoch)) for name, backend in self.parts.backends.items()]
        timers = pending_timers(self.parts.backends)
        captured = Captured(positions, uploads, self._seal(epoch), self._around.tally(self.segment), timers)
        self._open = OpenSnapshot(epoch, captured, min(since, began))
        for edge, head in self._heads.items():
            self._log(edge, self._around.held(head))
            captured.unanswered |= self._around.unanswered(head)
        for edge, queue in self.replay.items():
            self._log(edge, queue)
        self._log_waiting(epoch)
        for edge in self._tails:
            for frame in self._wires.forward(edge, epoch, snapshot.unaligned, snapshot.aligned):
                self._log_of(edge, captured.overtaken, "overtaken").add(frame)
        captured.blocked = time.monotonic() - began
        ended, head = time.time(), self.segment.heads[0]
        captured.spans.append(Span("snapshot", ended - captured.blocked, ended, head))
        self.spent.busy += captured.blocked
        # Last, and when all is captured: here the next segment's snapshot may follow at once.
        for edge in self._tails:
            self._around.forward_here(edge, epoch, snapshot.aligned)

    def _log_waiting(self, epoch: int) -> None:
        """Rows in the input queues that stand before the barrier: overtaken by it, or on their way round a loop."""
        for entry in self.inputs.values():
            if entry.marker(epoch) is not None or self._gate.logged_by(entry.channel) == epoch:
                self._log(entry.edge, entry.before(epoch))

    def _log(self, edge: int, rows: Iterable[Rows]) -> None:
        """Add rows to the logs of the epoch that is being captured."""
        logs = self._capturing.captured.received
        for part in rows:
            self._log_of(edge, logs, "received").add(self._wires.as_now(edge, part))
            hit("in-flight.logged")

    def _log_of(self, edge: int, logs: dict[int, Log], name: str) -> Log:
        if edge not in logs:
            logs[edge] = self._around.log(self.segment, edge, self._capturing.epoch, name)
        return logs[edge]
