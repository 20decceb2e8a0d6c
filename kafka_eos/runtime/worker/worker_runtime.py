"""The open parts of one worker session: the tasks of its operator chains and its network, wired by the plan.

With one worker the plan is one chain and nothing is sent. With several it is cut at its exchanges: each worker runs
every chain, for its share of splits and key groups. A single worker cuts it too where rows wait for responses, and in a
session that restores in-flight rows: they are input like any other, and part of the next snapshot.

Rule: opening is all or nothing for the caller, and ``close`` releases everything without undoing anything.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.services import Resources, Services
from kafka_eos.abc.sink import PreCommit, Writer
from kafka_eos.abc.source import Reader, total_lag
from kafka_eos.abc.state import CacheUse, InFlightRows
from kafka_eos.abc.storage import CheckpointStorage, FileBatch
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import ChainSpec, ForwardNode, Plan, RequestExchangeNode, SinkNode
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.barrier_alignment import CheckpointMode
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.exchange.network import BarrierArrived, WatermarkArrived
from kafka_eos.runtime.operators.event_time import PERIODIC
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.operators.watermark_generation import TimestampsOperator
from kafka_eos.runtime.state.restore_progress import ProgressListener
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, ProcessingTimeClock, wall_clock
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.control_messages import StartSession
from kafka_eos.runtime.worker.segment_task import CountingWriter, Task, TaskParts
from kafka_eos.runtime.worker.task_resources import SubtaskRuntime
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

    drift: WatermarkAligner

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        storage: CheckpointStorage,
        start: StartSession,
        local: Sequence[Path],
        peers: Mapping[int, DataSocket],
        done: Callable[[int, Sequence[ChainSnapshot]], None],
        on_progress: ProgressListener,
    ) -> None:
        """``done`` is called for each epoch that all chains have captured; ``on_progress`` with the restore
        progress."""
        self.readers: dict[str, Reader[Any]] = {}
        self.waiting_sources = start.waiting_sources
        """Sources that are not read yet, because others are read before them."""
        self.excluded_sources = start.excluded_sources
        """The waiting sources that are excluded from the watermark."""
        self.tasks: list[Task] = []
        self._plan = plan
        self._settings = settings
        self._start = start
        self._local = local[0]
        self._subtask, self._parallelism = start.subtask, start.parallelism
        self._done = done
        self._opened = SubtaskRuntime(plan, settings, storage, start, local, on_progress)
        self._since = time.perf_counter()
        self._ticked = 0.0
        """The time of the last check of processing-time timers, by the monotonic clock."""
        self._parts: list[ChainSnapshot] = []
        with self._opened.close_on_error():
            self._open(peers)

    # ------------------------------------------------------------ opening

    def _open(self, peers: Mapping[int, DataSocket]) -> None:
        plan = self._plan
        self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
        loops = {node.name for node in plan.feedbacks}
        asks = any(isinstance(node, RequestExchangeNode) for node in plan.nodes)
        cut = asks or bool(peers) or any(rows.exchange not in loops for rows in self._start.in_flight)
        segments = plan.segments if cut else plan.loops_only
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
        clock, resources = ProcessingTimeClock(wall_clock, UNKNOWN).now, Resources()
        self.tasks = [self._open_task(segment, clock, resources) for segment in segments][::-1]
        self.readers = {name: reader for task in self.tasks for name, reader in task.parts.readers.items()}
        alone, ends = self._parallelism == 1, self._start.ends or {}
        self.drift = WatermarkAligner.of(plan, self.readers, self._get_watermark_operator, ends, alone)
        self._by_edge = {edge: task for task in self.tasks for edge in {edge for edge, _ in task.inputs}}
        self._load_in_flight()

    def _open_task(self, segment: ChainSpec, clock: Callable[[], int], resources: Resources) -> Task:
        """Open the parts of a chain. It has writers of its own, because it handles its barrier at its own time."""
        writers = dict[str, CountingWriter]()
        chain = self._open_chain(segment, writers, clock)
        rejections, count_filtered = chain.rejections, chain.counts.add_filtered
        services = Services(rejections.reject_record, rejections.reject_output, count_filtered, session=resources)
        nodes = [self._plan.node(name) for name in segment.nodes]
        for sink in (node for node in nodes if isinstance(node, SinkNode)):
            owner = segment.index * self._parallelism + self._subtask
            writers[sink.name] = CountingWriter(
                self._opened.writer(sink, self._opened.context(sink.name, owner, services))
            )
        readers = dict[str, Reader[Any]]()
        for source in (source for source in self._plan.sources if source.name in segment.heads):
            context = self._opened.context(source.name, self._subtask, services)
            positions = self._start.positions.get(source.name, {})
            waits = source.name in self.waiting_sources
            readers[source.name] = self._opened.reader(source, context, positions, waits=waits)
            chain.assign(source.name, positions.keys())
        backends = {name: self._opened.backends[name] for name in segment.nodes if name in self._opened.backends}
        parts = TaskParts(chain, readers, backends, writers)
        mode, timeout = alignment_of(self._settings, segment, self._plan)
        edges = self.exchanges.edges
        inputs = [entry for name in segment.heads if name in edges for entry in self.exchanges.inputs(name)]
        term, first = Term(self._start.term), self._start.first_epoch
        return Task(segment, parts, inputs, edges, term, first, mode, timeout, self, self.exchanges)

    def _deliver(self, edge: int, rows: Batch[Any]) -> None:
        self._by_edge[edge].receive_rows(edge, self._subtask, rows)

    def _deliver_time(self, edge: int, watermark: Watermark) -> None:
        self._by_edge[edge].receive_watermark(edge, self._subtask, watermark)

    def _open_chain(
        self, segment: ChainSpec, writers: Mapping[str, CountingWriter], clock: Callable[[], int]
    ) -> OperatorChain:
        """Open the operators of a chain. Its writers are opened after it, because they reject rows by it."""

        def output(sink: str) -> Callable[[Batch[Any]], None]:
            return lambda batch: writers[sink].write(batch)

        exchanges, edges = self.exchanges, self.exchanges.edges.items()
        return self._opened.open_chain(
            {sink.name: output(sink.name) for sink in self._plan.sinks if sink.name in segment.nodes},
            {name: exchanges.make_row_output(edge, self._deliver) for name, edge in edges},
            segment.nodes,
            signals={name: exchanges.make_watermark_output(edge, self._deliver_time) for name, edge in edges},
            pace=PERIODIC,
            clock=clock,
            waived=self._waived,
        )

    def _get_watermark_operator(self, name: str) -> TimestampsOperator:
        return self._chain_of(name).event_time.get_operator(name)

    def _chain_of(self, node: str) -> OperatorChain:
        """Return the chain in which a source or an operator works."""
        return next(task.chain for task in self.tasks if node in task.segment.nodes)

    def resume(self) -> None:
        """Resume the work that was due at the snapshot, before any row."""
        for task in self.tasks:  # downstream chains first: they receive the outputs of the others
            task.chain.resume()

    def _load_in_flight(self) -> None:
        """Queue the stored in-flight rows that are routed to this worker.

        They may exceed memory, for instance those of a slow loop.
        """
        for name, rows in self._opened.read_in_flight_rows(self.exchanges.nodes, self._local / "in-flight"):
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
        return any(task.chain.has_due_work for task in self.tasks)

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
        if now >= self._ticked + _TICK:
            self._ticked = now
            for task in self.tasks:
                if task.chain.clock_operators and task.can_fire_timers:
                    task.chain.tick()
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
        self._chain_of(source).assign(source, positions.keys())

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
        for writer in self._writers:
            writer.notify_committed(epoch)

    def poll_writers(self) -> None:
        """Poll the clients of all writers."""
        for writer in self._writers:
            writer.poll()

    @property
    def _writers(self) -> list[Writer[Any]]:
        return [each.writer for task in self.tasks for each in task.parts.writers.values()]

    def has_reached(self, ends: Mapping[str, Positions]) -> bool:
        return all(reader.has_reached(ends.get(name, {})) for name, reader in self.readers.items())

    def figures(self) -> WorkerMetrics:
        """Return the metrics of this worker."""
        lags = {name: reader.get_lag_by_split() for name, reader in self.readers.items()}
        lag = total_lag(total_lag(each.values()) if each else self.readers[name].lag() for name, each in lags.items())
        read = {
            name: SourceMetrics(
                sum(task.records.get(name, 0) for task in self.tasks),
                {
                    split: SplitMetrics(at, lags[name].get(split))
                    for split, at in select_shown_positions(reader).items()
                },
            )
            for name, reader in self.readers.items()
        }
        segments = {task.segment.heads[0]: task.spent.seconds() for task in self.tasks}
        written, unsealed = Counter[str](), Counter[str]()
        for task in self.tasks:
            for sink, writer in task.parts.writers.items():
                written[sink] += writer.written
                unsealed[sink] += writer.unsealed
        counted = {name: did.counted for task in self.tasks for name, did in task.chain.stats.items() if did.counters}
        groups, operators = self.drift.describe_groups(), self._operators()
        return WorkerMetrics(
            read, dict(written), lag, groups, segments, operators, dict(unsealed), counted, self._event_time()
        )

    def _event_time(self) -> dict[str, EventTimeMetrics]:
        return {
            name: EventTimeMetrics(
                emitted.time,
                emitted.idle,
                min(((at.time, split) for split, at in progress.items() if not at.idle), default=None),
            )
            for task in self.tasks
            for name, (emitted, progress) in task.chain.event_time.emitted.items()
        }

    def _operators(self) -> dict[str, OperatorMetrics]:
        """Return the metrics of each operator; blocked time is that of its whole chain."""
        now, found = time.perf_counter(), dict[str, OperatorMetrics]()
        for task in self.tasks:
            blocked = task.spent.seconds()["blocked"]
            for name in (*task.parts.readers, *task.segment.nodes):
                if name in found:
                    continue  # a dead-letter sink that several chains share
                # an exchange works in two chains
                did, backend = [each.chain.stats[name] for each in self.tasks], self._opened.backends.get(name)
                busy = sum(each.busy for each in did) + task.own_seconds.get(name, 0.0)
                use = backend.cache() if backend is not None else CacheUse(0, 0)
                idle = max(0.0, now - self._since - busy - blocked)
                rows_in, rows_out = sum(each.rows_in for each in did), sum(each.rows_out for each in did)
                found[name] = OperatorMetrics(rows_in, rows_out, busy, blocked, idle, use.misses, use.entries)
        return found

    def watermarks(self) -> dict[str, dict[str, int]]:
        """Return the event time of each split that is read here, by operator."""
        return {name: splits for task in self.tasks for name, splits in task.chain.event_time.by_split.items()}

    def add_in_flight(self, batch: FileBatch, captured: ChainSnapshot) -> list[Callable[[], InFlightRows]]:
        """Add in-flight rows to a batch. The returned functions are called when the batch is stored.

        Called on the background thread. Raises OSError if they cannot be stored.
        """
        groups = [(False, edge, log) for edge, log in sorted(captured.received.items())]
        groups += [(True, edge, log) for edge, log in sorted(captured.overtaken.items())]
        return [self.exchanges.add_in_flight(batch, overtaken, edge, log) for overtaken, edge, log in groups]

    def close(self) -> None:
        self._opened.close()

    # ------------------------------------------------------------ for the tasks

    def _waived(self, source: str) -> Collection[str]:
        """Return the splits that are excluded from the watermark."""
        positions = self.readers[source].positions()
        if source in self.excluded_sources:
            return positions.keys()
        connector = next(node.source for node in self._plan.sources if node.name == source)
        return connector.list_excluded_splits(bootstrap.connector_positions(positions))

    def has_room(self, edge: int) -> bool:
        """Return whether more rows may be produced for this exchange."""
        task = self._by_edge[edge]
        local = task.inputs[edge, self._subtask]
        if local.feedback:
            return True  # a loop that waits for itself deadlocks
        if task.chain.is_full(self.exchanges.nodes[edge].name):
            return False
        return local.uncredited < LIMITS.local_channel_entries and self.exchanges.has_room(edge)

    def open_log(self, segment: ChainSpec, epoch: int, edge: int, name: str) -> in_flight.InFlightLog:
        return in_flight.InFlightLog(self._local / f"frames-{segment.index}-{edge}-{epoch}-{name}")

    def deliver_barrier(self, edge: int, epoch: int, aligned: bool) -> None:
        self._by_edge[edge].receive_barrier(edge, self._subtask, epoch, aligned)

    def on_captured(self, segment: ChainSpec, captured: ChainSnapshot) -> None:
        self._parts.append(captured)
        if len(self._parts) == len(self.tasks):
            parts, self._parts = self._parts, []
            self._done(captured.epoch, parts)


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


def select_shown_positions(reader: Reader[Any]) -> Positions:
    """Return the positions of a reader; of very many, those of splits that are not at their end come first."""
    positions = reader.positions()
    if len(positions) <= LIMITS.splits_shown:
        return positions
    at_end = frozenset(reader.list_splits_at_end())
    return dict(sorted(positions.items(), key=lambda each: each[0] in at_end)[: LIMITS.splits_shown])
