"""Messages for reading a partition as it is stored: batches, with their producers.

Pure. See ``request``. Only the header of a batch is read, which is never compressed.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import reads
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_TAGS,
    MalformedMessage,
    MessageReader,
    array,
    int8,
    int32,
    int64,
    many,
    text,
)

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH: Final = struct.Struct(">qi")
_MAGIC_AT, _MAGIC = 16, 2
_CONTROL: Final = 0x20
_WAIT_MS, _LEAST = 500, 1
_UNCOMMITTED: Final = 0


class RecordBatchHeader(Struct, frozen=True):
    """The offsets, producer and sequence number of a stored record batch.

    Compaction removes records and keeps offsets and numbers. ``producer_id`` is -1 if the producer assigns no numbers,
    or if the batch is a transaction marker.
    """

    first: int
    last: int
    producer_id: int
    producer_epoch: int
    sequence: int


class FetchResponse(Struct, frozen=True):
    """The end of the log, and record batches as stored."""

    error: int
    end: int
    records: bytes


def fetch(topic: str, partition: int, offset: int, size: int) -> Request[FetchResponse]:
    """Return a request for what is stored from ``offset`` on: ``size`` bytes or one batch, committed or not."""

    def aborted(found: MessageReader) -> None:
        found.skip(MessageReader.int64, MessageReader.int64, MessageReader.tags)

    def read_partition(found: MessageReader) -> FetchResponse:
        found.int32()
        error, end = found.int16(), found.int64()
        found.skip(MessageReader.int64, MessageReader.int64, many(aborted), MessageReader.int32)
        records = found.blob() or b""
        found.tags()
        return FetchResponse(error, end, records)

    def read_topic(found: MessageReader) -> tuple[FetchResponse, ...]:
        found.text()
        seen = found.array(read_partition)
        found.tags()
        return seen

    def read(found: MessageReader, version: int) -> FetchResponse:
        found.int32()
        error = found.int16()
        found.int32()
        seen = [part for of_topic in found.array(read_topic) for part in of_topic]
        found.tags()
        return seen[0] if seen and not error else FetchResponse(error, -1, b"")

    of_partition = int32(partition) + int32(-1) + int64(offset) + int32(-1) + int64(-1) + int32(size) + NO_TAGS
    session = int32(0) + int32(-1)
    body = (
        int32(-1) + int32(_WAIT_MS) + int32(_LEAST) + int32(size) + int8(_UNCOMMITTED) + session
        + array([text(topic) + array([of_partition]) + NO_TAGS]) + array([]) + text("") + NO_TAGS
    )  # fmt: skip
    return Request("Fetch", 1, 12, 12, lambda _: body, read, needs=(reads(topic),))


def batches_in(records: bytes) -> tuple[RecordBatchHeader, ...]:
    """Return the complete batches: a broker may cut off the last one. Raise MalformedMessage for another format."""
    seen = []
    at = 0
    while at + _HEADER.size <= len(records):
        _, length = _LENGTH.unpack_from(records, at)
        if at + _LENGTH.size + length > len(records):
            break
        if records[at + _MAGIC_AT] != _MAGIC or length < _HEADER.size - _LENGTH.size:
            raise MalformedMessage(
                f"a batch of format {records[at + _MAGIC_AT]}: only format {_MAGIC} names its producer"
            )
        first, _, _, _, _, attributes, last, _, _, producer, epoch, sequence, _ = _HEADER.unpack_from(records, at)
        control = bool(attributes & _CONTROL)
        seen.append(RecordBatchHeader(first, first + last, -1 if control else producer, epoch, sequence))
        at += _LENGTH.size + length
    return tuple(seen)
