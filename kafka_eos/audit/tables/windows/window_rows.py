"""Input rows of windows, and the results of windows, by the user's functions inside Spark's Python workers.

The plan's own operators compute everything before and after windows, as in any recompute; the content of a window is
put together here. Rule: ``arrivals`` runs on records in any grouping, ``results`` on all rows of a key together, in the
order in which they were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from kafka_eos.audit.tables.plan_cut import capture, captured
from kafka_eos.audit.tables.python_tasks import (
    HEADERS,
    HEADERS_TYPE,
    Collector,
    ExpectedOutputs,
    columns_of,
    cut_of,
    feed,
    headers_of,
    ignore,
    listed,
    runs,
)
from kafka_eos.audit.tables.reference_operators import build_reference
from kafka_eos.audit.tables.windows.late_rows import AGAIN, ASIDE, COUNTED
from kafka_eos.core.provenance import TIMERS, number_outputs
from kafka_eos.core.records import Batch, Origin, RawOrigin, RawRecord
from kafka_eos.core.windows import Window
from kafka_eos.plan import KeyByNode, Plan, WindowNode, input_of
from kafka_eos.plan.triggers import CountTrigger
from kafka_eos.runtime.operators.operator_chain import OperatorChain, Output
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.timer_firing import FiringOrigin, branch_of

ARRIVED = (
    "stage string, source string, s_topic string, s_partition int, s_offset long, lane int, branch string, "
    f"ordinal int, grp binary, time long, payload binary, timestamp long, key binary, value binary, {HEADERS}"
)
"""A row that has come to windows: what names it, its encoded key, its event time, itself in the codec of its way to
another worker, and the record that it is of. At what gives out times only its place and its time are told."""
TAKEN = ("grp", "group", "windows", "fate", "known", "source", "s_topic", "s_partition", "s_offset", "lane", "branch",
         "time", "payload", "timestamp", "key", "value", "headers")  # fmt: skip
"""A row of one operator, see ``TakenRow``."""

_ARRIVED = pa.schema([
    ("stage", pa.string()), ("source", pa.string()), ("s_topic", pa.string()), ("s_partition", pa.int32()),
    ("s_offset", pa.int64()), ("lane", pa.int32()), ("branch", pa.string()), ("ordinal", pa.int32()),
    ("grp", pa.binary()), ("time", pa.int64()), ("payload", pa.binary()), ("timestamp", pa.int64()),
    ("key", pa.binary()), ("value", pa.binary()),
    ("headers", HEADERS_TYPE),
])  # fmt: skip
_AT_ONCE = 500


@dataclass(frozen=True)
class RequestedRows:
    """The requested rows of a part of the plan: rows that reach ``stages`` and ``clocks``, or outputs of ``sinks``."""

    stages: frozenset[str] = frozenset()
    clocks: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return self.stages | self.clocks | self.sinks


# ---------------------------------------------------------------- what Spark runs


def arrivals(
    app: str, workers: int, wanted: RequestedRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of input records before any window: ARRIVED rows, or EXPECTED if ``sinks`` are wanted."""
    plan = cut_of(app, workers).whole
    heads = frozenset(source.name for source in plan.sources)
    with Part.open(plan, heads, wanted) as part:
        for batch in batches:
            for source, raws in runs(batch):
                feed(part.plan, part.chain, source, raws)
            yield part.take()


