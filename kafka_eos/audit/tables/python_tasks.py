"""The recompute inside Spark's Python workers: the pipeline's own functions, run over its raw input by the operators
of ``reference_operators``.

Rules: nothing of the user is pickled; a worker imports the user's file by its path. Records and results are exchanged
as Arrow batches; state is in memory, and discarded at the end of the task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from kafka_eos import plan as plans
from kafka_eos._util.gc_tuning import tune_gc_for_batches
from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.auditable import AuditableSink, AuditableSource
from kafka_eos.abc.services import RejectRow
from kafka_eos.abc.state import StateBackend
from kafka_eos.audit.facts.epoch_intervals import Spans, stream
from kafka_eos.audit.facts.starting_savepoint import restored
from kafka_eos.audit.tables.plan_cut import Cut, captured, cut
from kafka_eos.audit.tables.reference_operators import build_reference
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.ids import AppRef
from kafka_eos.core.provenance import encode_name, number_outputs
from kafka_eos.core.records import Batch, Headers, RawOrigin, RawRecord
from kafka_eos.plan import Node, Plan
from kafka_eos.runtime.exchange.routing import Router, make_router
from kafka_eos.runtime.operators.exchanged_rows import expect_encodable
from kafka_eos.runtime.operators.operator_chain import OperatorChain, Output
from kafka_eos.runtime.program import load_program
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.storage.savepoint_files import SavepointFiles

HEADERS = "headers array<struct<key string, value binary>>"
_RAW = f"timestamp long, key binary, value binary, {HEADERS}"
_KEY = "grp binary, loose boolean, span int"
_PLACE = "source string, s_topic string, s_partition int, s_offset long, lane int, branch string, ordinal int"
INPUT_COLUMNS = ("source", "topic", "partition", "offset", "timestamp", "key", "value", "headers")
INPUT = f"source string, topic string, partition int, offset long, {_RAW}"
CAPTURED = f"stage string, {_PLACE}, grp binary, {_RAW}, span int"
"""A row that reached a stage: where it came from, its encoded key, the raw record to start again from, and which of
``intervals.spans`` it is of (0 where that does not matter)."""
EXPECTED = f"sink string, {_PLACE}, sub int, update long, key binary, value binary, {HEADERS}, time long, {_KEY}"
"""An output that should exist. ``ordinal`` is that of the row at the stage, ``sub`` counts its outputs; ``time`` is
its timestamp, null for the time at which it was sent; ``span`` is that of the row at the stage."""

_PLACE_FIELDS = [
    ("source", pa.string()), ("s_topic", pa.string()), ("s_partition", pa.int32()), ("s_offset", pa.int64()),
    ("lane", pa.int32()), ("branch", pa.string()), ("ordinal", pa.int32()),
]  # fmt: skip
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CAPTURED = pa.schema([
    ("stage", pa.string()), *_PLACE_FIELDS, ("grp", pa.binary()),
    ("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE),
    ("span", pa.int32()),
])  # fmt: skip
_EXPECTED = pa.schema([
    ("sink", pa.string()), *_PLACE_FIELDS, ("sub", pa.int32()), ("update", pa.int64()),
    ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE), ("time", pa.int64()), ("grp", pa.binary()),
    ("loose", pa.bool_()), ("span", pa.int32()),
])  # fmt: skip
CAPTURED_COLUMNS: Sequence[str] = _CAPTURED.names

Rows = list[tuple[Any, ...]]


# ---------------------------------------------------------------- what Spark runs


def head_outputs(app: str, workers: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute the outputs of sinks without state before them. Input: INPUT rows in any order of partitions."""
    parts = cut_of(app, workers)
    made = ExpectedOutputs()
    with ExitStack() as stack:
        outputs: dict[str, Output] = {sink: Collector(parts.plan, sink, made) for sink in parts.head_sinks}
        outputs |= {captured(stage): ignore for stage in parts.stages}
        chain = stack.enter_context(chain_of(parts, parts.head, {}, outputs))
        for batch in batches:
            for source, raws in runs(batch):
                feed(parts.plan, chain, source, raws)
            yield made.take()


