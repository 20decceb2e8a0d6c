"""A batch as bytes and back: what crosses an exchange, and what a checkpoint keeps of rows under way.

Columns of numbers are little-endian arrays, values are in the codec that the plan declares, the frame around them
is MessagePack. Rule: a row keeps its origin (source, topic, partition, offset, timestamp) and its branch, so that
provenance, errors and event time are the same on the other side. The undecoded record travels only where a dead
letter may need it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kafka_eos.errors import Bug, RestartFromCheckpoint
from kafka_eos.interfaces import ListCodec
from kafka_eos.records import Batch, Headers, RawRecord

_INT, _LONG = "i", "q"
"""Partitions have 32 bits, everything else 64."""

Raw = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    source: str
    topic: str
    lane: int
    partitions: bytes
    offsets: bytes
    timestamps: bytes
    values: bytes
    keys: list[Any] | None
    updates: bytes | None
    branch: list[str] | None
    raws: list[Raw] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Frame).decode


class WireOrigin:
    """The origin of rows that came through an exchange; every value has a row of its own."""

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


def encode(batch: Batch[Any], codec: ListCodec[Any], keep_raw: bool) -> bytes:
    """The batch as one frame. Raises ValueError if a value does not fit the codec.

    ``keep_raw``: send the undecoded records along, because a later operator may have to write them aside.
    """
    origin, rows = batch.origin, batch.rows
    times = origin.timestamps()
    whole = isinstance(rows, range) and len(rows) == len(origin.offsets)
    return _encode(
        _Frame(
            source=origin.source,
            topic=origin.topic,
            lane=batch.lane,
            partitions=_bytes(_INT, origin.partitions if whole else map(origin.partitions.__getitem__, rows)),
            offsets=_bytes(_LONG, origin.offsets if whole else map(origin.offsets.__getitem__, rows)),
            timestamps=_bytes(_LONG, times if whole else map(times.__getitem__, rows)),
            values=codec.encode(batch.values),
            keys=batch.keys,
            updates=None if batch.updates is None else _bytes(_LONG, batch.updates),
            branch=batch.branch,
            raws=[_raw(origin.raw(row)) for row in rows] if keep_raw else None,
        )
    )


def decode(data: bytes, codec: ListCodec[Any]) -> Batch[Any]:
    """The batch of one frame. RestartFromCheckpoint if it is not what ``encode`` made."""
    try:
        frame = _decode(data)
        values = codec.decode(frame.values)
    except (msgspec.DecodeError, ValueError) as error:
        raise RestartFromCheckpoint(f"rows from another subtask cannot be read: {error}") from error
    return Batch(
        values=values,
        rows=range(len(values)),
        origin=WireOrigin(frame),
        keys=frame.keys if frame.keys is None else _keys(frame.keys),
        lane=frame.lane,
        updates=None if frame.updates is None else list(_numbers(_LONG, frame.updates)),
        branch=frame.branch,
    )


def _keys(keys: list[Any]) -> list[Any]:
    """MessagePack has no tuples; a key that arrives as a list was one."""
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
        raise Bug(f"a column of {len(data)} bytes is not made of numbers of {column.itemsize}")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