def results(
    app: str, workers: int, operator: str, wanted: RequestedRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of an operator's windows, up to the next windows. Input: TAKEN rows in order of keys."""
    plan = cut_of(app, workers).whole
    with Part.open(plan, frozenset({operator}), wanted) as part:
        made = _Results(plan, operator, part)
        for batch in batches:
            for taken in map(TakenRow, *columns_of(batch)):
                made.take(taken)
            yield part.take()
        made.end()
        yield part.take()


# ---------------------------------------------------------------- a part of a plan


class Part:
    """The operators between ``heads`` and the next windows, and their outputs."""

    def __init__(self, whole: Plan, plan: Plan, wanted: RequestedRows) -> None:
        self.plan = plan
        self._made = ExpectedOutputs()
        self._rows = _Rows()
        self._held = ExitStack()
        self._collectors = {name: Collector(plan, name, self._made) for name in wanted.sinks}
        outputs: dict[str, Output] = {sink.name: ignore for sink in plan.sinks}
        outputs |= {captured(name): _Stage(whole, name, self._rows) for name in wanted.stages}
        outputs |= {captured(name): _Clock(name, self._rows) for name in wanted.clocks}
        outputs |= self._collectors
        chain = OperatorChain(plan, {}, outputs, whole=whole, build=build_reference)
        self.chain = self._held.enter_context(closing(chain))
        for collector in self._collectors.values():
            collector.refuse = self.chain.rejections.reject_output

    @classmethod
    def open(cls, whole: Plan, heads: frozenset[str], wanted: RequestedRows) -> Part:
        return cls(whole, part_of(whole, heads, wanted), wanted)

    def push(self, head: str, batch: Batch[Any], keys: Sequence[tuple[bytes, bool]]) -> None:
        """Push a batch. ``keys``: the encoded key of each row of its origin, and whether the key's content is
        unknown.
        """
        for collector in self._collectors.values():
            collector.at_stage = [(0, key, loose, 0) for key, loose in keys]
        self.chain.push(head, batch)

    def take(self) -> pa.RecordBatch:
        return self._made.take() if self._collectors else self._rows.take()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()


def part_of(plan: Plan, heads: frozenset[str], wanted: RequestedRows) -> Plan:
    """Return the stateless nodes between ``heads`` and the requested rows; requested rows without a sink are
    captured.
    """
    reached, todo = set[str](), [*heads]
    while todo:
        for node, _ in plan.downstream(todo.pop()):
            if not node.keyed and node.name not in reached:
                reached.add(node.name)
                todo.append(node.name)
    useful = {name for name in reached if name in wanted.names or plan.find_descendants(name) & wanted.names}
    letters = {sink.name for sink in plan.sinks if sink.is_dead_letter_sink}
    nodes = [node for node in plan.nodes if node.name in useful | letters]
    known = {node.name for node in nodes}
    ends = {name for node in nodes for name in node.inputs} | heads | {source.name for source in plan.sources}
    # What is not of this part stands there as an end without an input, which no operator is opened for.
    stubs = [replace(node, inputs=()) for node in plan.nodes if node.name in ends - known]
    captures = [capture(plan.node(name)) for name in sorted((wanted.stages | wanted.clocks) & known)]
    return Plan(plan.name, (*stubs, *nodes, *captures), plan.where)


class _Rows:
    """ARRIVED rows that are waiting to be returned."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def take(self) -> pa.RecordBatch:
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(_ARRIVED)
        self.rows.clear()
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, _ARRIVED, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_ARRIVED)


def results_of(fn: Callable[..., Iterable[Any]], *args: Any) -> list[Any]:
    """Return what a user's function makes at a timer; nothing if it raises, as the job has rejected the timer."""
    try:
        return list(fn(*args))
    except Exception:  # noqa: BLE001 (user code may raise anything)
        return []


class _Stage:
    """Records the rows that reach a ``key_by`` before windows."""

    def __init__(self, plan: Plan, stage: str, rows: _Rows) -> None:
        key_bys = plan.key_bys(stage)
        self._stage = stage
        self._key = key_bys[0].key_codec.encode
        self._rows = rows
        self._values = [key_by.value_codec for key_by in key_bys]

    def __call__(self, batch: Batch[Any]) -> None:
        assert batch.keys is not None and batch.event_times is not None  # the plan has seen to it
        origin, branches = batch.origin, batch.branch or [""] * len(batch)
        values = self._values[input_of(batch.lane, len(self._values))]
        rows = zip(
            batch.origin_rows, branches, number_outputs(batch), batch.keys, batch.event_times, batch.values, strict=True
        )
        for row, branch, ordinal, key, time, value in rows:
            raw = origin.raw(row)
            self._rows.rows.append((
                self._stage, origin.source, origin.topic, origin.partitions[row], origin.offsets[row], batch.lane,
                branch, ordinal, bytes(self._key(key)), time, values.encode([value]), raw.timestamp, raw.key,
                raw.value, listed(raw.headers),
            ))  # fmt: skip


class _Clock:
    """Records the times that are assigned to the rows of a source."""

    def __init__(self, node: str, rows: _Rows) -> None:
        self._node, self._rows = node, rows

    def __call__(self, batch: Batch[Any]) -> None:
        assert batch.event_times is not None  # it is a node that gives them
        origin = batch.origin
        for row, time in zip(batch.origin_rows, batch.event_times, strict=True):
            place = origin.source, origin.topic, origin.partitions[row], origin.offsets[row]
            self._rows.rows.append((self._node, *place, 0, "", 0, b"", time, None, 0, None, None, []))


# ---------------------------------------------------------------- what windows hold


class TakenRow(NamedTuple):
    """A row with its windows, its key group, and its fate; see ``late``.

    ``known``: whether the arrival order of its key's rows is known. If so, windows that are not closed are known, too.
    """

    grp: bytes
    group: int
    windows: Sequence[Mapping[str, Any]]
    fate: int
    known: bool
    source: str
    s_topic: str
    s_partition: int
    s_offset: int
    lane: int
    branch: str
    time: int
    payload: bytes
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]]

    def origin(self, plan: Plan) -> Origin:
        """Return the origin of results that come from the row itself."""
        if self.source not in {source.name for source in plan.sources}:
            return FiringOrigin(self.source, self.s_topic, [self.s_partition], [self.s_offset])
        place = self.s_topic, self.s_partition, self.s_offset, self.timestamp
        return RawOrigin(self.source, [RawRecord(*place, self.key, self.value, headers_of(self.headers))])


