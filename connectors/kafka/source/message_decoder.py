"""Decoding of the records of one poll into a batch: values, and their origins.

Rule: a reader and a later replay (``replay_decoding``) decode in the same way. A record that cannot be decoded is
passed to ``refuse``, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos.abc.codec import Codec, SupportsHeaders
from kafka_eos.connectors.kafka.client.librdkafka import Message
from kafka_eos.connectors.kafka.record_headers import read_headers, read_raw_headers
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.records import Batch, Headers, Origin, RawRecord, Record

Reject: TypeAlias = Callable[[RawRecord, Exception], None]
HeaderFilter: TypeAlias = Callable[[Mapping[str, bytes | None]], object]
"""A predicate on a record's headers: whether the record belongs to the source. The last of equal names is given."""
Columns: TypeAlias = Callable[[list[Message]], tuple[list[Any], Callable[[Any], Any] | None]]
"""Returns the column to decode, and the decoder of one cell; None if the column is decoded already."""

_value: Callable[[Message], bytes | None] = Message.value
_offset: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
_partition: Callable[[Message], int] = Message.partition  # type: ignore[assignment]
_timestamp = Message.timestamp


class KafkaOrigin(Origin):
    """The records of one poll. Timestamps and raw records are created only when requested."""

    __slots__ = ("_messages", "_times", "offsets", "partitions", "source", "topic")

    def __init__(self, source: str, topic: str, messages: Sequence[Message]) -> None:
        self.source, self.topic = source, topic
        self.partitions: list[int] = list(map(_partition, messages))
        self.offsets: list[int] = list(map(_offset, messages))
        self._messages = messages
        self._times: list[int] | None = None

    def timestamps(self) -> Sequence[int]:
        if self._times is None:
            self._times = [time if kind else -1 for kind, time in map(_timestamp, self._messages)]
        return self._times

    def raw(self, row: int) -> RawRecord:
        message = self._messages[row]
        return RawRecord(
            self.topic,
            self.partitions[row],
            self.offsets[row],
            _time(message),
            message.key(),
            message.value(),
            tuple(read_raw_headers(message)),
        )


def _time(message: Message) -> int:
    """Return the timestamp; -1 if there is none, for which brokers of today also have the number."""
    kind, time = message.timestamp()
    return time if kind else -1


def value_decoder(codec: Codec[Any]) -> Columns:
    """Return the column of raw values and their decoder, for streams of plain values."""
    if isinstance(codec, SupportsHeaders):
        return _with_headers(codec.decode_with)
    decode, decode_batch = codec.decode, codec.decode_batch

    def no_tombstones(value: bytes | None) -> Any:
        return decode(_expect_value(value))

    def columns(messages: list[Message]) -> tuple[list[Any], Callable[[Any], Any] | None]:
        values: list[Any] = list(map(_value, messages))
        if None in values:
            return values, no_tombstones
        decoded = decode_batch(values)
        return (values, decode) if decoded is None else (decoded, None)

    return columns


def _with_headers(decode_with: Callable[[bytes, Headers], Any]) -> Columns:
    """Return the column of messages, and a decoder that uses the value and the headers."""

    def decode(message: Message) -> Any:
        return decode_with(_expect_value(message.value()), read_headers(message))

    return lambda messages: (messages, decode)


def _expect_value(value: bytes | None) -> bytes:
    if value is None:
        raise UnfitValue("the record is a tombstone (no value); read it with KafkaSource.records")
    return value


def record_decoder(key: Codec[Any], value: Codec[Any]) -> Columns:
    """Return the column of messages and the decoder, for streams of whole records."""
    decode_key, decode_value = _decode_with(key), _decode_with(value)

    def decode(message: Message) -> Record[Any, Any]:
        raw_key, raw_value, time = message.key(), message.value(), _time(message)
        headers = tuple(read_headers(message))
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

    return lambda messages: (messages, decode)


def _decode_with(codec: Codec[Any]) -> Callable[[bytes, Headers], Any]:
    if isinstance(codec, SupportsHeaders):
        return codec.decode_with
    decode = codec.decode
    return lambda data, headers: decode(data)


@dataclass(frozen=True, slots=True)
class MessageDecoder:
    """The decoder of a source's polled messages into batches. ``columns``: the decoding by topic.

    ``header_filter``: whether a record belongs to the source, by its headers; others are filtered out without decoding.
    """

    columns: Callable[[str], Columns]
    header_filter: HeaderFilter | None = None

    def batch(self, source: str, topic: str, messages: list[Message], refuse: Reject) -> tuple[Batch[Any], int]:
        """Return the batch of all records except those that ``refuse`` took, and the number filtered out.

        Errors that ``refuse`` raises propagate.
        """
        origin = KafkaOrigin(source, topic, messages)
        rows, left_out = self._kept(origin, messages, refuse)
        some = messages if len(rows) == len(messages) else [messages[row] for row in rows]
        raws, decode = self.columns(topic)(some)
        if decode is None:
            return Batch(raws, rows, origin), left_out
        values, refused = map_rows(decode, raws, refuse=lambda row, error: refuse(origin.raw(rows[row]), error))
        bad = frozenset(refused)
        return Batch(values, [row for at, row in enumerate(rows) if at not in bad] if bad else rows, origin), left_out

    def _kept(self, origin: KafkaOrigin, messages: Sequence[Message], refuse: Reject) -> tuple[Sequence[int], int]:
        """Return the rows that belong to the source, and the number filtered out. Rejected rows are in neither."""
        keeps = self.header_filter
        if keeps is None:
            return range(len(messages)), 0

        def filtered(message: Message) -> object:
            return keeps(dict(read_headers(message)))

        verdicts, refused = map_rows(filtered, messages, refuse=lambda row, error: refuse(origin.raw(row), error))
        bad = frozenset(refused)
        judged = [row for row in range(len(messages)) if row not in bad]
        rows = [row for row, keep in zip(judged, verdicts, strict=True) if keep]
        return (rows, len(judged) - len(rows)) if len(rows) < len(messages) else (range(len(messages)), 0)