def captures(app: str, workers: int, spans: Spans, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute CAPTURED rows: the key of each record."""
    parts = cut_of(app, workers)
    rows: Rows = []
    with ExitStack() as stack:
        outputs: dict[str, Output] = dict.fromkeys(parts.head_sinks, ignore)
        outputs |= {
            captured(stage): _Capture(parts.plan, stage, rows, spans if stage in parts.summing else {})
            for stage in parts.stages
        }
        chain = stack.enter_context(chain_of(parts, parts.head, {}, outputs))
        for batch in batches:
            for source, raws in runs(batch):
                feed(parts.plan, chain, source, raws)
            yield _arrow(rows, _CAPTURED)
            rows.clear()


def tail_outputs(
    app: str, workers: int, savepoint: str | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Compute the outputs after the stages. Input: CAPTURED rows (and ``loose``), all of a key together and in order.

    The initial state is that of ``savepoint``.
    """
    parts = cut_of(app, workers)
    made = ExpectedOutputs()
    with ExitStack() as stack:
        tail = stack.enter_context(Tail(parts, made, savepoint))
        for batch in batches:
            for _, run in groupby(map(CapturedRow, *columns_of(batch)), key=CapturedRow.stream):
                tail.push(list(run))
            yield made.take()


def serial_outputs(
    app: str, workers: int, savepoint: str | None, loose: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Compute the outputs of the whole plan in one task; ``loose`` marks those that the order of partitions may
    change.
    """
    parts = cut_of(app, workers)
    made, free = ExpectedOutputs(), parts.below & parts.shuffled
    with ExitStack() as stack:
        outputs: dict[str, Output] = {
            sink.name: Collector(parts.plan, sink.name, made, loose=sink.name in (parts.below if loose else free))
            for sink in parts.plan.sinks
        }
        backends = stack.enter_context(Backends(parts.plan, savepoint))
        chain = stack.enter_context(chain_of(parts, parts.plan, backends.by_operator, outputs))
        for batch in batches:
            for source, raws in runs(batch):
                feed(parts.plan, chain, source, raws)
            yield made.take()


# ---------------------------------------------------------------- parts


@cache
def cut_of(app: str, workers: int) -> Cut:
    parts = cut(load_program(AppRef.parse(app)).plan(), workers)
    tune_gc_for_batches()
    return parts


def runs(batch: pa.RecordBatch) -> Iterator[tuple[str, list[RawRecord]]]:
    """Yield consecutive records of one source, because a batch has only one."""
    sources, *raw, headers = columns_of(batch)
    rows = zip(sources, map(RawRecord, *raw, map(headers_of, headers)), strict=True)
    for source, run in groupby(rows, key=itemgetter(0)):
        yield source, [record for _, record in run]


def columns_of(batch: pa.RecordBatch) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns]


def headers_of(headers: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((h["key"], h["value"]) for h in headers)


def feed(plan: Plan, chain: OperatorChain, source: str, raws: Sequence[RawRecord]) -> None:
    node = plan.node(source)
    assert isinstance(node, plans.SourceNode)
    batch = cast("AuditableSource", node.source).decode(source, raws, partial(chain.rejections.reject_record, source))
    chain.push(source, batch)


def ignore(batch: Batch[Any]) -> None:
    """Ignore outputs that another pass computes."""


@contextmanager
def chain_of(
    parts: Cut, plan: Plan, backends: Mapping[str, StateBackend], outputs: Mapping[str, Output]
) -> Iterator[OperatorChain]:
    """Open the plan's operators; rows that a sink cannot encode follow the policy of their source."""
    with closing(_Rounds(parts, plan, backends, outputs)) as chain:
        for output in outputs.values():
            if isinstance(output, Collector):
                output.refuse = chain.rejections.reject_output
        yield chain


class _Rounds(OperatorChain):
    """A chain that queues the rows of a loop for their next round, so that any number of rounds is possible.

    It makes the copies of all workers for a broadcast.
    """

    def __init__(
        self, parts: Cut, plan: Plan, backends: Mapping[str, StateBackend], outputs: Mapping[str, Output]
    ) -> None:
        self._waiting: deque[tuple[str, Batch[Any]]] = deque()
        waits = [node for node in plan.exchanges if node in plan.feedbacks or node.name in parts.broadcasts]
        exchanges = {node.name: partial(self._wait, node, make_router(node, 0, parts.parallelism)) for node in waits}
        super().__init__(plan, backends, outputs, exchanges, whole=parts.whole, build=build_reference)

    def push(self, head: str, batch: Batch[Any]) -> None:
        super().push(head, batch)
        while self._waiting:
            super().push(*self._waiting.popleft())

    def _wait(self, exchange: Node, split: Router, batch: Batch[Any]) -> None:
        expect_encodable(exchange, batch)  # the job rejected the same rows
        self._waiting.extend((exchange.name, part) for _, part in split(batch))


class ExpectedOutputs:
    """Expected outputs that are waiting to be returned."""

    def __init__(self) -> None:
        self.rows: Rows = []

    def take(self) -> pa.RecordBatch:
        batch = _arrow(self.rows, _EXPECTED)
        self.rows = []
        return batch


class Collector:
    """Encodes the rows that reach one sink. ``at_stage``: ordinal, key, looseness and span of rows from a stage."""

    def __init__(self, plan: Plan, sink: str, made: ExpectedOutputs, *, loose: bool = False, ordinal: int = 0) -> None:
        node = plan.node(sink)
        assert isinstance(node, plans.SinkNode)
        self._sink = node.sink
        self._name = sink
        self._made = made
        self._loose, self._ordinal = loose, ordinal
        self.at_stage: Sequence[tuple[int, bytes, bool, int]] | None = None
        self.refuse: RejectRow | None = None

    def __call__(self, batch: Batch[Any]) -> None:
        if not isinstance(self._sink, AuditableSink):
            return
        assert self.refuse is not None  # chain_of sets it
        kept, written = self._sink.audit_rows(batch, self._name, self.refuse)
        origin, updates, branches, lane = kept.origin, kept.updates, _branches(kept), kept.lane
        topic, partitions, offsets = encode_name(origin.topic), origin.partitions, origin.offsets
        keys = _groups(kept)
        for i, (row, sub, written_row) in enumerate(zip(kept.origin_rows, number_outputs(kept), written, strict=True)):
            key, value, headers, time = written_row
            at_stage = self.at_stage
            if at_stage is None:
                ordinal, group, loose, span = self._ordinal, keys[i], self._loose, None
            else:
                ordinal, group, loose, span = at_stage[row]
            self._made.rows.append((
                self._name, origin.source, topic, partitions[row], offsets[row], lane, branches[i],
                ordinal, sub, None if updates is None else updates[i], key, value,
                listed(headers), _sent_with(time), group, loose, span,
            ))  # fmt: skip


def _groups(batch: Batch[Any]) -> Sequence[bytes | None]:
    """Return the encoded key of each row, if it has one: rows are ordered within keys then."""
    return [None] * len(batch) if batch.keys is None else list(map(KeyCodec().encode, batch.keys))


def listed(headers: Headers) -> list[dict[str, Any]]:
    return [{"key": k, "value": _binary(v)} for k, v in headers]


def _sent_with(time: object) -> int | None:
    """Return a timestamp that a producer accepts unchanged; -1 stands for the time of sending."""
    return time if isinstance(time, int) and time != -1 and -1 << 63 <= time < 1 << 63 else None


def _binary(value: object) -> object:
    """Return bytes; a producer also accepts text."""
    return value.encode() if isinstance(value, str) else value


class _Capture:
    """Records the key that each row has when it reaches a stage."""

    def __init__(self, plan: Plan, stage: str, rows: Rows, spans: Spans) -> None:
        key_by, *_ = plan.key_bys(stage)  # several have one codec
        self._encode = key_by.key_codec.encode
        self._stage = stage
        self._rows = rows
        self._spans = spans

    def __call__(self, batch: Batch[Any]) -> None:
        assert batch.keys is not None  # a stage is a key_by, or several that are connected
        origin = batch.origin
        ends = self._spans.get(stream(origin.source, origin.topic), {})
        for row, branch, ordinal, key in zip(
            batch.origin_rows, _branches(batch), number_outputs(batch), batch.keys, strict=True
        ):
            raw = origin.raw(row)
            self._rows.append((
                self._stage, origin.source, raw.topic, raw.partition, raw.offset, batch.lane, branch, ordinal,
                bytes(self._encode(key)), raw.timestamp, raw.key, raw.value, listed(raw.headers),
                bisect_right(ends.get(raw.partition, ()), raw.offset),
            ))  # fmt: skip


def _branches(batch: Batch[Any]) -> Sequence[str]:
    return [""] * len(batch) if batch.branch is None else batch.branch


class CapturedRow(NamedTuple):
    """A row with the columns of ``CAPTURED``, and ``loose``."""

    stage: str
    source: str
    topic: str
    partition: int
    offset: int
    lane: int
    branch: str
    ordinal: int
    grp: bytes
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]]
    span: int
    loose: bool

    def stream(self) -> tuple[str, str, str, int]:
        return self.stage, self.source, self.topic, self.lane

    def raw(self) -> RawRecord:
        headers = headers_of(self.headers)
        return RawRecord(self.topic, self.partition, self.offset, self.timestamp, self.key, self.value, headers)


