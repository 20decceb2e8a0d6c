"""The open parts of one worker session: the tasks of its operator chains and its network, wired by the plan.

With one worker the plan is one chain and nothing is sent. With several it is cut at its exchanges: each worker runs
every chain, for its share of splits and key groups. A single worker cuts it too where rows wait for responses, and in a
session that restores in-flight rows: they are input like any other, and part of the next snapshot.

Rule: opening is all or nothing for the caller, and ``close`` releases everything without undoing anything.
"""

from __future__ import annotations

import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import PreCommit, Writer
from kafka_eos.abc.source import Reader, total_lag
from kafka_eos.abc.state import CacheUse, InFlightRows
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, RawRecord, RecordCounts, Watermark
from kafka_eos.plan import ChainSpec, ForwardNode, PartialFoldNode, Plan, RequestExchangeNode, SinkNode
from kafka_eos.protocol.barrier_alignment import CheckpointMode
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.exchange.network import BarrierArrived, WatermarkArrived
from kafka_eos.runtime.operators.event_time import PERIODIC
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.restore_progress import ProgressListener
from kafka_eos.runtime.state.rocksdb_options import spread
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, ProcessingTimeClock, wall_clock
from kafka_eos.runtime.worker.control_messages import StartSession
from kafka_eos.runtime.worker.segment_task import ChainSnapshot, Task, TaskParts
from kafka_eos.runtime.worker.task_resources import (
    RestoredCheckpoint,
    SubtaskRuntime,
    SubtaskSpec,
    list_excluded_splits,
)
from kafka_eos.runtime.worker.task_stats import (
    EventTimeMetrics,
    OperatorMetrics,
    SourceMetrics,
    SplitMetrics,
    WorkerMetrics,
)
from kafka_eos.runtime.worker.watermark_alignment import WatermarkAligner

_TICK = 0.05
"""Seconds between two checks of the clock for timers."""


