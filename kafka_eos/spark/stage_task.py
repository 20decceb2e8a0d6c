"""One task of one level, open: its readers, operators, state and writers, wired by the plan.

As a session of the embedded engine, for one epoch only: what is opened here is closed when the epoch's part is done.
Rule: opening is all or nothing for the caller, and ``close`` lets go of everything without undoing anything.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_eos._util import log_context
from kafka_eos._util.failpoints import hit
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.services import Resources, Services
from kafka_eos.abc.sink import Writer
from kafka_eos.abc.source import Reader, total_lag
from kafka_eos.abc.state import CacheUse
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch, Tally, Watermark
from kafka_eos.plan import Node, Partitioning, Plan, Sink
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.split_assignment import subtask_of_split
from kafka_eos.protocol.watermarks import Inputs
from kafka_eos.runtime.epoch_reports import Prepare, Span
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.exchange.routing import Router, router
from kafka_eos.runtime.operators.event_time import AT_BARRIERS, Signal
from kafka_eos.runtime.operators.operator_chain import Chain
from kafka_eos.runtime.state.ttl_clock import wall_clock
from kafka_eos.runtime.worker.task_resources import Base, OpenTask, Share, not_waited_for, pending_timers
from kafka_eos.spark.admission_control import Meter
from kafka_eos.spark.messages import Did, Report, Spec
from kafka_eos.spark.row_frames import Outbox
from kafka_eos.spark.stages import destinations, levels
from kafka_eos.storage import provenance_files as provenance

_POLL = 0.05
"""Seconds to wait for input when there is none."""
_PATIENCE = 10.0
"""Seconds without a record after which a task stops before the epoch's end; the next epoch goes on there."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a level works with besides its spec. ``attempt`` is unique in the application."""

    plan: Plan
    settings: Settings
    storage: CheckpointStorage
    local: Path
    subtask: int
    attempt: int
    resources: Resources
    routers: MutableMapping[tuple[str, int], Router]