class Tail:
    """Recomputes captured rows from their raw records, and passes them through the stages."""

    def __init__(self, parts: Cut, made: ExpectedOutputs | None, savepoint: str | None) -> None:
        """``made``: receives the outputs; None if they are not needed."""
        self._parts, self._held = parts, ExitStack()
        self._caught: dict[str, list[Batch[Any]]] = {stage: [] for stage in parts.stages}
        outputs: dict[str, Output] = dict.fromkeys(parts.head_sinks, ignore)
        outputs |= {captured(stage): self._caught[stage].append for stage in parts.stages}
        self._head = self._held.enter_context(chain_of(parts, parts.head, {}, outputs))
        letters = [sink.name for sink in parts.plan.sinks if sink.is_dead_letter_sink]
        names = [sink.name for sink in parts.plan.sinks if sink.name in parts.below]
        self._collectors: dict[str, Collector] = {}
        if made is not None:
            self._collectors |= {name: Collector(parts.plan, name, made) for name in names}
            # What the head refuses of a record comes before what the tail refuses of it.
            self._collectors |= {name: Collector(parts.plan, name, made, ordinal=1) for name in letters}
        self.backends = self._held.enter_context(Backends(parts.tail, savepoint)).by_operator
        ends: Mapping[str, Output] = self._collectors or dict.fromkeys((*names, *letters), ignore)
        self._tail = self._held.enter_context(chain_of(parts, parts.tail, self.backends, ends))

    def push(self, run: Sequence[CapturedRow]) -> None:
        """Push one run of captured rows of the same stage, source, topic and lane."""
        stage, source, lane = run[0].stage, run[0].source, run[0].lane
        raws = [row.raw() for row in run]
        for caught in self._caught.values():
            caught.clear()
        feed(self._parts.plan, self._head, source, raws)
        batch = self._wanted(stage, lane, [(row.branch, row.ordinal) for row in run], RawOrigin(source, raws))
        at_stage = [(row.ordinal, row.grp, row.loose, row.span) for row in run]
        for name in self._parts.below & self._collectors.keys():
            self._collectors[name].at_stage = at_stage
        self._tail.push(stage, batch)
        self._tail.flush_rejected(source)

    def _wanted(self, stage: str, lane: int, wanted: Sequence[tuple[str, int]], origin: RawOrigin) -> Batch[Any]:
        """Select the captured rows from all outputs of the raw records: for record ``i`` the output ``wanted[i]``."""
        values: list[Any] = []
        keys: list[Any] = []
        rows: list[int] = []
        branches: list[str] = []
        times: list[int] = []
        for batch in self._caught[stage]:
            if batch.lane != lane:
                continue
            assert batch.keys is not None  # a stage is a key_by, or several that are connected
            names = zip(_branches(batch), number_outputs(batch), strict=True)
            stamps = batch.event_times or repeat(None)
            for row, name, key, value, time in zip(
                batch.origin_rows, names, batch.keys, batch.values, stamps, strict=False
            ):
                if name == wanted[row]:
                    values.append(value)
                    keys.append(key)
                    rows.append(row)
                    branches.append(name[0])
                    times += [] if time is None else [time]
        return Batch(values, rows, origin, keys=keys, lane=lane, branch=branches, event_times=times or None)

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()


class Backends:
    """In-memory state for every stateful operator of a plan, empty or restored from a savepoint."""

    def __init__(self, plan: Plan, savepoint: str | None) -> None:
        self._scratch = ExitStack()
        root, groups = self._scratch.enter_context(temporary_directory()), range(MAX_KEY_GROUPS)
        copied = {node.name for node in plan.nodes if isinstance(node, plans.BroadcastConnectNode)}
        names = frozenset(node.name for node in plan.nodes if node.keyed) | copied
        storage = MemoryStorage() if savepoint is None else SavepointFiles(Path(savepoint))
        handles = {} if savepoint is None else restored(savepoint, names)
        self.by_operator: dict[str, StateBackend] = {
            name: open_backend(
                "memory", name, root / name, groups, handles.get(name, ()), storage, copied=name in copied
            )
            for name in names
        }

    def __enter__(self) -> Backends:
        return self

    def __exit__(self, *_: object) -> None:
        for backend in self.by_operator.values():
            backend.close()
        self._scratch.close()


def _arrow(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
