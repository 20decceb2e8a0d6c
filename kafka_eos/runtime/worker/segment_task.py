"""One operator chain at work in one worker: its inputs, its gate, and its snapshots.

Rows come from the chain's sources, and from its input channels; they run through the chain, which ends in writers and
in the exchanges to the next chains. The gate (``protocol.barrier_alignment``) decides about barriers.

Rule: a snapshot is taken between two batches and is complete: positions of the sources, state, writers sealed, barrier
sent on every tail, without interruption. Nothing else of this worker runs in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util import log_context
from kafka_eos._util.failpoints import hit
from kafka_eos.abc.sink import PreCommit, Writer
from kafka_eos.abc.source import Reader
from kafka_eos.abc.state import StateBackend
from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, RecordCounts, Watermark
from kafka_eos.plan import ChainSpec
from kafka_eos.protocol.barrier_alignment import CheckpointMode, CompleteSnapshot, GateAction, InputGate, TakeSnapshot
from kafka_eos.protocol.watermarks import InputWatermarks
from kafka_eos.runtime.epoch_reports import PhaseSpan, TimedPreCommit
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.exchange.in_flight_rows import InFlightLog
from kafka_eos.runtime.exchange.input_queues import Barrier, BatchOrFrame, InputChannel, Queue
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.task_stats import ChainTimes

A = TypeVar("A")
T = TypeVar("T")

_LONG = 0.02
"""Seconds of work after which an unaligned barrier must not wait for more rows."""


class TaskSession(Protocol):
    """The session that a task belongs to, as the task needs it."""

    waiting_sources: frozenset[str]
    """Sources that must not be read yet."""
    excluded_sources: frozenset[str]
    """The sources among them that are excluded from the watermark."""

    def has_room(self, edge: int) -> bool:
        """Return whether more rows may be produced for this exchange."""

    def deliver_barrier(self, edge: int, epoch: int, aligned: bool) -> None:
        """Deliver the barrier to the next operator chain of this subtask."""

    def open_log(self, segment: ChainSpec, epoch: int, edge: int, name: str) -> InFlightLog:
        """Create a log of the epoch, by that name, for in-flight rows of the exchange."""

    def on_captured(self, segment: ChainSpec, captured: ChainSnapshot) -> None:
        """Called when the chain's snapshot of an epoch is complete."""


class TaskParts(Struct, frozen=True):
    """An operator chain, and its open readers, state backends and writers by operator name."""

    chain: OperatorChain
    readers: Mapping[str, Reader[Any]]
    backends: Mapping[str, StateBackend]
    writers: Mapping[str, CountingWriter]


class CountingWriter(Struct):
    """The writer of an operator chain for one sink. Counts the rows that it is given."""

    writer: Writer[Any]
    written: int = 0
    """Rows since the session began."""
    unsealed: bool = False
    """Whether it has received rows since it was sealed."""

    def write(self, batch: Batch[Any]) -> None:
        """Write a batch."""
        self.written += len(batch)
        self.unsealed = True
        self.writer.write(batch)

    def seal(self, epoch: EpochId) -> PreCommit:
        """Seal the output of an epoch."""
        precommit = self.writer.seal(epoch)
        self.unsealed = False
        return precommit