class OpenLevel:
    """One task's share of one level of one epoch."""

    _chain: Chain

    def __init__(self, spec: Spec, around: Surroundings, outbox: Outbox) -> None:
        all_levels = levels(around.plan)
        self._spec, self._around, self._outbox = spec, around, outbox
        self._plan, self._level = around.plan, all_levels[spec.level]
        self._destinations = destinations(all_levels)
        self._epoch = EpochId(Epoch(spec.epoch), Term(spec.term))
        share = Share(
            self._plan,
            around.settings,
            around.storage,
            JobIdentity(spec.identity),
            self._epoch,
            around.subtask,
            spec.parallelism,
            lambda operator: around.local,
        )
        self._opened = OpenTask(share, Base(spec.positions, spec.states, spec.in_flight))
        self._readers: dict[str, Reader[Any]] = {}
        self._writers: dict[str, Writer[Any]] = {}
        self._waiting: dict[tuple[str, int, object], list[Batch[Any]]] = {}
        self._event_time: dict[str, Inputs] = {}
        """How far it has come at the end of this epoch, by exchange."""
        self._tally = Tally()
        self._reading: defaultdict[str, float] = defaultdict(float)
        """Seconds of reads that brought something, by source."""
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        with self._opened.opening():
            self._open()

    # ------------------------------------------------------------ opening

    def _open(self) -> None:
        nodes = [node for node in self._plan.nodes if node.name in self._level.nodes]
        self._opened.restore(nodes)
        sinks = [node for node in nodes if isinstance(node, Sink)]
        outputs = {sink.name: self._output(sink.name) for sink in sinks}
        senders = {node.name: self._sender(node) for node in self._plan.exchanges}
        signals = {node.name: self._signal(node) for node in self._plan.exchanges}
        self._chain = self._opened.connect(
            outputs,
            senders,
            lambda: self._tally,
            self._level.nodes,
            signals=signals,
            pace=AT_BARRIERS,
            clock=wall_clock,
            waived=self._waived,
        )
        for name in self._level.sources:
            self._chain.assign(name, self._positions(name).keys())
        self._services = Services(
            self._chain.refuse_record, self._chain.refuse_row, self._chain.left_out, term=self._around.resources
        )
        for sink in sinks:
            self._writers[sink.name] = self._opened.writer(sink, self._context(sink.name))
        hit("recovery.opened")
        self._chain.resume()

    def _context(self, operator: str) -> TaskContext:
        around, spec = self._around, self._spec
        # Two levels of one subtask are two writers; and no other writer of the epoch has this number.
        number = spec.level * spec.parallelism + around.subtask
        return self._opened.context(operator, number, self._services, around.attempt)

    def _output(self, name: str) -> Callable[[Batch[Any]], None]:
        def write(batch: Batch[Any]) -> None:
            self._out[name] += len(batch)
            self._writers[name].write(batch)

        return write

    def _sender(self, node: Node) -> Callable[[Batch[Any]], None]:
        split = self._router(node)

        def send(batch: Batch[Any]) -> None:
            for target, part in split(batch):
                self._gather(node, target, part)

        return send

    def _signal(self, node: Node) -> Signal:
        """A watermark goes to all who get rows."""
        around, level = self._around, self._destinations[node.name]
        stays = node.partitioning is Partitioning.FORWARD
        targets = [around.subtask] if stays else range(self._spec.parallelism)

        def send(watermark: Watermark) -> None:
            for target in targets:
                self._outbox.watermark(target, level, node.name, watermark)

        return send

    def _router(self, node: Node) -> Router:
        """By key it is the same in every epoch, and it remembers the owners of keys."""
        spec, around = self._spec, self._around
        if node.partitioning is not Partitioning.HASH:
            return router(node, around.subtask, spec.parallelism)
        key = (node.name, spec.parallelism)
        if key not in around.routers:
            around.routers[key] = router(node, around.subtask, spec.parallelism)
        return around.routers[key]

    def _gather(self, node: Node, target: int, part: Batch[Any]) -> None:
        """Put rows that may share a frame together, until they are worth one; other frames may go before them."""
        waiting = self._waiting.setdefault((node.name, target, wire.alike(part)), [])
        waiting.append(part)
        if sum(map(len, waiting)) >= self._around.settings.batch_size:
            self._send(node.name, target, waiting)

    def _send(self, exchange: str, target: int, waiting: list[Batch[Any]]) -> None:
        frame = wire.encode_at(self._plan, self._plan.node(exchange), waiting)
        waiting.clear()
        self._outbox.frame(target, self._destinations[exchange], exchange, frame)

    # ------------------------------------------------------------ work

    def read(self) -> Iterator[None]:
        """Read what is there, up to the epoch's ends or the quota, and push it. Yields between batches."""
        self._open_readers()
        batch_size, meter = self._around.settings.batch_size, Meter(self._spec.quota)
        reading = dict(self._readers)
        until = time.monotonic() + _PATIENCE
        while reading and meter.left and time.monotonic() < until:
            for name, reader in list(reading.items()):
                if reader.reached(self._ends(name)):
                    del reading[name]
                    continue
                asked = time.perf_counter()
                log_context.enter(name)
                batch = reader.poll(meter.most(batch_size), _POLL / len(reading))
                log_context.leave()
                if batch is None:
                    self._chain.nothing_read(name)
                    continue
                self._reading[name] += time.perf_counter() - asked
                until = time.monotonic() + _PATIENCE
                meter.took(batch)
                self._in[name] += len(batch)
                self._chain.push(name, batch)
            yield

    def _open_readers(self) -> None:
        """Only of what has something to read: connecting takes longer than reading little."""
        for name in self._level.sources:
            ends = self._spec.ends[name]
            if positions := {split: at for split, at in self._positions(name).items() if ends.get(split) != at}:
                source = next(node for node in self._plan.sources if node.name == name)
                self._readers[name] = self._opened.reader(source, self._context(name), positions)

    def push(self, exchange: str, frame: bytes) -> None:
        """Rows that came through an exchange to this task."""
        codec = self._plan.node(exchange).wire
        assert codec is not None
        self._chain.push(exchange, wire.decode(frame, codec, self._plan.attribution))
        self._chain.make_room()

    def hear(self, exchange: str, origin: int, watermark: Watermark) -> None:
        """How far event time has come behind all that a task has sent through an exchange in this epoch."""
        stays = self._plan.node(exchange).partitioning is Partitioning.FORWARD
        senders = [self._around.subtask] if stays else range(self._spec.parallelism)
        so_far = self._event_time.get(exchange, Inputs.of(senders))
        self._event_time[exchange] = so_far.on(origin % self._spec.parallelism, watermark)

    def replay(self) -> None:
        """Send on the rows that the snapshot holds on their way: each task its share, in front of all others."""
        spec, around = self._spec, self._around
        nodes = {node.name: node for node in self._plan.exchanges}

        def mine(number: int) -> bool:
            return number % spec.parallelism == around.subtask

        for number, name, target, rows in self._opened.under_way(nodes.values(), around.local / "in-flight", mine):
            frame = wire.encode_at(self._plan, nodes[name], [rows])
            self._outbox.earlier(target, self._destinations[name], name, frame, number)

    def finish(self) -> Report:
        """The barrier: let time go on, hand on what is summed up, send what waits, snapshot, prepare, report."""
        for node in self._plan.exchanges:
            if node.name in self._event_time:
                self._chain.advance(node.name, self._event_time[node.name].watermark)
        self._chain.finish()
        for (exchange, target, _), waiting in self._waiting.items():
            if waiting:
                self._send(exchange, target, waiting)
        hit("source.capture.before")
        positions = {name: self._read_up_to(name) for name in self._level.sources}
        unread: dict[str, list[SplitId]] = {name: [] for name in self._level.sources}
        for name, reader in self._readers.items():
            unread[name] = [split for split, end in self._ends(name).items() if not reader.reached({split: end})]
        hit("source.capture.after")
        uploads = [backend.snapshot(self._epoch.epoch) for backend in self._opened.backends.values()]
        hit("sink.seal")
        precommits = [Prepare(sink, writer.seal(self._epoch)) for sink, writer in self._writers.items()]
        committables = tuple(
            provenance.stored(self._around.storage, self._epoch.epoch, committable)
            for prepare in precommits
            for committable in prepare()
        )
        began = time.time()
        states = tuple(upload(self._around.storage) for upload in uploads)
        uploaded = Span("upload", began, time.time())
        hit("worker.ack.before")
        return Report(
            level=self._spec.level,
            subtask=self._around.subtask,
            attempt=self._around.attempt,
            positions=positions,
            unread=unread,
            states=states,
            committables=committables,
            tally=self._tally,
            records_in=dict(self._in),
            records_out=dict(self._out),
            lag=total_lag(reader.lag() for reader in self._readers.values()),
            watermarks=self._chain.watermarks(),
            timers=pending_timers(self._opened.backends),
            wake=self._chain.soonest(),
            operators=self._done(),
            counted={name: did.counted for name, did in self._chain.worked.items() if did.counters},
            spans=(*(span for prepare in precommits for span in prepare.spans), uploaded),
        )

    def _done(self) -> dict[str, Did]:
        found: dict[str, Did] = {}
        for name, did in self._chain.worked.items():
            if did.came or did.left or did.busy:
                use = self._opened.backends[name].cache() if name in self._opened.backends else CacheUse(0, 0)
                busy = did.busy + self._reading.get(name, 0.0)
                found[name] = Did(did.came, did.left, busy, use.loads, use.entries)
        return found

    def close(self) -> None:
        self._opened.close()

    # ------------------------------------------------------------ splits

    def _positions(self, source: str) -> Positions:
        return {split: at for split, at in self._spec.positions[source].items() if self._is_mine(split)}

    def _read_up_to(self, source: str) -> Positions:
        """How far this task has come."""
        reader = self._readers.get(source)
        return {**self._positions(source), **({} if reader is None else reader.positions())}

    def _waived(self, source: str) -> Collection[str]:
        """Splits that event time does not wait for: all of a source that is not read before another one."""
        held = bootstrap.Held.at_start(self._plan.meets, self._plan.following, self._spec.positions)
        positions = self._read_up_to(source)
        return positions.keys() if source in held.silent else not_waited_for(self._plan, source, positions)

    def _ends(self, source: str) -> Positions:
        """Where this task may stop. A split that was found after the positions were known, or waits, is no concern."""
        known = self._positions(source)
        return {split: at for split, at in self._spec.ends[source].items() if known.get(split, at) != at}

    def _is_mine(self, split: SplitId) -> bool:
        """As on the embedded engine: state behind ``key_by(local=True)`` is where its splits are read."""
        return subtask_of_split(split, self._spec.parallelism) == self._around.subtask
