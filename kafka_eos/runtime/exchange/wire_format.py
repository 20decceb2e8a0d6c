"""Encoding of batches for exchanges and for the in-flight rows of a checkpoint.

Columns of numbers are little-endian arrays, values are in the codec that the plan declares, the frame around them is
MessagePack. Rule: a row keeps its origin (source, topic, partition, offset, timestamp) and its branch, so that
provenance, errors and event time are the same on the other side. The undecoded record is included only if a dead letter
may need it; the grouping of values by origin row, only if the exchange keeps these values together.
"""

from __future__ import annotations

import itertools
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from kafka_eos.abc.codec import ListCodec
from kafka_eos.core.error_messages import show_message
from kafka_eos.core.errors import Bug, PlanError, RestartFromCheckpoint
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.records import Batch, Headers, Origin, RawRecord
from kafka_eos.plan import ForwardNode, Node, Plan
from kafka_eos.runtime.operators.exchanged_rows import EncodedRows

_INT, _LONG = "i", "q"
"""Partitions have 32 bits, all other numbers 64."""

Raw = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    source: str
    topic: str
    lane: int
    partitions: bytes
    offsets: bytes
    timestamps: bytes
    values: list[bytes]
    """Lists of values, in order, each as its codec encodes it."""
    keys: list[Any] | None
    updates: bytes | None
    branch: list[str] | None
    raws: list[Raw] | None
    rows: bytes | None = None
    """For each value, the first one of the same row; None if no two share a row, or if an exchange has separated
    them."""
    times: bytes | None = None
    """Event times."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Frame).decode


class WireOrigin(Origin):
    """The origin of rows that came through an exchange; it has one row per value."""

    __slots__ = ("_raws", "_timestamps", "offsets", "partitions", "source", "topic")

    def __init__(self, frame: _Frame) -> None:
        self.source, self.topic = frame.source, frame.topic
        self.partitions: Sequence[int] = _numbers(_INT, frame.partitions)
        self.offsets: Sequence[int] = _numbers(_LONG, frame.offsets)
        self._timestamps, self._raws = frame.timestamps, frame.raws

    def timestamps(self) -> Sequence[int]:
        return _numbers(_LONG, self._timestamps)

    def raw(self, row: int) -> RawRecord:
        key, value, headers = (None, None, ()) if self._raws is None else self._raws[row]
        place = self.partitions[row], self.offsets[row], self.timestamps()[row]
        return RawRecord(self.topic, *place, key, value, tuple(headers))


def get_frame_key(batch: Batch[Any]) -> tuple[object, ...]:
    """Return the properties that batches must share to form one frame."""
    origin = batch.origin
    return origin.source, origin.topic, batch.lane, batch.keys is None, batch.updates is None, batch.event_times is None


def build_frame(plan: Plan, node: Node, rows: Sequence[EncodedRows]) -> bytes:
    """Build one frame of an exchange of the plan from encoded rows; see ``encode_all``."""
    return _build(rows, _keeps_raw(plan, rows[0].batch), isinstance(node, ForwardNode))


def encode_at(plan: Plan, node: Node, batches: Sequence[Batch[Any]]) -> bytes:
    """Encode batches of an exchange of the plan as one frame; see ``encode_all``.

    Raises PlanError that quotes the line if a value does not fit, and EnvironmentFailed if the environment is at fault.
    """
    assert node.exchange_codec is not None  # every exchange has one
    first, together = batches[0], isinstance(node, ForwardNode)
    keep_raw = _keeps_raw(plan, first)
    try:
        return encode_all(batches, node.exchange_codec, keep_raw, keep_rows=together)
    except Exception as error:
        where = first.origin.raw(first.origin_rows[0]).location
        plan.attribution(first.origin.source).expect_record(error, node.name, where)
        if not isinstance(error, ValueError):
            raise
        hint = "; there is none to see: write .forward(values=...)" if together and node.has_generated_name else ""
        raise PlanError(
            f"values cannot be sent through {node.kind} {node.name!r}: {show_message(error)}{hint}\n  {node.code_line}"
        ) from error


def _keeps_raw(plan: Plan, batch: Batch[Any]) -> bool:
    source = batch.origin.source
    return plan.has_records(source) and plan.find_dead_letter_sink(source) is not None


def encode(batch: Batch[Any], codec: ListCodec[Any], keep_raw: bool, keep_rows: bool = False) -> bytes:
    """Encode a batch as one frame; see ``encode_all``."""
    return encode_all([batch], codec, keep_raw, keep_rows)


def encode_all(batches: Sequence[Batch[Any]], codec: ListCodec[Any], keep_raw: bool, keep_rows: bool = False) -> bytes:
    """Encode batches with the same source, topic, lane and columns as one frame. ValueError if a value does not fit.

    ``keep_raw``: include the undecoded records, because a later operator may write them as dead letters. ``keep_rows``:
    include which values come from one row, because their branches do not distinguish them.
    """
    return _build([EncodedRows(batch, codec.encode(batch.values)) for batch in batches], keep_raw, keep_rows)


def _build(rows: Sequence[EncodedRows], keep_raw: bool, keep_rows: bool) -> bytes:
    batches = [each.batch for each in rows]
    first = batches[0]
    return _encode(
        _Frame(
            source=first.origin.source,
            topic=first.origin.topic,
            lane=first.lane,
            partitions=_bytes(_INT, _all(_of_rows(b, b.origin.partitions) for b in batches)),
            offsets=_bytes(_LONG, _all(_of_rows(b, b.origin.offsets) for b in batches)),
            timestamps=_bytes(_LONG, _all(_of_rows(b, b.origin.timestamps()) for b in batches)),
            values=[each.values for each in rows],
            keys=None if first.keys is None else list(_all(b.keys or () for b in batches)),
            updates=None if first.updates is None else _bytes(_LONG, _all(b.updates or () for b in batches)),
            branch=_branches(batches),
            raws=[_raw(b.origin.raw(row)) for b in batches for row in b.origin_rows] if keep_raw else None,
            rows=_together(batches) if keep_rows else None,
            times=None if first.event_times is None else _bytes(_LONG, _all(b.event_times or () for b in batches)),
        )
    )


_all = itertools.chain.from_iterable
_INDEX = re.compile(r"\$\[(\d+)\]")
"""The number of a value, in an error of msgspec."""


def _of_rows(batch: Batch[Any], column: Sequence[int]) -> Iterable[int]:
    """Return the part of an origin's column that belongs to the batch."""
    whole = isinstance(batch.origin_rows, range) and len(batch.origin_rows) == len(column)
    return column if whole else map(column.__getitem__, batch.origin_rows)


