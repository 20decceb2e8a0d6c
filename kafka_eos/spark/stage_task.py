"""One open task of one stage: its readers, operators, state and writers, connected as in the plan.

It is like a session of the embedded engine, for one epoch only: everything is closed when the task's part is done.
Rule: opening either succeeds completely or raises and leaves nothing open. ``close`` releases everything and undoes
nothing.
"""

from __future__ import annotations

import math
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
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import ForwardNode, Node, Partitioning, Plan, SinkNode
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.split_assignment import subtask_of_split
from kafka_eos.protocol.watermarks import InputWatermarks
from kafka_eos.runtime.epoch_reports import PhaseSpan, TimedPreCommit
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.exchange.routing import Router, make_router
from kafka_eos.runtime.operators.event_time import AT_BARRIERS, WatermarkOutput
from kafka_eos.runtime.operators.exchanged_rows import EncodedRows, encode_rows
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.ttl_clock import wall_clock
from kafka_eos.runtime.worker.task_resources import (
    RestoredCheckpoint,
    SubtaskRuntime,
    SubtaskSpec,
    list_excluded_splits,
    pending_timers,
)
from kafka_eos.spark.admission_control import ReadBudget
from kafka_eos.spark.messages import OperatorStats, StageSpec, TaskReport
from kafka_eos.spark.row_frames import ShuffleWriter
from kafka_eos.spark.stages import find_reading_stages, split_into_stages
from kafka_eos.storage import provenance_files as provenance

_POLL = 0.05
"""Seconds to wait for input if none is available."""
_PATIENCE = 10.0
"""Seconds without a record after which a task stops before the epoch's end; the next epoch resumes there."""


@dataclass(frozen=True, slots=True)
class SparkTaskEnvironment:
    """The environment of a task, besides its spec: plan, settings, storage, directory, resources.

    ``attempt`` is unique in the application.
    """

    plan: Plan
    settings: Settings
    storage: CheckpointStorage
    local: Path
    subtask: int
    attempt: int
    resources: Resources
    routers: MutableMapping[tuple[str, int], Router]