class Task:
    """The task of one operator chain.

    ``edges`` numbers the exchanges of the plan; ``inputs`` are those of this chain, one per sender.
    """

    def __init__(
        self,
        segment: ChainSpec,
        parts: TaskParts,
        inputs: Sequence[InputChannel],
        edges: Mapping[str, int],
        term: Term,
        first_epoch: int,
        mode: CheckpointMode,
        aligned_timeout: float,
        session: TaskSession,
        exchanges: Exchanges,
    ) -> None:
        self.segment = segment
        self.parts = parts
        self._term = term
        self.chain = parts.chain
        self._session = session
        self._exchanges = exchanges
        self._tails = [edges[name] for name in segment.tails if name in edges]
        self._heads = {edges[name]: name for name in segment.heads if name in edges}
        self.inputs = {entry.channel: entry for entry in inputs}
        self._back = [entry for entry in inputs if entry.feedback]
        channels = frozenset([*self.inputs, *(("source", name) for name in parts.readers)])
        self._gate = InputGate(channels, mode, aligned_timeout, frozenset(entry.channel for entry in self._back))
        self._event_time = {
            edge: InputWatermarks.of(sender for at, sender in self.inputs if at == edge) for edge in self._heads
        }
        """The watermark of each exchange: all of its channels together."""
        self.restored_rows: dict[int, Queue[BatchOrFrame]] = {}
        """In-flight rows of the epoch that this session continues, by exchange. They are processed before all others,
        one exchange after the other."""
        self._postponed: Barrier | None = None
        """The barrier of an aligned epoch: the sources' waits until those rows are processed, and all that is due."""
        self._sealed = first_epoch - 1
        """The newest epoch that the writers have sealed. They seal each, whatever becomes of it, in turn."""
        self._carried: list[TimedPreCommit] = []
        """Output of epochs that were given up: it belongs to the next one."""
        self.spent = ChainTimes()
        self.own_seconds = dict.fromkeys((*parts.readers, *parts.backends, *parts.writers), 0.0)
        """Seconds that parts took outside of the chain, by operator: reads that brought something, snapshots, seals."""
        self.records = dict.fromkeys(parts.readers, 0)
        """The number of records read, by source."""
        self._open: ChainSnapshot | None = None

    # ------------------------------------------------------------ arrivals

    def receive_rows(self, edge: int, sender: int, rows: BatchOrFrame) -> None:
        """Queue rows that have arrived."""
        entry = self.inputs[edge, sender]
        held = self._is_held(entry)
        entry.put(self._exchanges.freeze(edge, rows) if held else rows)
        if held:
            self._hold(entry)
        if self._gate.epochs_logging(entry.channel) is not None:
            self._log(edge, [rows])

    def receive_watermark(self, edge: int, sender: int, watermark: Watermark) -> None:
        """Queue a watermark behind the rows of its channel."""
        self.inputs[edge, sender].put(watermark)

    def receive_barrier(self, edge: int, sender: int, epoch: int, aligned: bool) -> None:
        """Queue a barrier behind the rows of its channel."""
        entry = self.inputs[edge, sender]
        now = time.monotonic()
        marker = Barrier(epoch, now, aligned)
        entry.put(marker)
        if self._gate.is_due_on_receipt(epoch, aligned):
            self._pass_barrier(entry.channel, marker)

    def trigger(self, epoch: int, aligned: bool) -> None:
        """Handle the barrier of the sources: their positions are the cut. ``aligned``: store no in-flight rows."""
        marker = Barrier(epoch, time.monotonic(), aligned)
        if aligned and (self._replaying or self.chain.has_due_work):
            self._postponed = marker
        else:
            self._report_sources(marker)

    def abort(self, epoch: int) -> list[TimedPreCommit]:
        """Abort an epoch: discard what was captured of it. Return the pre-commits of its output.

        All writers seal it, even those whose barrier has not arrived: writers of one worker may share a transaction.
        """
        self._gate, _ = self._gate.on_abort(epoch)
        if self._postponed is not None and self._postponed.epoch == epoch:
            self._postponed = None
        if self._open is not None and self._open.epoch == epoch:
            captured, self._open = self._open, None
            captured.drop()
            self._carried += captured.precommits
        return self._seal(epoch)

    def _seal(self, epoch: int) -> list[TimedPreCommit]:
        """Seal all unsealed output up to ``epoch``; return all pre-commits that no acknowledgement names yet."""
        precommits, self._carried = self._carried, []
        for number in range(self._sealed + 1, epoch + 1):
            hit("sink.seal")
            name = EpochId(Epoch(number), self._term)
            writers = self.parts.writers.items()
            precommits += [TimedPreCommit(sink, self._timed(sink, writer.seal, name)) for sink, writer in writers]
        self._sealed = max(self._sealed, epoch)
        return precommits

    def _timed(self, operator: str, work: Callable[[A], T], argument: A) -> T:
        began = time.perf_counter()
        done = work(argument)
        self.own_seconds[operator] += time.perf_counter() - began
        return done

    # ------------------------------------------------------------ work

    def process(self, most: int) -> int:
        """Process up to ``most`` queued entries; return how many."""
        self._tick()
        done = self._go_on()
        if self._postponed is not None and not self._replaying and not self.chain.has_due_work:
            marker, self._postponed = self._postponed, None
            self._report_sources(marker)
        until = time.monotonic() + _LONG
        done += self.chain.emit_answered() if self._room() else 0
        while done < most and self._step():
            done += 1
            if time.monotonic() > until:
                break
        return done

    def _go_on(self) -> int:
        """Continue due work before all rows, while there is room for its output; return 1 if it did."""
        if not (self.chain.has_due_work and self._has_room()):
            return 0
        began = time.perf_counter()
        self.chain.continue_due()
        self.spent.busy += time.perf_counter() - began
        return 1

    def read(self, batch_size: int, wait: float) -> int:
        """Read from every source of the chain once; return the number of records. ``wait`` seconds at most."""
        behind = self._replaying or any(entry.queued > LIMITS.loop_entries_before_a_read for entry in self._back)
        if behind or not self.parts.readers or not self._room():
            return 0
        records = 0
        for name, reader in self.parts.readers.items():
            if ("source", name) in self._gate.blocked_channels:
                continue
            if name in self._session.waiting_sources:
                if name in self._session.excluded_sources:
                    self.chain.note_empty_read(name)
                continue
            asked = time.perf_counter()
            log_context.enter_operator(name)
            batch = reader.poll(batch_size, wait)
            log_context.leave_operator()
            read = time.perf_counter()
            if batch is None:
                self.chain.note_empty_read(name)
            else:
                records += len(batch)
                self.records[name] += len(batch)
                self.spent.reading += read - asked
                self.own_seconds[name] += read - asked
                self.chain.push(name, batch)
            self.spent.busy += time.perf_counter() - read
        return records

    @property
    def can_fire_timers(self) -> bool:
        """Return whether processing-time timers can fire here now. In-flight rows go first."""
        return not self._replaying and self._room()

    @property
    def idle(self) -> bool:
        """Return whether nothing is waiting here."""
        waiting = self._replaying or any(entry.queue for entry in self.inputs.values())
        held = any(map(self.chain.has_pending, self._heads.values()))
        return not (waiting or held or self.chain.has_due_work)

    @property
    def _replaying(self) -> bool:
        return any(self.restored_rows.values())

    def _room(self) -> bool:
        """Return whether rows may be processed. They come behind due work."""
        return not self.chain.has_due_work and self._has_room()

    def _has_room(self) -> bool:
        return self.spent.note_room(all(map(self._session.has_room, self._tails)))

    def _step(self) -> bool:
        for edge, queue in self.restored_rows.items():
            if queue:
                if not self._room() or self.chain.is_full(self._heads[edge]):
                    return False
                self._process(edge, queue.popleft())
                return True
        blocked = self._gate.blocked_channels
        return any(self._take(entry) for entry in self._fairly() if entry.channel not in blocked)

    def _fairly(self) -> list[InputChannel]:
        """Return the non-empty inputs, those with the longest wait in number of entries first."""
        return sorted((e for e in self.inputs.values() if e.queue), key=lambda e: -e.queued)

    def _take(self, entry: InputChannel) -> bool:
        first = entry.queue[0]
        if isinstance(first, Barrier):
            if first.aligned and (self.chain.has_pending(self._heads[entry.edge]) or self.chain.has_due_work):
                return False
            entry.take()
            self._pass_barrier(entry.channel, replace(first, at=time.monotonic()))
            if self._is_held(entry):
                self._hold(entry)
            return True
        if not self._room():
            return False
        owed = entry.credit_due
        entry.take()
        if isinstance(first, Watermark):
            self._advance(entry, first)
            return True
        self._process(entry.edge, first)
        self._exchanges.processed(entry.edge, entry.sender, first)
        self._exchanges.credit(entry.edge, entry.sender, owed)
        return True

    def _is_held(self, entry: InputChannel) -> bool:
        """Return whether the channel is blocked, but its sender should not wait for that."""
        return entry.spill_limit > 0 and entry.channel in self._gate.blocked_channels

    def _hold(self, entry: InputChannel) -> None:
        self._exchanges.credit(entry.edge, entry.sender, entry.credit_early())

    def _process(self, edge: int, rows: BatchOrFrame) -> None:
        began = time.perf_counter()
        self.chain.push(self._heads[edge], self._exchanges.decode(edge, rows))
        self.spent.busy += time.perf_counter() - began

    def _advance(self, entry: InputChannel, watermark: Watermark) -> None:
        before = self._event_time[entry.edge]
        after = self._event_time[entry.edge] = before.update(entry.sender, watermark)
        if after.watermark != before.watermark:
            began = time.perf_counter()
            self.chain.advance(self._heads[entry.edge], after.watermark)
            self.spent.busy += time.perf_counter() - began

    # ------------------------------------------------------------ barriers

    def _tick(self) -> None:
        """Turn alignment that takes too long into an unaligned checkpoint, also where barriers wait behind rows."""
        now, patience = time.monotonic(), self._gate.aligned_timeout
        if self._gate.mode is not CheckpointMode.UNALIGNED or not patience:
            return
        for entry in self.inputs.values():
            if entry.channel in self._gate.blocked_channels:
                continue
            awaited = (
                m for m in entry.markers if not m.aligned and self._gate.is_barrier_awaited(entry.channel, m.epoch)
            )
            marker = next(awaited, None)
            if marker is not None and now >= marker.at + patience:
                self._pass_barrier(entry.channel, marker)
        gate, actions = self._gate.on_tick(now)
        self._carry_out(gate, actions)

    def _report_sources(self, marker: Barrier) -> None:
        for name in self.parts.readers:
            self._pass_barrier(("source", name), marker)

    def _pass_barrier(self, channel: object, marker: Barrier) -> None:
        hit("align.barrier")
        gate, actions = self._gate.on_barrier(channel, marker.epoch, marker.at, marker.aligned)
        self._carry_out(gate, actions)

    def _carry_out(self, gate: InputGate, actions: Sequence[GateAction]) -> None:
        since = math.inf if self._gate.pending is None else self._gate.pending.since
        self._gate = gate
        for action in actions:
            match action:
                case TakeSnapshot() as snapshot:
                    self._snapshot(snapshot, since)
                case CompleteSnapshot():
                    self._complete()
        if self._gate.mode is CheckpointMode.UNALIGNED and self._open is not None:
            # Queued barriers count as soon as their epoch is captured.
            epoch = self._open.epoch
            for entry in self.inputs.values():
                marker = entry.find_barrier(epoch)
                if marker is not None and self._gate.epochs_logging(entry.channel) == epoch:
                    self._pass_barrier(entry.channel, marker)

    def _snapshot(self, snapshot: TakeSnapshot, since: float) -> None:
        """Capture the chain. ``since``: when the first barrier arrived, if before now."""
        epoch, began = snapshot.epoch, time.monotonic()
        self.chain.flush(whole=snapshot.aligned)
        hit("source.capture.before")
        positions = {source: reader.positions() for source, reader in self.parts.readers.items()}
        hit("source.capture.after")
        uploads = [self._timed(name, backend.snapshot, Epoch(epoch)) for name, backend in self.parts.backends.items()]
        timers = {name: backend.pending_timers() for name, backend in self.parts.backends.items()}
        counts = self.chain.counts.plus(RecordCounts())
        open_log = partial(self._session.open_log, self.segment, epoch)
        captured = self._open = ChainSnapshot(
            epoch,
            min(since, began),
            open_log,
            positions,
            uploads,
            self._seal(epoch),
            counts,
            {name: count for name, count in timers.items() if count is not None},
        )
        for edge, head in self._heads.items():
            self._log(edge, self.chain.list_pending_rows(head))
            captured.has_overdue_request |= self.chain.pass_barrier(head)
        for edge, queue in self.restored_rows.items():
            self._log(edge, queue)
        self._log_waiting(epoch)
        for edge in self._tails:
            captured.log_overtaken(
                edge, self._exchanges.send_barrier(edge, epoch, snapshot.unaligned, snapshot.aligned)
            )
        captured.blocked = time.monotonic() - began
        ended, head = time.time(), self.segment.heads[0]
        captured.spans.append(PhaseSpan("snapshot", ended - captured.blocked, ended, head))
        self.spent.busy += captured.blocked
        # Last, when all is captured: the next chain's snapshot may follow immediately.
        for edge in self._tails:
            self._session.deliver_barrier(edge, epoch, snapshot.aligned)

    def _log_waiting(self, epoch: int) -> None:
        """Log rows in the input queues before the barrier: rows that it overtakes, or in-flight rows of a loop."""
        for entry in self.inputs.values():
            if entry.find_barrier(epoch) is not None or self._gate.epochs_logging(entry.channel) == epoch:
                self._log(entry.edge, entry.iterate_before(epoch))

    def _log(self, edge: int, rows: Iterable[BatchOrFrame]) -> None:
        """Add rows to the logs of the epoch that is being captured."""
        self._capturing.log_received(edge, (self._exchanges.freeze(edge, part) for part in rows))

    def _complete(self) -> None:
        captured, self._open = self._capturing, None
        now = time.time()
        captured.aligning = time.monotonic() - captured.since
        captured.spans.append(PhaseSpan("align", now - captured.aligning, now, self.segment.heads[0]))
        hit("align.complete")
        self._session.on_captured(self.segment, captured)

    @property
    def _capturing(self) -> ChainSnapshot:
        if self._open is None:
            raise Bug(f"segment {self.segment.heads[0]} captures no epoch")
        return self._open