class SessionRuntime:
    """Everything one worker session works with, opened and wired by the plan."""

    _chain: OperatorChain
    drift: WatermarkAligner

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        storage: CheckpointStorage,
        start: StartSession,
        local: Sequence[Path],
        subtask: int,
        peers: Mapping[int, socket.socket],
        done: Callable[[int, Sequence[ChainSnapshot]], None],
        on_progress: ProgressListener,
    ) -> None:
        """``done`` is called for each epoch that all chains have captured; ``on_progress`` with the restore
        progress."""
        self.readers: dict[str, Reader[Any]] = {}
        self.waiting_sources = start.waiting_sources
        """Sources that are not read yet, because others are read before them."""
        self.excluded_sources = start.excluded_sources
        """Those of them that event time does not wait for."""
        self.tasks: list[Task] = []
        self._written = dict.fromkeys((sink.name for sink in plan.sinks), 0)
        self._plan = plan
        self._settings = settings
        self._start = start
        self._storage = storage
        self._local = local[0]
        # Operators that store data on the local disk.
        on_disk = [node.name for node in plan.nodes if node.stateful or isinstance(node, PartialFoldNode)]
        self._subtask = subtask
        self._parallelism = start.parallelism
        self._done = done
        self._first = EpochId(Epoch(start.first_epoch), Term(start.term))
        share = SubtaskSpec(
            plan,
            settings,
            storage,
            JobIdentity(start.identity),
            self._first,
            subtask,
            start.parallelism,
            spread(on_disk, local, subtask).__getitem__,
        )
        self._opened = SubtaskRuntime(
            share, RestoredCheckpoint(start.positions, start.states, start.in_flight), on_progress
        )
        self._writers: dict[tuple[int, str], Writer[Any]] = {}
        self._unsealed: set[tuple[int, str]] = set()
        """Writers, by segment and sink, that were given rows since they were sealed."""
        self._since = time.perf_counter()
        self._current = 0
        """Index of the segment at work."""
        self._ticked = 0.0
        """When the clock was looked at, of another one."""
        self._tallies: dict[int, RecordCounts] = {}
        self._parts: list[ChainSnapshot] = []
        with self._opened.close_on_error():
            self._open(peers)

    # ------------------------------------------------------------ opening

    def _open(self, peers: Mapping[int, socket.socket]) -> None:
        plan = self._plan
        self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
        loops = {node.name for node in plan.feedbacks}
        asks = any(isinstance(node, RequestExchangeNode) for node in plan.nodes)
        cut = asks or bool(peers) or any(rows.exchange not in loops for rows in self._start.in_flight)
        self._segments = plan.segments if cut else plan.loops_only
        self.exchanges = Exchanges(
            plan,
            self._settings,
            plan.exchanges if cut else plan.feedbacks,
            peers,
            self._subtask,
            self._parallelism,
            self._local,
            self._opened.closing,
        )
        self._opened.open_state(plan.nodes)
        outputs = {sink.name: self._output(sink) for sink in plan.sinks}
        senders = {
            name: self.exchanges.make_row_output(edge, self._deliver) for name, edge in self.exchanges.edges.items()
        }
        self._tallies = {segment.index: RecordCounts() for segment in self._segments}
        tally = lambda: self._tallies[self._current]  # noqa: E731
        signals = {
            name: self.exchanges.make_watermark_output(edge, self._deliver_time)
            for name, edge in self.exchanges.edges.items()
        }
        clock = ProcessingTimeClock(wall_clock, UNKNOWN).now
        self._chain = self._opened.open_chain(
            outputs, senders, tally, signals=signals, pace=PERIODIC, clock=clock, waived=self._waived
        )
        self._services = Services(self._refuse_record, self._chain.reject_row, self._leave_out)
        for segment in self._segments:
            self._open_writers(segment)
        for source in plan.sources:
            context = self._opened.context(source.name, self._subtask, self._services)
            positions = self._start.positions.get(source.name, {})
            self.readers[source.name] = self._opened.reader(
                source, context, positions, waits=source.name in self.waiting_sources
            )
            self._chain.assign(source.name, positions.keys())
        alone, ends = self._parallelism == 1, self._start.ends or {}
        self.drift = WatermarkAligner.of(plan, self.readers, self._chain.get_watermark_operator, ends, alone)
        self.tasks = [self._task(segment) for segment in reversed(self._segments)]
        self._by_edge = {edge: task for task in self.tasks for edge in {edge for edge, _ in task.inputs}}
        self._load_in_flight()

    def _open_writers(self, segment: ChainSpec) -> None:
        """Open writers for a chain. Each chain has its own, because it handles its barrier at its own time."""
        for name in segment.nodes:
            node = self._plan.node(name)
            if isinstance(node, SinkNode):
                owner = segment.index * self._parallelism + self._subtask
                context = self._opened.context(name, owner, self._services)
                self._writers[segment.index, name] = self._opened.writer(node, context)

    def _task(self, segment: ChainSpec) -> Task:
        backends = self._opened.backends
        parts = TaskParts(
            {name: self.readers[name] for name in segment.heads if name in self.readers},
            {name: backends[name] for name in segment.nodes if name in backends},
            {name: writer for (index, name), writer in self._writers.items() if index == segment.index},
        )
        mode, timeout = alignment_of(self._settings, segment, self._plan)
        edges = self.exchanges.edges
        inputs = [entry for name in segment.heads if name in edges for entry in self.exchanges.inputs(name)]
        first = self._start.first_epoch
        return Task(segment, parts, inputs, edges, self._first.term, first, mode, timeout, self, self.exchanges)

    def _deliver(self, edge: int, rows: Batch[Any]) -> None:
        self._by_edge[edge].receive_rows(edge, self._subtask, rows)

    def _deliver_time(self, edge: int, watermark: Watermark) -> None:
        self._by_edge[edge].receive_watermark(edge, self._subtask, watermark)

    def _output(self, sink: SinkNode) -> Callable[[Batch[Any]], None]:
        def write(batch: Batch[Any]) -> None:
            self._written[sink.name] += len(batch)
            self._unsealed.add((self._current, sink.name))
            self._writers[self._current, sink.name].write(batch)

        return write

    def _refuse_record(self, source: str, raw: RawRecord, error: Exception) -> None:
        """Reject a record by the policy of its source's chain."""
        self._work_at(source)
        self._chain.reject_record(source, raw, error)

    def resume(self) -> None:
        """Resume the work that was due at the snapshot, before any row."""
        for task in self.tasks:  # downstream chains first: they receive the outputs of the others
            self._current = task.segment.index
            self._chain.resume(task.segment.nodes)

    def _leave_out(self, source: str, records: int) -> None:
        self._work_at(source)
        self._chain.count_filtered(source, records)

    def _work_at(self, source: str) -> None:
        self._current = next(segment.index for segment in self._segments if source in segment.heads)

    def _load_in_flight(self) -> None:
        """Queue the stored in-flight rows that are routed to this worker.

        They may exceed memory, for instance those of a slow loop.
        """
        for _, name, target, rows in self._opened.read_in_flight_rows(self.exchanges.nodes, self._local / "in-flight"):
            if target == self._subtask:
                edge = self.exchanges.edges[name]
                replay = self._by_edge[edge].restored_rows
                if edge not in replay:
                    replay[edge] = self.exchanges.spilling(f"replay-{edge}", edge)
                replay[edge].append(rows)
        if self._start.in_flight:
            hit("in-flight.replayed")

    # ------------------------------------------------------------ work

    @property
    def has_exchanges(self) -> bool:
        """Return whether this worker has exchanges."""
        return bool(self.exchanges.edges)

    @property
    def has_due_work(self) -> bool:
        """Return whether due work is pending."""
        return self._chain.has_due_work()

    @property
    def idle(self) -> bool:
        """Return whether nothing waits in this worker; there may be rows in the network."""
        return all(task.idle for task in self.tasks) and self.exchanges.empty

    def step(self, batch_size: int, idle: float) -> None:
        """Process arrived rows and read available ones; wait at most ``idle`` seconds."""
        self._look_at_the_clock()
        if not self.has_exchanges:
            if not sum(task.process(LIMITS.entries_per_turn) for task in self.tasks):
                self._read(batch_size, idle / len(self.readers))
            return
        self._receive(0.0)
        done = sum(task.process(LIMITS.entries_per_turn) for task in self.tasks)
        if not done + self._read(batch_size, 0.0):
            self._receive(idle / 4)

    def _look_at_the_clock(self) -> None:
        """Fire due processing-time timers where there is room for their output."""
        now = time.monotonic()
        if self._chain.clock_operators and now >= self._ticked + _TICK:
            self._ticked = now
            for task in self.tasks:
                if task.can_fire_timers:
                    self._current = task.segment.index
                    self._chain.tick(task.segment.nodes)
                    task.spent.busy += time.monotonic() - now

    def drain(self, idle: float) -> None:
        """Process what has arrived, read nothing."""
        self._receive(0.0)
        if not sum(task.process(LIMITS.entries_per_turn) for task in self.tasks):
            self._receive(idle / 4)

    def _read(self, batch_size: int, wait: float) -> int:
        self.drift.update_pauses()
        return sum(task.read(batch_size, wait) for task in self.tasks)

    def _receive(self, timeout: float) -> None:
        for arrival in self.exchanges.pump(time.monotonic(), timeout):
            task = self._by_edge[arrival.edge]
            if isinstance(arrival, BarrierArrived):
                task.receive_barrier(arrival.edge, arrival.sender, arrival.epoch, arrival.aligned)
            elif isinstance(arrival, WatermarkArrived):
                task.receive_watermark(arrival.edge, arrival.sender, arrival.watermark)
            else:
                task.receive_rows(arrival.edge, arrival.sender, arrival.frame)

    def assign(self, source: str, positions: Positions) -> None:
        """Read new splits of a source here, too."""
        self.readers[source].assign(positions)
        self._chain.assign(source, positions.keys())

    def trigger(self, epoch: EpochId, aligned: bool) -> None:
        """Begin an epoch at the sources. ``done`` is called when every chain has captured it."""
        for task in reversed(self.tasks):
            task.trigger(epoch.epoch.n, aligned)

    def abort(self, epoch: EpochId) -> list[PreCommit]:
        """Abort an epoch; return the pre-commits of its output."""
        captured, self._parts = self._parts, []
        for part in captured:
            part.drop()
        left: list[PreCommit] = [prepare for part in captured for prepare in part.precommits]
        return left + [prepare for task in self.tasks for prepare in task.abort(epoch.epoch.n)]

    def completed(self, epoch: EpochId) -> None:
        """Handle that the epoch is committed: writers may reuse what they kept for it."""
        for writer in self._writers.values():
            writer.notify_committed(epoch)

    def poll_writers(self) -> None:
        """Poll the clients of all writers."""
        for writer in self._writers.values():
            writer.poll()

    def has_reached(self, ends: Mapping[str, Positions]) -> bool:
        return all(reader.has_reached(ends.get(name, {})) for name, reader in self.readers.items())

    def figures(self) -> WorkerMetrics:
        """Return the metrics of this worker."""
        lags = {name: reader.get_lag_by_split() for name, reader in self.readers.items()}
        lag = total_lag(total_lag(each.values()) if each else self.readers[name].lag() for name, each in lags.items())
        read = {
            name: SourceMetrics(
                sum(task.records.get(name, 0) for task in self.tasks),
                {split: SplitMetrics(at, lags[name].get(split)) for split, at in reader.positions().items()},
            )
            for name, reader in self.readers.items()
        }
        segments = {task.segment.heads[0]: task.spent.seconds() for task in self.tasks}
        holding = Counter(sink for _, sink in self._unsealed)
        open_now = {sink: holding[sink] for sink in self._written}
        counted = {name: did.counted for name, did in self._chain.stats.items() if did.counters}
        operators = self._operators()
        return WorkerMetrics(
            read,
            dict(self._written),
            lag,
            self.drift.describe_groups(),
            segments,
            operators,
            open_now,
            counted,
            self._event_time(),
        )

    def _event_time(self) -> dict[str, EventTimeMetrics]:
        return {
            name: EventTimeMetrics(
                emitted.time, emitted.idle, {split: at.time for split, at in progress.items() if not at.idle}
            )
            for name, (emitted, progress) in self._chain.emitted_watermarks.items()
        }

    def _operators(self) -> dict[str, OperatorMetrics]:
        """Return the metrics of each operator; blocked time is that of its whole chain."""
        now, found = time.perf_counter(), dict[str, OperatorMetrics]()
        for task in self.tasks:
            blocked = task.spent.seconds()["blocked"]
            for name in (*task.parts.readers, *task.segment.nodes):
                if name in found:
                    continue  # a dead-letter sink that several chains share
                did, backend = self._chain.stats[name], self._opened.backends.get(name)
                busy = did.busy + task.own_seconds.get(name, 0.0)
                use = backend.cache() if backend is not None else CacheUse(0, 0)
                idle = max(0.0, now - self._since - busy - blocked)
                found[name] = OperatorMetrics(did.rows_in, did.rows_out, busy, blocked, idle, use.misses, use.entries)
        return found

    def watermarks(self) -> dict[str, dict[str, int]]:
        """Return the event time of each split that is read here, by operator."""
        return self._chain.watermarks()

    def store(self, captured: ChainSnapshot) -> tuple[InFlightRows, ...]:
        """Upload in-flight rows. Called on the background thread. Raises OSError if they cannot be stored."""
        groups = [(False, edge, log) for edge, log in sorted(captured.received.items())]
        groups += [(True, edge, log) for edge, log in sorted(captured.overtaken.items())]
        return tuple(self.exchanges.store(self._storage, overtaken, edge, log) for overtaken, edge, log in groups)

    def close(self) -> None:
        self._opened.close()

    # ------------------------------------------------------------ surroundings of the tasks

    def push(self, segment: ChainSpec, head: str, batch: Batch[Any] | None) -> None:
        self._current = segment.index
        if batch is None:
            self._chain.note_empty_read(head)
        else:
            self._chain.push(head, batch)

    def advance_time(self, segment: ChainSpec, head: str, watermark: Watermark) -> None:
        self._current = segment.index
        self._chain.advance(head, watermark)

    def busy(self, segment: ChainSpec) -> bool:
        return self._chain.has_due_work(segment.nodes)

    def continue_due(self, segment: ChainSpec) -> None:
        self._current = segment.index
        self._chain.continue_due(segment.nodes)

    def collect(self, segment: ChainSpec) -> int:
        self._current = segment.index
        return self._chain.emit_answered(segment.nodes)

    def is_full(self, head: str) -> bool:
        return self._chain.is_full(head)

    def has_pending(self, head: str) -> bool:
        return self._chain.has_pending(head)

    def list_pending_rows(self, head: str) -> Sequence[Batch[Any]]:
        return self._chain.list_pending_rows(head)

    def pass_barrier(self, head: str) -> bool:
        return self._chain.pass_barrier(head)

    def flush(self, segment: ChainSpec, whole: bool) -> None:
        self._current = segment.index
        self._chain.flush(segment.nodes, whole=whole)

    def tally(self, segment: ChainSpec) -> RecordCounts:
        return self._tallies[segment.index].plus(RecordCounts())

    def mark_sealed(self, segment: ChainSpec) -> None:
        self._unsealed = {(index, sink) for index, sink in self._unsealed if index != segment.index}

    def waits(self, source: str) -> bool:
        return source in self.waiting_sources

    def skip_source(self, segment: ChainSpec, source: str) -> None:
        if source in self.excluded_sources:
            self.push(segment, source, None)

    def _waived(self, source: str) -> Collection[str]:
        """Return the splits that are excluded from the watermark."""
        positions = self.readers[source].positions()
        return (
            positions.keys() if source in self.excluded_sources else list_excluded_splits(self._plan, source, positions)
        )

    def room(self, edge: int) -> bool:
        local = self._by_edge[edge].inputs[edge, self._subtask]
        if local.feedback:
            return True  # a loop that waits for itself deadlocks
        if self._chain.is_full(self.exchanges.nodes[edge].name):
            return False
        return local.uncredited < LIMITS.local_channel_entries and self.exchanges.has_room(edge)

    def log(self, segment: ChainSpec, edge: int, epoch: int, name: str) -> in_flight.InFlightLog:
        return in_flight.InFlightLog(self._local / f"frames-{segment.index}-{edge}-{epoch}-{name}")

    def deliver_barrier(self, edge: int, epoch: int, aligned: bool) -> None:
        self._by_edge[edge].receive_barrier(edge, self._subtask, epoch, aligned)

    def on_captured(self, segment: ChainSpec, epoch: int, captured: ChainSnapshot) -> None:
        self._parts.append(captured)
        if len(self._parts) == len(self.tasks):
            parts, self._parts = self._parts, []
            self._done(epoch, parts)


def alignment_of(settings: Settings, segment: ChainSpec, plan: Plan) -> tuple[CheckpointMode, float]:
    """Return the mode of a chain's gate, and the seconds until an alignment becomes an unaligned snapshot.

    A chain aligns its barriers in any mode if it reads rows of unknown type, which cannot be stored in flight, or rows
    from which broadcast state is built, which must have reached all subtasks.
    """
    forwards = (node for node in map(plan.node, segment.heads) if isinstance(node, ForwardNode))
    copies = plan.replicating_exchanges.intersection(segment.heads)
    match settings.checkpoint_mode:
        case "unaligned" if not copies and all(node.typed for node in forwards):
            return CheckpointMode.UNALIGNED, settings.aligned_timeout
        case "at-least-once":
            return CheckpointMode.AT_LEAST_ONCE, math.inf
        case _:
            return CheckpointMode.ALIGNED, math.inf
