"""Encoding of batches into the columns that a producer sends: values, keys, timestamps, headers.

Rule: lists in, lists out. Rows that cannot be encoded are named (BadRows), never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import index
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from kafka_eos.abc.codec import Codec, SupportsHeaders
from kafka_eos.connectors._shared.row_errors import map_rows
from kafka_eos.connectors.kafka.record_headers import check_headers
from kafka_eos.core.error_messages import UnfitValue, show_value
from kafka_eos.core.records import Batch, Headers, Record

T = TypeVar("T")
Key: TypeAlias = "str | bytes | None"
Timestamp: TypeAlias = "Literal['source'] | Callable[[Any], int] | None"


class ProducerColumns(Struct):
    """The values, keys, timestamps and headers of the records to produce.

    A timestamp of ``NOW`` is the time of writing. ``headers`` None means that the user adds none. A partition of -1
    leaves the choice to the partitioner; ``partitions`` None means that for all rows.

    ``shorten`` returns the value, key and headers to write in place of a row that is too large; None if such a row is
    rejected. With it, rows whose timestamp the topic refuses get the time of writing.
    """

    values: Sequence[bytes | None]
    keys: Iterable[Key]
    timestamps: Iterable[int]
    headers: Sequence[Headers] | None
    partitions: Iterable[int] | None = None
    shorten: Callable[[int], tuple[bytes | None, Key, Headers]] | None = None


class Encoder(Protocol):
    """The conversion of a batch of one kind of values to columns."""

    def __call__(self, batch: Batch[Any]) -> ProducerColumns:
        """Encode a batch. Raise BadRows: the caller applies the error policy, and retries with the other rows."""


NOW: Final = 0
"""The client's timestamp for the time of writing."""


def writable_time(time: int) -> int:
    """Return a timestamp as the client can write it: 0 and -1 are one millisecond off.

    The client takes 0 as now, and for readers -1 means that a record has no timestamp. Raises UnfitValue for anything
    but an int of 64 bits.
    """
    try:
        milliseconds = index(time)
        milliseconds.to_bytes(8, signed=True)
    except (TypeError, OverflowError) as error:
        raise UnfitValue(f"a timestamp is an int, the milliseconds since 1970, not {show_value(time)}") from error
    return _RESERVED.get(milliseconds, milliseconds)


_RESERVED: Final = {0: 1, -1: -2}


def original_time(time: int) -> int:
    """Return the timestamp to write for that of an input record: the present time for -1, which means none."""
    return NOW if time == -1 else writable_time(time)


def source_times(batch: Batch[Any]) -> list[int]:
    """Return the input record's timestamp for each output; now if it has none."""
    chosen = [*take_rows(batch.origin.timestamps(), batch.origin_rows)]
    return list(map(original_time, chosen)) if min(chosen, default=1) < 1 else chosen


def take_rows(column: Sequence[T], rows: Sequence[int]) -> Iterable[T]:
    """Return the items of a column at ascending indices; a range of its length names all of them."""
    return column if isinstance(rows, range) and len(rows) == len(column) else map(column.__getitem__, rows)


class ValueEncoder(Struct, frozen=True):
    """The encoder for streams of plain values: functions of the value give key, headers and timestamp."""

    value: Codec[Any]
    key: Callable[[Any], Any] | None
    key_codec: Codec[Any] | None
    headers: Callable[[Any], Headers] | None
    timestamp: Timestamp

    def __call__(self, batch: Batch[Any]) -> ProducerColumns:
        values = batch.values
        keys: Iterable[Key] = repeat(None)
        if self.key is not None:
            encode = self.key_codec.encode if self.key_codec is not None else _plain_key
            keys = map_rows(encode, map_rows(self.key, values))
        times: Iterable[int] = repeat(NOW)
        if self.timestamp == "source":
            times = source_times(batch)
        elif self.timestamp is not None:
            times = map_rows(writable_time, map_rows(self.timestamp, values))
        headers = None if self.headers is None else map_rows(check_headers, map_rows(self.headers, values))
        return ProducerColumns(
            _encoded(self.value, values), keys, times, _also(headers, len(values), self.key_codec, self.value)
        )


def _encoded(codec: Codec[Any], values: Sequence[Any]) -> list[bytes]:
    """Return all values encoded. Raise BadRows with those that cannot be."""
    made = codec.encode_batch(values)
    return map_rows(codec.encode, values) if made is None else made


def _also(headers: Sequence[Headers] | None, rows: int, *codecs: Codec[Any] | None) -> Sequence[Headers] | None:
    """Return the headers of rows, followed by those that the codecs of their keys and values need."""
    if not (needed := needed_headers(*codecs)):
        return headers
    return [needed] * rows if headers is None else [[*some, *needed] for some in headers]


def needed_headers(*codecs: Any) -> list[tuple[str, bytes | None]]:
    """Return the headers that a reader needs to decode what these codecs encode."""
    found: list[tuple[str, bytes | None]] = []
    for codec in codecs:
        if isinstance(codec, SupportsHeaders):
            found += codec.headers()
    return found


def _plain_key(key: object) -> Key:
    if key is None or isinstance(key, (bytes, str)):
        return key
    raise TypeError(f"a key must be str or bytes, not {type(key).__name__}: convert it, or give the sink a key_codec")


class RecordEncoder(Struct, frozen=True):
    """The encoder for streams of whole records, including tombstones."""

    value: Codec[Any]
    key_codec: Codec[Any]
    timestamp: Timestamp

    def __call__(self, batch: Batch[Record[Any, Any]]) -> ProducerColumns:
        encode_key, encode_value, records = self.key_codec.encode, self.value.encode, batch.values
        keys = map_rows(lambda r: None if r.key is None else encode_key(r.key), records)
        values = map_rows(lambda r: None if r.value is None else encode_value(r.value), records)
        if self.timestamp == "source":
            default = source_times(batch)
        elif self.timestamp is None:
            default = [NOW] * len(records)
        else:
            default = map_rows(writable_time, map_rows(self.timestamp, records))
        own = map_rows(lambda r: None if r.timestamp is None else writable_time(r.timestamp), records)
        times = [other if time is None else time for time, other in zip(own, default, strict=True)]
        headers = _also(map_rows(lambda r: check_headers(r.headers), records), len(records), self.key_codec, self.value)
        return ProducerColumns(values, keys, times, headers)
