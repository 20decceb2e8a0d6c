"""One session of a worker, open: the tasks of its segments and its network, wired by the plan.

With one worker the plan is one segment and nothing is sent anywhere. With several it is cut at its exchanges: each
worker runs every segment, for its share of splits and key groups. A single worker cuts it too where rows wait for
answers, and in a session that begins with rows under way: they are input like any other, and part of the next snapshot.

Rule: opening is all or nothing for the caller, and ``close`` lets go of everything without undoing anything.
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
from kafka_eos.abc.sink import Attended, PreCommit, Writer
from kafka_eos.abc.source import LagOfEach, Reader, total_lag
from kafka_eos.abc.state import CacheUse, InFlight
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, RawRecord, Tally, Watermark
from kafka_eos.plan import Forward, PartialFold, Plan, Requests, Segment, Sink
from kafka_eos.protocol.barrier_alignment import Mode
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.exchange.network import BarrierArrived, WatermarkArrived
from kafka_eos.runtime.operators.event_time import STEADILY
from kafka_eos.runtime.operators.operator_chain import Chain
from kafka_eos.runtime.state.restore_progress import Told
from kafka_eos.runtime.state.rocksdb_options import spread
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, ProcessingTime, wall_clock
from kafka_eos.runtime.worker.control_messages import Start
from kafka_eos.runtime.worker.segment_task import Captured, Parts, Task
from kafka_eos.runtime.worker.task_resources import Base, OpenTask, Share, not_waited_for
from kafka_eos.runtime.worker.task_stats import Figures, Operator, Read, Split
from kafka_eos.runtime.worker.watermark_alignment import Drift

_TICK = 0.05
"""Seconds between two looks at the clock for timers."""


class OpenPlan:
    """What a session works with; see ``task.Surroundings``."""

    _chain: Chain
    drift: Drift

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        storage: CheckpointStorage,
        start: Start,
        local: Sequence[Path],
        subtask: int,
        peers: Mapping[int, socket.socket],
        done: Callable[[int, Sequence[Captured]], None],
        told: Told,
    ) -> None:
        """``done`` hears of each epoch to which all segments have come; ``told`` how far the restore is."""
        self.readers: dict[str, Reader[Any]] = {}
        self.waiting = start.waiting
        """Sources that are not read yet, because others are read before them."""
        self.silent = start.silent
        """Those of them that event time does not wait for."""
        self.tasks: list[Task] = []
        self._written = dict.fromkeys((sink.name for sink in plan.sinks), 0)
        self._plan, self._settings, self._start, self._storage, self._local = plan, settings, start, storage, local[0]
        # Operators that keep something on the local disk.
        on_disk = [node.name for node in plan.nodes if node.stateful or isinstance(node, PartialFold)]
        self._subtask, self._parallelism, self._done = subtask, start.parallelism, done
        self._first = EpochId(Epoch(start.first_epoch), Term(start.term))
        share = Share(
            plan,
            settings,
            storage,
            JobIdentity(start.identity),
            self._first,
            subtask,
            start.parallelism,
            spread(on_disk, local, subtask).__getitem__,
        )
        self._opened = OpenTask(share, Base(start.positions, start.states, start.in_flight), told)
        self._writers: dict[tuple[int, str], Writer[Any]] = {}
        self._unsealed: set[tuple[int, str]] = set()
        """Writers, by segment and sink, that were given rows since they were sealed."""
        self._since = time.perf_counter()
        self._current = 0
        """Index of the segment at work."""
        self._ticked = 0.0
        """When the clock was looked at, of another one."""
        self._tallies: dict[int, Tally] = {}
        self._parts: list[Captured] = []
        with self._opened.opening():
            self._open(peers)

    # ------------------------------------------------------------ opening

    def _open(self, peers: Mapping[int, socket.socket]) -> None:
        plan = self._plan
        self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
        loops = {node.name for node in plan.feedbacks}
        asks = any(isinstance(node, Requests) for node in plan.nodes)
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
        self._opened.restore(plan.nodes)
        outputs = {sink.name: self._output(sink) for sink in plan.sinks}
        senders = {name: self.exchanges.sender(edge, self._deliver) for name, edge in self.exchanges.edges.items()}
        self._tallies = {segment.index: Tally() for segment in self._segments}
        tally = lambda: self._tallies[self._current]  # noqa: E731
        signals = {name: self.exchanges.signal(edge, self._deliver_time) for name, edge in self.exchanges.edges.items()}
        clock = ProcessingTime(wall_clock, UNKNOWN).now
        self._chain = self._opened.connect(
            outputs, senders, tally, signals=signals, pace=STEADILY, clock=clock, waived=self._waived
        )
        self._services = Services(self._refuse_record, self._chain.refuse_row, self._leave_out)
        for segment in self._segments:
            self._open_writers(segment)
        for source in plan.sources:
            context = self._opened.context(source.name, self._subtask, self._services)
            positions = self._start.positions.get(source.name, {})
            self.readers[source.name] = self._opened.reader(
                source, context, positions, waits=source.name in self.waiting
            )
            self._chain.assign(source.name, positions.keys())
        alone, ends = self._parallelism == 1, self._start.ends or {}
        self.drift = Drift.of(plan, self.readers, self._chain.making_time, ends, alone)
        self.tasks = [self._task(segment) for segment in reversed(self._segments)]
        self._by_edge = {edge: task for task in self.tasks for edge in {edge for edge, _ in task.inputs}}
        self._replay()

    def _open_writers(self, segment: Segment) -> None:
        """Each segment has writers of its own, because each comes to its barrier at its own time."""
        for name in segment.nodes:
            node = self._plan.node(name)
            if isinstance(node, Sink):
                owner = segment.index * self._parallelism + self._subtask
                context = self._opened.context(name, owner, self._services)
                self._writers[segment.index, name] = self._opened.writer(node, context)

    def _task(self, segment: Segment) -> Task:
        backends = self._opened.backends
        parts = Parts(
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
        self._by_edge[edge].rows(edge, self._subtask, rows)

    def _deliver_time(self, edge: int, watermark: Watermark) -> None:
        self._by_edge[edge].watermark(edge, self._subtask, watermark)

    def _output(self, sink: Sink) -> Callable[[Batch[Any]], None]:
        def write(batch: Batch[Any]) -> None:
            self._written[sink.name] += len(batch)
            self._unsealed.add((self._current, sink.name))
            self._writers[self._current, sink.name].write(batch)

        return write

    def _refuse_record(self, source: str, raw: RawRecord, error: Exception) -> None:
        """The chain's, at work in the segment of the source."""
        self._work_at(source)
        self._chain.refuse_record(source, raw, error)

    def resume(self) -> None:
        """Begin with what was due when the snapshot was taken, before any row."""
        for task in self.tasks:  # the last segment first: rows for it come from the others
            self._current = task.segment.index
            self._chain.resume(task.segment.nodes)

    def _leave_out(self, source: str, records: int) -> None:
        self._work_at(source)
        self._chain.left_out(source, records)

    def _work_at(self, source: str) -> None:
        self._current = next(segment.index for segment in self._segments if source in segment.heads)

    def _replay(self) -> None:
        """Take the rows that were under way in the epoch before, as far as they are routed to this worker.

        They may be more than memory holds: those of a slow loop are.
        """
        for _, name, target, rows in self._opened.under_way(self.exchanges.nodes, self._local / "in-flight"):
            if target == self._subtask:
                edge = self.exchanges.edges[name]
                replay = self._by_edge[edge].replay
                if edge not in replay:
                    replay[edge] = self.exchanges.spilling(f"replay-{edge}", edge)
                replay[edge].append(rows)
        if self._start.in_flight:
            hit("in-flight.replayed")

    # ------------------------------------------------------------ work

    @property
    def connected(self) -> bool:
        """Do rows come from elsewhere than the sources?"""
        return bool(self.exchanges.edges)

    @property
    def due(self) -> bool:
        """Is what time has made due not done yet?"""
        return self._chain.busy()

    @property
    def idle(self) -> bool:
        """Nothing waits in this worker; on the network something may."""
        return all(task.idle for task in self.tasks) and self.exchanges.empty

    def advance(self, batch_size: int, idle: float) -> None:
        """Process what has arrived and read what there is; wait at most ``idle`` seconds if there is nothing."""
        self._look_at_the_clock()
        if not self.connected:
            if not sum(task.work(LIMITS.entries_per_turn) for task in self.tasks):
                self._read(batch_size, idle / len(self.readers))
            return
        self._receive(0.0)
        done = sum(task.work(LIMITS.entries_per_turn) for task in self.tasks)
        if not done + self._read(batch_size, 0.0):
            self._receive(idle / 4)

    def _look_at_the_clock(self) -> None:
        """Timers of processing time fire, where what they make has room."""
        now = time.monotonic()
        if self._chain.clocked and now >= self._ticked + _TICK:
            self._ticked = now
            for task in self.tasks:
                if task.may_tick:
                    self._current = task.segment.index
                    self._chain.tick(task.segment.nodes)
                    task.spent.busy += time.monotonic() - now

    def work(self, idle: float) -> None:
        """Process what has arrived, and read nothing: the last barrier is on its way."""
        self._receive(0.0)
        if not sum(task.work(LIMITS.entries_per_turn) for task in self.tasks):
            self._receive(idle / 4)

    def _read(self, batch_size: int, wait: float) -> int:
        self.drift.look()
        return sum(task.read(batch_size, wait) for task in self.tasks)

    def _receive(self, timeout: float) -> None:
        for arrival in self.exchanges.pump(time.monotonic(), timeout):
            task = self._by_edge[arrival.edge]
            if isinstance(arrival, BarrierArrived):
                task.barrier(arrival.edge, arrival.sender, arrival.epoch, arrival.aligned)
            elif isinstance(arrival, WatermarkArrived):
                task.watermark(arrival.edge, arrival.sender, arrival.watermark)
            else:
                task.rows(arrival.edge, arrival.sender, arrival.frame)

    def assign(self, source: str, positions: Positions) -> None:
        """New splits of a source are read here, too."""
        self.readers[source].assign(positions)
        self._chain.assign(source, positions.keys())

    def trigger(self, epoch: EpochId, aligned: bool) -> None:
        """Begin an epoch at the sources. ``done`` is called when every segment has come to it."""
        for task in reversed(self.tasks):
            task.trigger(epoch.epoch.n, aligned)

    def abort(self, epoch: EpochId) -> list[PreCommit]:
        """The epoch is given up. Returns what must still be prepared of its output."""
        captured, self._parts = self._parts, []
        for part in captured:
            part.drop()
        left: list[PreCommit] = [prepare for part in captured for prepare in part.precommits]
        return left + [prepare for task in self.tasks for prepare in task.abort(epoch.epoch.n)]

    def completed(self, epoch: EpochId) -> None:
        """The epoch is committed: writers may reuse what they kept for it."""
        for writer in self._writers.values():
            writer.committed(epoch)

    def attend(self) -> None:
        """To be called now and then: what is written to may have something to say, though nothing is written."""
        for writer in self._writers.values():
            if isinstance(writer, Attended):
                writer.attend()

    def reached(self, ends: Mapping[str, Positions]) -> bool:
        return all(reader.reached(ends.get(name, {})) for name, reader in self.readers.items())

    def figures(self) -> Figures:
        """How far this worker is."""
        lags = {name: reader.lags() if isinstance(reader, LagOfEach) else {} for name, reader in self.readers.items()}
        lag = total_lag(total_lag(each.values()) if each else self.readers[name].lag() for name, each in lags.items())
        read = {
            name: Read(
                sum(task.records.get(name, 0) for task in self.tasks),
                {split: Split(at, lags[name].get(split)) for split, at in reader.positions().items()},
            )
            for name, reader in self.readers.items()
        }
        segments = {task.segment.heads[0]: task.spent.seconds() for task in self.tasks}
        holding = Counter(sink for _, sink in self._unsealed)
        open_now = {sink: holding[sink] for sink in self._written}
        counted = {name: did.counted for name, did in self._chain.worked.items() if did.counters}
        operators = self._operators()
        return Figures(read, dict(self._written), lag, self.drift.held(), segments, operators, open_now, counted)

    def _operators(self) -> dict[str, Operator]:
        """What each has done, and what kept it: the segment that it works in is blocked as a whole."""
        now, found = time.perf_counter(), dict[str, Operator]()
        for task in self.tasks:
            blocked = task.spent.seconds()["blocked"]
            for name in (*task.parts.readers, *task.segment.nodes):
                if name in found:
                    continue  # a sink for dead letters of several segments
                did, backend = self._chain.worked[name], self._opened.backends.get(name)
                busy = did.busy + task.own.get(name, 0.0)
                use = backend.cache() if backend is not None else CacheUse(0, 0)
                idle = max(0.0, now - self._since - busy - blocked)
                found[name] = Operator(did.came, did.left, busy, blocked, idle, use.loads, use.entries)
        return found

    def watermarks(self) -> dict[str, dict[str, int]]:
        """How far each split that is read here has come in event time, by operator."""
        return self._chain.watermarks()

    def store(self, captured: Captured) -> tuple[InFlight, ...]:
        """Upload rows under way. Called on the background thread. OSError if they cannot be stored."""
        groups = [(False, edge, log) for edge, log in sorted(captured.received.items())]
        groups += [(True, edge, log) for edge, log in sorted(captured.overtaken.items())]
        return tuple(self.exchanges.store(self._storage, overtaken, edge, log) for overtaken, edge, log in groups)

    def close(self) -> None:
        self._opened.close()

    # ------------------------------------------------------------ surroundings of the tasks

    def push(self, segment: Segment, head: str, batch: Batch[Any] | None) -> None:
        self._current = segment.index
        if batch is None:
            self._chain.nothing_read(head)
        else:
            self._chain.push(head, batch)

    def advance_time(self, segment: Segment, head: str, watermark: Watermark) -> None:
        self._current = segment.index
        self._chain.advance(head, watermark)

    def busy(self, segment: Segment) -> bool:
        return self._chain.busy(segment.nodes)

    def go_on(self, segment: Segment) -> None:
        self._current = segment.index
        self._chain.go_on(segment.nodes)

    def collect(self, segment: Segment) -> int:
        self._current = segment.index
        return self._chain.collect(segment.nodes)

    def full(self, head: str) -> bool:
        return self._chain.full(head)

    def holding(self, head: str) -> bool:
        return self._chain.holding(head)

    def held(self, head: str) -> Sequence[Batch[Any]]:
        return self._chain.held(head)

    def unanswered(self, head: str) -> bool:
        return self._chain.unanswered(head)

    def flush(self, segment: Segment, whole: bool) -> None:
        self._current = segment.index
        self._chain.flush(segment.nodes, whole=whole)

    def tally(self, segment: Segment) -> Tally:
        return self._tallies[segment.index].plus(Tally())

    def sealed(self, segment: Segment) -> None:
        self._unsealed = {(index, sink) for index, sink in self._unsealed if index != segment.index}

    def waits(self, source: str) -> bool:
        return source in self.waiting

    def passed_over(self, segment: Segment, source: str) -> None:
        if source in self.silent:
            self.push(segment, source, None)

    def _waived(self, source: str) -> Collection[str]:
        """Splits that event time does not wait for."""
        positions = self.readers[source].positions()
        return positions.keys() if source in self.silent else not_waited_for(self._plan, source, positions)

    def room(self, edge: int) -> bool:
        local = self._by_edge[edge].inputs[edge, self._subtask]
        if local.feedback:
            return True  # a loop that waited for itself would never go on
        if self._chain.full(self.exchanges.nodes[edge].name):
            return False
        return local.unpaid < LIMITS.local_channel_entries and self.exchanges.room(edge)

    def log(self, segment: Segment, edge: int, epoch: int, name: str) -> in_flight.Log:
        return in_flight.Log(self._local / f"frames-{segment.index}-{edge}-{epoch}-{name}")

    def forward_here(self, edge: int, epoch: int, aligned: bool) -> None:
        self._by_edge[edge].barrier(edge, self._subtask, epoch, aligned)

    def captured(self, segment: Segment, epoch: int, captured: Captured) -> None:
        self._parts.append(captured)
        if len(self._parts) == len(self.tasks):
            parts, self._parts = self._parts, []
            self._done(epoch, parts)


def alignment_of(settings: Settings, segment: Segment, plan: Plan) -> tuple[Mode, float]:
    """The mode of a segment's gate, and seconds until alignment is given up for an unaligned snapshot.

    Rows whose type is not known cannot be stored on their way, and what makes broadcast state must have come to all
    subtasks: a segment that reads some of either waits for its barriers.
    """
    forwards = (node for node in map(plan.node, segment.heads) if isinstance(node, Forward))
    copies = plan.copying.intersection(segment.heads)
    match settings.checkpoint_mode:
        case "unaligned" if not copies and all(node.typed for node in forwards):
            return Mode.UNALIGNED, settings.aligned_timeout
        case "at-least-once":
            return Mode.AT_LEAST_ONCE, math.inf
        case _:
            return Mode.ALIGNED, math.inf