@dataclass
class _KeyWindows:
    """The windows of one key, each with its accumulator and number of rows; and the closed windows."""

    grp: bytes
    group: int
    key: Any
    found: dict[tuple[int, int], Any] = field(default_factory=dict)
    rows: Counter[tuple[int, int]] = field(default_factory=Counter)
    over: set[tuple[int, int]] = field(default_factory=set)
    loose: set[tuple[int, int]] = field(default_factory=set)
    fired: bool = False


class _Results:
    """Combines the rows of each key, and returns the results of its windows."""

    def __init__(self, plan: Plan, operator: str, part: Part) -> None:
        node = plan.node(operator)
        assert isinstance(node, WindowNode)
        stage = plan.node(node.inputs[0])
        assert isinstance(stage, KeyByNode)
        self._node = node
        self._contents = node.contents
        self._part = part
        self._by_count = node.trigger if isinstance(node.trigger, CountTrigger) else None
        self._decode_key, self._values = node.key_codec.decode, stage.value_codec
        self._key: _KeyWindows | None = None
        self._firings: list[tuple[_KeyWindows, tuple[int, int], Sequence[Any]]] = []

    def take(self, row: TakenRow) -> None:
        """Add a row. The counted rows of a key precede those that emitted results again."""
        if self._key is None or self._key.grp != row.grp:
            self._fire()
            self._key = _KeyWindows(row.grp, row.group, self._decode_key(row.grp))
        held, (value,) = self._key, self._values.decode(row.payload)
        item = (value, (row.time, row.s_partition, row.s_offset)) if self._contents.by_time else value
        if row.fate == COUNTED:
            for each in row.windows:
                self._count(row, held, each, item)
            return
        self._fire()
        self._hand_on()
        if row.fate == ASIDE:
            assert self._node.late is not None
            self._from(row, [(row.time, [TaggedValue(self._node.late, value)])])
        elif row.fate == AGAIN:
            spans = [(each["start"], each["end"]) for each in row.windows]
            again = [span for span in spans if self._add(held, span, item)]
            self._from(row, [(end - 1, self._emitted(held, (start, end))) for start, end in again])

    def end(self) -> None:
        """Finish the last key: no more rows follow."""
        self._fire()
        self._hand_on()
        self._key = None

    def _count(self, row: TakenRow, held: _KeyWindows, window: Mapping[str, Any], item: Any) -> None:
        """Add a row to a window; by count, it may emit a result."""
        span = window["start"], window["end"]
        if not self._add(held, span, item):
            return
        held.rows[span] += 1
        if window["loose"]:
            held.loose.add(span)
        if window["over"]:
            held.over.add(span)
        if row.known and self._by_count is not None and held.rows[span] % self._by_count.rows == 0:
            self._from(row, [(span[1] - 1, self._emitted(held, span))])

    def _add(self, held: _KeyWindows, span: tuple[int, int], item: Any) -> bool:
        """Add a row to a window. Return False if the user's function rejects it: the row is in no window then."""
        contents = self._contents
        try:
            acc = contents.add(held.found[span], item) if span in held.found else contents.first(item)
        except Exception:  # noqa: BLE001 - user code may raise anything; the job has refused the row for it, too
            return False
        if acc is None:
            return False
        held.found[span] = acc
        return True

    def _emitted(self, held: _KeyWindows, span: tuple[int, int]) -> Sequence[Any]:
        """Return the outputs of a window; nothing if the user's function raises, as the job has rejected them, too."""
        return results_of(self._contents.emit, held.key, Window(*span), held.found[span])

    def _fire(self) -> None:
        """Emit the results of a key, all of whose counted rows have been added."""
        held = self._key
        if held is None or held.fired:
            return
        held.fired = True
        for span in sorted(held.over, key=lambda span: span[1]):
            self._firings.append((held, span, self._emitted(held, span)))
        if len(self._firings) >= _AT_ONCE:
            self._hand_on()

    def _hand_on(self) -> None:
        if not self._firings:
            return
        rows = [row for row, (_, _, outputs) in enumerate(self._firings) for _ in outputs]
        times = [end - 1 for _, (_, end), _ in self._firings]
        groups = [held.group for held, _, _ in self._firings]
        keys = [held.grp for held, _, _ in self._firings]
        loose = [span in held.loose for held, span, _ in self._firings]
        batch = Batch(
            [output for *_, outputs in self._firings for output in outputs],
            rows,
            FiringOrigin(self._node.name, TIMERS, groups, times),
            branch=[branch_of(keys[row]) for row in rows],
            event_times=[times[row] for row in rows],
        )
        self._firings.clear()
        if len(batch):
            self._part.push(self._node.name, batch, list(zip(keys, loose, strict=True)))

    def _from(self, row: TakenRow, made: Sequence[tuple[int, Sequence[Any]]]) -> None:
        """Emit outputs that come from a row."""
        values = [output for _, outputs in made for output in outputs]
        times = [time for time, outputs in made for _ in outputs]
        count = len(values)
        batch = Batch(
            values,
            [0] * count,
            row.origin(self._part.plan),
            lane=row.lane,
            branch=[row.branch] * count,
            event_times=times,
        )
        if count:
            self._part.push(self._node.name, batch, [(row.grp, False)])
