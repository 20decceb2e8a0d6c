"""Decoding of the records of one fetch into a batch: values, and their origins.

Rule: a reader and a later replay (``replay_decoding``) decode in the same way. A record that cannot be decoded is
passed to ``refuse``, never skipped.

A checkpoint waits for the batch that is being decoded, and a record whose schema is not known here takes a request. So
a reader decodes for a second, and the remaining records are a later batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from kafka_eos._util.bulk_calls import TimedRows, map_rows
from kafka_eos.abc.codec import Codec, SupportsHeaders
from kafka_eos.connectors.kafka.source.fetched_records import FetchedRecords
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.records import Batch, Headers, Origin, RawRecord, Record

Reject: TypeAlias = Callable[[RawRecord, Exception], None]
HeaderFilter: TypeAlias = Callable[[Mapping[str, bytes | None]], object]
"""A predicate on a record's headers: whether the record belongs to the source. The last of equal names is given."""
Columns: TypeAlias = Callable[[FetchedRecords], tuple[Any, Callable[[Any], Any] | None]]
"""Returns the column to decode, and the decoder of one cell; None if the column is decoded already."""


class KafkaOrigin(Origin):
    """The records of one poll. Timestamps and raw records are created only when requested."""

    __slots__ = ("_records", "_times", "offsets", "partitions", "source", "topic")

    def __init__(self, source: str, records: FetchedRecords) -> None:
        self.source, self.topic = source, records.topic
        self.partitions, self.offsets = records.partitions, records.offsets
        self._records = records
        self._times: list[int] | None = None

    def timestamps(self) -> Sequence[int]:
        if self._times is None:
            self._times = self._records.timestamps()
        return self._times

    def raw(self, row: int) -> RawRecord:
        return self._records.raw(row)


def value_decoder(codec: Codec[Any]) -> Columns:
    """Return the column of raw values and their decoder, for streams of plain values."""
    if isinstance(codec, SupportsHeaders):
        return _with_headers(codec.decode_with)
    decode, decode_batch = codec.decode, codec.decode_batch

    def no_tombstones(value: bytes | None) -> Any:
        return decode(_expect_value(value))

    def columns(records: FetchedRecords) -> tuple[list[Any], Callable[[Any], Any] | None]:
        values: list[Any] = records.values()
        if None in values:
            return values, no_tombstones
        decoded = decode_batch(values)
        return (values, decode) if decoded is None else (decoded, None)

    return columns


def _with_headers(decode_with: Callable[[bytes, Headers], Any]) -> Columns:
    """Return the rows, and a decoder that uses the value and the headers of one."""

    def columns(records: FetchedRecords) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        values = records.values()

        def decode(row: int) -> Any:
            return decode_with(_expect_value(values[row]), records.headers(row))

        return range(len(records)), decode

    return columns


def _expect_value(value: bytes | None) -> bytes:
    if value is None:
        raise UnfitValue("the record is a tombstone (no value); read it with KafkaSource.records")
    return value


def record_decoder(key: Codec[Any], value: Codec[Any]) -> Columns:
    """Return the rows and the decoder of one, for streams of whole records."""
    decode_key, decode_value = _decode_with(key), _decode_with(value)

    def columns(records: FetchedRecords) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        keys, values, times = records.keys(), records.values(), records.timestamps()

        def decode(row: int) -> Record[Any, Any]:
            raw_key, raw_value, time = keys[row], values[row], times[row]
            headers = tuple(records.headers(row))
            try:
                decoded_key = None if raw_key is None else decode_key(raw_key, headers)
            except ValueError as error:
                raise ValueError(f"in the key: {error}") from error
            return Record(
                decoded_key,
                None if raw_value is None else decode_value(raw_value, headers),
                headers,
                None if time == -1 else time,
            )

        return range(len(records)), decode

    return columns


def _decode_with(codec: Codec[Any]) -> Callable[[bytes, Headers], Any]:
    if isinstance(codec, SupportsHeaders):
        return codec.decode_with
    decode = codec.decode
    return lambda data, headers: decode(data)


class MessageDecoder(Struct, frozen=True):
    """The decoder of a source's fetched records into batches. ``columns``: the decoding by topic.

    ``header_filter``: whether a record belongs to the source, by its headers; others are filtered out without decoding.
    ``has_keys``: whether keys are decoded, too.
    """

    columns: Callable[[str], Columns]
    header_filter: HeaderFilter | None = None
    has_keys: bool = False

    def batch(
        self, source: str, records: FetchedRecords, refuse: Reject, seconds: float = math.inf
    ) -> tuple[Batch[Any], int, int]:
        """Return the batch of the first records, without those that ``refuse`` took; how many these are; and how many
        of them were filtered out.

        They are all records, unless these take longer than ``seconds``. Errors that ``refuse`` raises propagate.
        """
        origin = KafkaOrigin(source, records)
        rows, unfiltered = self._filtered(records)
        some = records if len(rows) == len(records) else records.take(rows)
        values, decode = self.columns(records.topic)(some)
        bad: Sequence[int] = ()
        waiting = deque(unfiltered.items())

        def refuse_before(end: int) -> None:
            while waiting and waiting[0][0] < end:
                row, error = waiting.popleft()
                refuse(origin.raw(row), error)

        def refuse_undecoded(at: int, error: Exception) -> None:
            refuse_before(rows[at])
            refuse(origin.raw(rows[at]), error)

        if decode is not None:
            values, bad = map_rows(decode, TimedRows(values, seconds), refuse=refuse_undecoded)
        decoded = len(values) + len(bad)
        count = rows[decoded] if decoded < len(rows) else len(records)
        refuse_before(count)
        left_out = count - decoded - (len(unfiltered) - len(waiting))
        kept = rows[:decoded]
        if bad:
            refused = frozenset(bad)
            kept = [row for at, row in enumerate(kept) if at not in refused]
        return Batch(values, kept, origin), count, left_out

    def _filtered(self, records: FetchedRecords) -> tuple[Sequence[int], Mapping[int, Exception]]:
        """Return the rows that belong to the source, and the errors of those for which the filter failed."""
        keeps = self.header_filter
        if keeps is None:
            return range(len(records)), {}
        errors: dict[int, Exception] = {}
        every = range(len(records))
        verdicts, _ = map_rows(lambda row: keeps(dict(records.headers(row))), every, refuse=errors.__setitem__)
        judged = [row for row in every if row not in errors]
        return [row for row, keep in zip(judged, verdicts, strict=True) if keep], errors
