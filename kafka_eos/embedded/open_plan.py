"""One session of a worker, open: the tasks of its segments and its network, wired by the plan.

With one worker the plan is one segment and nothing is sent anywhere. With several it is cut at its exchanges: each
worker runs every segment, for its share of splits and key groups. A single worker cuts it too in a session that
begins with rows that several had under way: they are input like any other, and part of the next snapshot.

Rule: opening is all or nothing for the caller, and ``close`` lets go of everything without undoing anything.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from kafka_eos.embedded.control import Start
from kafka_eos.embedded.inputs import Input, Marker, Rows
from kafka_eos.embedded.network import BarrierArrived, Network
from kafka_eos.embedded.outgoing import Outgoing
from kafka_eos.embedded.spill import SpillingQueue, size_of
from kafka_eos.embedded.task import Captured, Parts, Task
from kafka_eos.exchange import in_flight, wire
from kafka_eos.exchange.routing import Router, router
from kafka_eos.failpoints import hit
from kafka_eos.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.interfaces import (
    Attended,
    CheckpointStorage,
    InFlight,
    ListCodec,
    Positions,
    PreCommit,
    Reader,
    Services,
    Writer,
    total_lag,
)
from kafka_eos.open_task import Base, OpenTask, Share
from kafka_eos.operators.chain import Chain
from kafka_eos.plan import Feedback, Forward, PartialFold, Plan, Segment, Sink
from kafka_eos.protocol.alignment import Mode
from kafka_eos.records import Batch, RawRecord, Tally
from kafka_eos.settings import Settings
from kafka_eos.state.options import spread
from kafka_eos.state.restoring import Told

_LOCAL_ROOM = 8
"""Batches that may wait for another segment of the same worker."""
_IN_MEMORY = 256
"""Batches of a spilling queue that stay in memory; more go to the local disk."""
_ROWS_IN_MEMORY = 50_000
"""Accumulators of this worker for itself that stay in memory; at a barrier it makes those of all keys at once."""
_ROW = 64
"""Bytes of a row on the disk, about."""
_WORK = 16
"""Entries that are processed between two looks at the network and at the supervisor."""


class OpenPlan:
    """What a session works with; see ``task.Surroundings``."""

    _chain: Chain

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
        self.tasks: list[Task] = []
        self.records_in = self.records_out = 0
        self.sent = self.received = 0
        """Frames sent to other workers, and processed of theirs."""
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
        self._current = 0
        """Index of the segment at work."""
        self._tallies: dict[int, Tally] = {}
        self._parts: dict[int, list[Captured]] = {}
        with self._opened.opening():
            self._open(peers)

    # ------------------------------------------------------------ opening

    def _open(self, peers: Mapping[int, socket.socket]) -> None:
        plan = self._plan
        self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
        loops = {node.name for node in plan.feedbacks}
        cut = bool(peers) or any(rows.exchange not in loops for rows in self._start.in_flight)
        self._exchanges = plan.exchanges if cut else plan.feedbacks
        self._edges = {node.name: edge for edge, node in enumerate(self._exchanges)}
        self._segments = plan.segments if cut else plan.loops_only
        window = self._settings.exchange_memory // max(1, 2 * len(self._edges) * len(peers))
        self._network = Network(peers, len(self._edges), window, self._local)
        self._opened.closing.callback(self._network.close)
        self._outgoing = [self._outgoing_of(edge) for edge in range(len(self._exchanges))]
        given = (self._subtask, self._parallelism, self._opened.grouping)
        self._routers: list[Router] = [router(node, *given) for node in self._exchanges]
        self._codecs: list[ListCodec[Any]] = [n.wire for n in self._exchanges if n.wire is not None]
        self._opened.restore(plan.nodes)
        outputs = {sink.name: self._output(sink) for sink in plan.sinks}
        senders = {node.name: self._sender(edge) for edge, node in enumerate(self._exchanges)}
        self._tallies = {segment.index: Tally() for segment in self._segments}
        tally = lambda: self._tallies[self._current]  # noqa: E731
        self._chain = self._opened.connect(outputs, senders, tally)
        self._services = Services(self._refuse_record, self._chain.refuse_row)
        for segment in self._segments:
            self._open_writers(segment)
        for source in plan.sources:
            context = self._opened.context(source.name, self._subtask, self._services)
            self.readers[source.name] = self._opened.reader(source, context, self._start.positions.get(source.name, {}))
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
        mode, timeout = alignment_of(self._settings)
        edges = [name for name in segment.heads if name in self._edges]
        inputs = [self._input(name, sender) for name in edges for sender in self._senders(name)]
        return Task(segment, parts, inputs, self._edges, self._first.term, self._start.first_epoch, mode, timeout, self)

    def _input(self, exchange: str, sender: int) -> Input:
        edge = self._edges[exchange]
        node = self._plan.node(exchange)
        if isinstance(node, Feedback):
            return Input(edge, sender, feedback=True, queue=self._spilling(f"loop-{edge}", edge))
        held = self._settings.alignment_spill // (len(self._edges) * self._parallelism)
        if isinstance(node, PartialFold) and sender == self._subtask:
            queue = self._spilling(f"sums-{edge}", edge, _ROWS_IN_MEMORY, _rows_in)
        elif held:
            queue = self._spilling(f"held-{edge}-{sender}", edge, self._network.window, size_of)
        else:
            return Input(edge, sender)
        return Input(edge, sender, queue=queue, may_hold=held)

    def _spilling(
        self, file: str, edge: int, limit: int = _IN_MEMORY, weigh: Callable[[Any], int] = lambda entry: 1
    ) -> SpillingQueue[Any]:
        """A queue for what nobody can be asked to send later."""

        def encode(entry: Rows | Marker) -> bytes | None:
            return None if isinstance(entry, Marker) else self.as_now(edge, entry)

        queue = SpillingQueue[Any](self._local / file, limit, encode, weigh)
        self._opened.closing.callback(queue.close)
        return queue

    def _senders(self, exchange: str) -> Sequence[int]:
        """Who sends to this subtask; rows of a loop come back to where they were, and forwarded ones stay there."""
        stays = isinstance(self._plan.node(exchange), Feedback | Forward)
        return [self._subtask] if stays else range(self._parallelism)

    def _output(self, sink: Sink) -> Callable[[Batch[Any]], None]:
        def write(batch: Batch[Any]) -> None:
            self.records_out += len(batch)
            self._writers[self._current, sink.name].write(batch)

        return write

    def _refuse_record(self, source: str, raw: RawRecord, error: Exception) -> None:
        """The chain's, at work in the segment of the source."""
        self._current = next(segment.index for segment in self._segments if source in segment.heads)
        self._chain.refuse_record(source, raw, error)

    def _replay(self) -> None:
        """Take the rows that were under way in the epoch before, as far as they are routed to this worker.

        They may be more than memory holds: those of a slow loop are.
        """
        for _, name, target, rows in self._opened.under_way(self._exchanges, self._local / "in-flight"):
            if target == self._subtask:
                edge = self._edges[name]
                replay = self._by_edge[edge].replay
                if edge not in replay:
                    replay[edge] = self._spilling(f"replay-{edge}", edge)
                replay[edge].append(rows)
        if self._start.in_flight:
            hit("in-flight.replayed")

    # ------------------------------------------------------------ work

    @property
    def connected(self) -> bool:
        """Do rows come from elsewhere than the sources?"""
        return bool(self._edges)

    @property
    def idle(self) -> bool:
        """Nothing waits in this worker; on the network something may."""
        return all(task.idle for task in self.tasks) and all(outgoing.empty for outgoing in self._outgoing)

    def advance(self, batch_size: int, idle: float) -> None:
        """Process what has arrived and read what there is; wait at most ``idle`` seconds if there is nothing."""
        if not self._edges:
            self._read(batch_size, idle / len(self.readers))
            return
        self._receive(0.0)
        done = sum(task.work(_WORK) for task in self.tasks)
        if not done + self._read(batch_size, 0.0):
            self._receive(idle / 4)

    def work(self, idle: float) -> None:
        """Process what has arrived, and read nothing: the last barrier is on its way."""
        self._receive(0.0)
        if not sum(task.work(_WORK) for task in self.tasks):
            self._receive(idle / 4)

    def _read(self, batch_size: int, wait: float) -> int:
        records = sum(task.read(batch_size, wait) for task in self.tasks)
        self.records_in += records
        return records

    def _receive(self, timeout: float) -> None:
        now = time.monotonic()
        for outgoing in self._outgoing:
            outgoing.flush_old(now)
        for arrival in self._network.pump(timeout):
            task = self._by_edge[arrival.edge]
            if isinstance(arrival, BarrierArrived):
                task.barrier(arrival.edge, arrival.sender, arrival.epoch, arrival.aligned)
            else:
                task.rows(arrival.edge, arrival.sender, arrival.frame)

    def trigger(self, epoch: EpochId, aligned: bool) -> None:
        """Begin an epoch at the sources. ``done`` is called when every segment has come to it."""
        for task in reversed(self.tasks):
            task.trigger(epoch.epoch.n, aligned)

    def abort(self, epoch: EpochId) -> list[PreCommit]:
        """The epoch is given up. Returns what must still be prepared of its output."""
        captured = self._parts.pop(epoch.epoch.n, [])
        for part in captured:
            part.drop()
        left = [prepare for part in captured for prepare in part.precommits]
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

    def lag(self) -> int | None:
        return total_lag(reader.lag() for reader in self.readers.values())

    def store(self, captured: Captured) -> tuple[InFlight, ...]:
        """Upload rows under way. Called on the background thread. OSError if they cannot be stored."""
        groups = [(False, edge, log) for edge, log in sorted(captured.received.items())]
        groups += [(True, edge, log) for edge, log in sorted(captured.overtaken.items())]
        return tuple(self._store(overtaken, edge, log) for overtaken, edge, log in groups)

    def _store(self, overtaken: bool, edge: int, log: in_flight.Log) -> InFlight:
        stored = log.store(self._storage, self._exchanges[edge].name, self._codecs[edge], overtaken)
        hit("in-flight.stored")
        return stored

    def close(self) -> None:
        self._opened.close()

    # ------------------------------------------------------------ surroundings of the tasks

    def push(self, segment: Segment, head: str, batch: Batch[Any] | None) -> None:
        self._current = segment.index
        if batch is None:
            self._chain.flush_rejected(head)
        else:
            self._chain.push(head, batch)

    def flush(self, segment: Segment) -> None:
        self._current = segment.index
        self._chain.flush(segment.nodes)

    def tally(self, segment: Segment) -> Tally:
        return self._tallies[segment.index].plus(Tally())

    def decode(self, edge: int, rows: Rows) -> Batch[Any]:
        return wire.decode(rows, self._codecs[edge], self._plan.attribution) if isinstance(rows, bytes) else rows

    def as_now(self, edge: int, rows: Rows) -> bytes:
        return rows if isinstance(rows, bytes) else self._frame(edge, [rows])

    def processed(self, edge: int, sender: int, rows: Rows) -> None:
        if isinstance(rows, bytes) and sender != self._subtask:
            self.received += 1

    def credit(self, edge: int, sender: int, size: int) -> None:
        if size and sender != self._subtask:
            self._network.credit(edge, sender, size)

    def room(self, edge: int) -> bool:
        local = self._by_edge[edge].inputs[edge, self._subtask]
        if local.feedback:
            return True  # a loop that waited for itself would never go on
        return local.unpaid < _LOCAL_ROOM and self._network.room(edge)

    def log(self, segment: Segment, edge: int, epoch: int, name: str) -> in_flight.Log:
        return in_flight.Log(self._local / f"frames-{segment.index}-{edge}-{epoch}-{name}")

    def forward(self, edge: int, epoch: int, overtake: bool, aligned: bool) -> Iterable[bytes]:
        self._outgoing[edge].flush()
        overtaken: list[Iterator[bytes]] = []
        for target in self._senders(self._exchanges[edge].name):
            if target == self._subtask:
                continue
            if overtake:
                overtaken.append(self._network.overtake(edge, target, epoch))
            else:
                self._network.send_barrier(edge, target, epoch, aligned)
        return chain.from_iterable(overtaken)

    def forward_here(self, edge: int, epoch: int, aligned: bool) -> None:
        self._by_edge[edge].barrier(edge, self._subtask, epoch, aligned)

    def captured(self, segment: Segment, epoch: int, captured: Captured) -> None:
        parts = self._parts.setdefault(epoch, [])
        parts.append(captured)
        if len(parts) == len(self.tasks):
            # Older ones that are not complete never will be: somewhere they were given up. Their output is due now.
            for older in sorted((number for number in self._parts if number < epoch), reverse=True):
                for left in reversed(self._parts.pop(older)):
                    left.drop()
                    parts[0].precommits[:0] = left.precommits
            self._done(epoch, self._parts.pop(epoch))

    def _sender(self, edge: int) -> Callable[[Batch[Any]], None]:
        def send(batch: Batch[Any]) -> None:
            for target, part in self._routers[edge](batch):
                if target == self._subtask:
                    self._by_edge[edge].rows(edge, target, part)
                else:
                    self._outgoing[edge].add(target, part)

        return send

    def _outgoing_of(self, edge: int) -> Outgoing:
        def send(target: int, batches: Sequence[Batch[Any]]) -> None:
            self._network.send(edge, target, self._frame(edge, batches))
            self.sent += 1

        return Outgoing(send, self._settings.batch_size, self._settings.buffer_timeout)

    def _frame(self, edge: int, batches: Sequence[Batch[Any]]) -> bytes:
        return wire.encode_at(self._plan, self._exchanges[edge], batches)


def _rows_in(entry: Rows | Marker) -> int:
    """Of rows that were on the disk, about."""
    return 0 if isinstance(entry, Marker) else len(entry) // (_ROW if isinstance(entry, bytes) else 1)


def alignment_of(settings: Settings) -> tuple[Mode, float]:
    """The mode of the gates, and seconds until alignment is given up for an unaligned snapshot."""
    match settings.checkpoint_mode:
        case "unaligned":
            return Mode.UNALIGNED, settings.aligned_timeout
        case "at-least-once":
            return Mode.AT_LEAST_ONCE, math.inf
        case _:
            return Mode.ALIGNED, math.inf