class StageTask:
    """One task's share of one stage of one epoch, opened."""

    _chain: OperatorChain

    def __init__(self, spec: StageSpec, around: SparkTaskEnvironment, outbox: ShuffleWriter) -> None:
        all_levels = split_into_stages(around.plan)
        self._spec = spec
        self._around = around
        self._outbox = outbox
        self._plan, self._level = around.plan, all_levels[spec.level]
        self._destinations = find_reading_stages(all_levels)
        self._epoch = EpochId(Epoch(spec.epoch), Term(spec.term))
        share = SubtaskSpec(
            self._plan,
            around.settings,
            around.storage,
            JobIdentity(spec.identity),
            self._epoch,
            around.subtask,
            spec.parallelism,
            lambda operator: around.local,
        )
        self._opened = SubtaskRuntime(share, RestoredCheckpoint(spec.positions, spec.states, spec.in_flight))
        self._readers: dict[str, Reader[Any]] = {}
        self._writers: dict[str, Writer[Any]] = {}
        self._waiting: dict[tuple[str, int, object], list[EncodedRows]] = {}
        self._event_time: dict[str, InputWatermarks] = {}
        """How far it has come at the end of this epoch, by exchange."""
        self._reading: defaultdict[str, float] = defaultdict(float)
        """Seconds of reads that brought something, by source."""
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        with self._opened.close_on_error():
            self._open()

    # ------------------------------------------------------------ opening

    def _open(self) -> None:
        nodes = [node for node in self._plan.nodes if node.name in self._level.nodes]
        self._opened.open_state(nodes)
        sinks = [node for node in nodes if isinstance(node, SinkNode)]
        outputs = {sink.name: self._output(sink.name) for sink in sinks}
        senders = {node.name: self._sender(node) for node in self._plan.exchanges}
        signals = {node.name: self._signal(node) for node in self._plan.exchanges}
        self._chain = self._opened.open_chain(
            outputs,
            senders,
            self._level.nodes,
            signals=signals,
            pace=AT_BARRIERS,
            clock=wall_clock,
            waived=self._list_excluded_splits,
        )
        for name in self._level.sources:
            self._chain.assign(name, self._positions(name).keys())
        rejections, count_filtered = self._chain.rejections, self._chain.counts.add_filtered
        self._services = Services(
            rejections.reject_record, rejections.reject_output, count_filtered, term=self._around.resources
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
            parts = [(target, part) for target, rows in split(batch) for part in encode_in_frames(node, rows)]
            for target, part in parts:
                self._gather(node, target, part)

        return send

    def _signal(self, node: Node) -> WatermarkOutput:
        """Send a watermark to all receivers of rows."""
        around, level = self._around, self._destinations[node.name]
        stays = node.partitioning is Partitioning.FORWARD
        targets = [around.subtask] if stays else range(self._spec.parallelism)

        def send(watermark: Watermark) -> None:
            for target in targets:
                self._outbox.watermark(target, level, node.name, watermark)

        return send

    def _router(self, node: Node) -> Router:
        """Return the router of an exchange. Routing by key is the same in every epoch and caches the owners of keys."""
        spec, around = self._spec, self._around
        if node.partitioning is not Partitioning.HASH:
            return make_router(node, around.subtask, spec.parallelism)
        key = (node.name, spec.parallelism)
        if key not in around.routers:
            around.routers[key] = make_router(node, around.subtask, spec.parallelism)
        return around.routers[key]

    def _gather(self, node: Node, target: int, part: EncodedRows) -> None:
        """Put rows that may share a frame together, until they are worth one; other frames may go before them."""
        waiting = self._waiting.setdefault((node.name, target, wire.get_frame_key(part.batch)), [])
        if waiting and sum(len(each.values) for each in (*waiting, part)) > LIMITS.spark_frame_bytes:
            self._send(node.name, target, waiting)
        waiting.append(part)
        if sum(len(each.batch) for each in waiting) >= self._around.settings.batch_size:
            self._send(node.name, target, waiting)

    def _send(self, exchange: str, target: int, waiting: list[EncodedRows]) -> None:
        frame = wire.build_frame(self._plan, self._plan.node(exchange), waiting)
        waiting.clear()
        self._outbox.frame(target, self._destinations[exchange], exchange, frame)

    # ------------------------------------------------------------ work

    def read(self) -> Iterator[None]:
        """Read and push the available input, up to the epoch's ends or the quota. Yields between batches."""
        self._open_readers()
        batch_size, meter = self._around.settings.batch_size, ReadBudget(self._spec.quota)
        reading = dict(self._readers)
        until = time.monotonic() + _PATIENCE
        while reading and meter.has_budget and time.monotonic() < until:
            for name, reader in list(reading.items()):
                if reader.has_reached(self._ends(name)):
                    del reading[name]
                    continue
                asked = time.perf_counter()
                log_context.enter_operator(name)
                batch = reader.poll(meter.limit_poll(batch_size), _POLL / len(reading))
                log_context.leave_operator()
                if batch is None:
                    self._chain.note_empty_read(name)
                    continue
                self._reading[name] += time.perf_counter() - asked
                until = time.monotonic() + _PATIENCE
                meter.charge(batch)
                self._in[name] += len(batch)
                self._chain.push(name, batch)
            yield

    def _open_readers(self) -> None:
        """Open readers only for sources with unread input: connecting takes longer than reading a little."""
        for name in self._level.sources:
            ends = self._spec.ends[name]
            if positions := {split: at for split, at in self._positions(name).items() if ends.get(split) != at}:
                source = next(node for node in self._plan.sources if node.name == name)
                self._readers[name] = self._opened.reader(source, self._context(name), positions)

    def push(self, exchange: str, frame: bytes) -> None:
        """Push rows that arrived at this task through an exchange."""
        codec = self._plan.node(exchange).exchange_codec
        assert codec is not None
        self._chain.push(exchange, wire.decode(frame, codec, self._plan.attribution))
        self._chain.make_room()

    def on_watermark(self, exchange: str, origin: int, watermark: Watermark) -> None:
        """Take in the watermark of one sender of an exchange."""
        stays = self._plan.node(exchange).partitioning is Partitioning.FORWARD
        senders = [self._around.subtask] if stays else range(self._spec.parallelism)
        so_far = self._event_time.get(exchange, InputWatermarks.of(senders))
        self._event_time[exchange] = so_far.update(origin % self._spec.parallelism, watermark)

    def replay(self) -> None:
        """Send the in-flight rows of the snapshot: each task its share, before all other rows."""
        spec, around = self._spec, self._around
        nodes = {node.name: node for node in self._plan.exchanges}

        def mine(number: int) -> bool:
            return number % spec.parallelism == around.subtask

        for number, name, target, rows in self._opened.read_in_flight_rows(
            nodes.values(), around.local / "in-flight", mine
        ):
            frame = wire.encode_at(self._plan, nodes[name], [rows])
            self._outbox.replay_frame(target, self._destinations[name], name, frame, number)

    def finish(self) -> TaskReport:
        """Run the barrier and return the report.

        Advance time, emit partial folds, send buffered rows, snapshot, prepare.
        """
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
            unread[name] = [split for split, end in self._ends(name).items() if not reader.has_reached({split: end})]
        hit("source.capture.after")
        uploads = [backend.snapshot(self._epoch.epoch) for backend in self._opened.backends.values()]
        hit("sink.seal")
        precommits = [TimedPreCommit(sink, writer.seal(self._epoch)) for sink, writer in self._writers.items()]
        committables = tuple(
            provenance.store_provenance(self._around.storage, self._epoch.epoch, committable)
            for prepare in precommits
            for committable in prepare()
        )
        began = time.time()
        states = tuple(upload(self._around.storage) for upload in uploads)
        uploaded = PhaseSpan("upload", began, time.time())
        hit("worker.ack.before")
        return TaskReport(
            level=self._spec.level,
            subtask=self._around.subtask,
            attempt=self._around.attempt,
            positions=positions,
            unread=unread,
            states=states,
            committables=committables,
            tally=self._chain.counts,
            records_in=dict(self._in),
            records_out=dict(self._out),
            lag=total_lag(reader.lag() for reader in self._readers.values()),
            watermarks=self._chain.event_time.by_split,
            timers=pending_timers(self._opened.backends),
            next_timer=self._chain.get_next_time(),
            operators=self._done(),
            counted={name: did.counted for name, did in self._chain.stats.items() if did.counters},
            spans=(*(span for prepare in precommits for span in prepare.spans), uploaded),
        )

    def _done(self) -> dict[str, OperatorStats]:
        found: dict[str, OperatorStats] = {}
        for name, did in self._chain.stats.items():
            if did.rows_in or did.rows_out or did.busy:
                use = self._opened.backends[name].cache() if name in self._opened.backends else CacheUse(0, 0)
                busy = did.busy + self._reading.get(name, 0.0)
                found[name] = OperatorStats(did.rows_in, did.rows_out, busy, use.misses, use.entries)
        return found

    def close(self) -> None:
        self._opened.close()

    # ------------------------------------------------------------ splits

    def _positions(self, source: str) -> Positions:
        return {split: at for split, at in self._spec.positions[source].items() if self._is_mine(split)}

    def _read_up_to(self, source: str) -> Positions:
        """Return the positions up to which this task has read a source."""
        reader = self._readers.get(source)
        return {**self._positions(source), **({} if reader is None else reader.positions())}

    def _list_excluded_splits(self, source: str) -> Collection[str]:
        """Return the splits that event time does not wait for."""
        held = bootstrap.WaitingSources.at_start(
            self._plan.prerequisites, self._plan.deferred_sources, self._spec.positions
        )
        positions = self._read_up_to(source)
        return (
            positions.keys()
            if source in held.ignored_by_watermarks
            else list_excluded_splits(self._plan, source, positions)
        )

    def _ends(self, source: str) -> Positions:
        """Return the end positions of this task, without splits that have nothing to read or were found later."""
        known = self._positions(source)
        return {split: at for split, at in self._spec.ends[source].items() if known.get(split, at) != at}

    def _is_mine(self, split: SplitId) -> bool:
        """Return whether this task reads a split.

        As on the embedded engine, state behind ``key_by(local=True)`` stays with its split.
        """
        return subtask_of_split(split, self._spec.parallelism) == self._around.subtask


def encode_in_frames(node: Node, rows: Batch[Any]) -> Iterator[EncodedRows]:
    """Encode rows for an exchange, in parts that fit into a frame of the shuffle: Spark holds several in memory.

    Rows of a ``forward`` exchange stay together, because its frames record which values come from one row.
    """
    encoded = encode_rows(node, rows)
    if len(encoded.values) <= LIMITS.spark_frame_bytes or len(rows) == 1 or isinstance(node, ForwardNode):
        yield encoded
        return
    each = math.ceil(len(rows) / math.ceil(len(encoded.values) / LIMITS.spark_frame_bytes))
    for start in range(0, len(rows), each):
        yield from encode_in_frames(node, rows.take(range(start, min(start + each, len(rows)))))