def _branches(batches: Sequence[Batch[Any]]) -> list[str] | None:
    if all(batch.branch is None for batch in batches):
        return None
    return list(_all(batch.branch or [""] * len(batch) for batch in batches))


def _together(batches: Sequence[Batch[Any]]) -> bytes | None:
    first: list[int] = []
    for batch in batches:
        last = None
        for row in batch.origin_rows:
            first.append(first[-1] if row == last else len(first))
            last = row
    return None if len(set(first)) == len(first) else _bytes(_LONG, first)


def decode(
    data: bytes, codec: ListCodec[Any], attribution: Callable[[str], ErrorRules] = lambda source: ErrorRules()
) -> Batch[Any]:
    """Decode one frame. ``attribution``: the user's rules for exceptions, by source.

    Raises RestartFromCheckpoint if the frame is incomplete, PlanError if values are not of the declared type, and
    EnvironmentFailed if the environment is at fault.
    """
    try:
        frame = _decode(data)
    except msgspec.DecodeError as error:
        raise RestartFromCheckpoint(f"rows from another subtask cannot be read: {error}") from error
    values: list[Any] = []
    try:
        for part in frame.values:
            values += codec.decode(part)
    except Exception as error:
        where = WireOrigin(frame).raw(len(values) + _row_at_fault(error)).location
        attribution(frame.source).expect_record(error, "exchange", where)
        if not isinstance(error, ValueError):
            raise
        raise PlanError(
            f"a value from the record at {where} (topic/partition/offset) does not have the type "
            "declared for this exchange, by values=... or by the last function's return type: "
            f"{show_message(error)}. Return a value of that type, or declare the type that is "
            "returned"
        ) from error
    return Batch(
        values=values,
        origin_rows=range(len(values)) if frame.rows is None else list(_numbers(_LONG, frame.rows)),
        origin=WireOrigin(frame),
        keys=frame.keys if frame.keys is None else _keys(frame.keys),
        lane=frame.lane,
        updates=None if frame.updates is None else list(_numbers(_LONG, frame.updates)),
        branch=frame.branch,
        event_times=None if frame.times is None else _numbers(_LONG, frame.times),
    )


def _row_at_fault(error: Exception) -> int:
    """Return the number of the value that a list codec's error names; 0 if it names none."""
    found = _INDEX.search(str(error))
    return int(found[1]) if found else 0


def _keys(keys: list[Any]) -> list[Any]:
    """Restore keys. MessagePack has no tuples; a key that arrives as a list was one."""
    return keys if list not in set(map(type, keys)) else list(map(_tuple, keys))


def _tuple(key: Any) -> Any:
    return tuple(map(_tuple, key)) if isinstance(key, list) else key


def _raw(record: RawRecord) -> Raw:
    headers: Headers = record.headers
    return record.key, record.value, list(headers)


def _bytes(kind: str, numbers: Iterable[int]) -> bytes:
    column = array(kind, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _numbers(kind: str, data: bytes) -> array[int]:
    column = array(kind)
    if len(data) % column.itemsize:
        raise Bug(f"a column of {len(data)} bytes is not a multiple of {column.itemsize}")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
