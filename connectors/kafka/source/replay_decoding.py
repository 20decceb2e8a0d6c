"""Decoding of raw records from another client, as the reader would decode them: for the audit and for tests.

Rule: the source's own decoder is used; only the messages are created here from raw records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import Codec, RecordPart
from kafka_eos.connectors.kafka.client.librdkafka import Message
from kafka_eos.connectors.kafka.sink.record_encoders import needed_headers
from kafka_eos.connectors.kafka.source.fetched_records import MessageRecords
from kafka_eos.connectors.kafka.source.message_decoder import MessageDecoder, Reject
from kafka_eos.core.records import Batch, RawRecord, Record


def replay(source: str, raws: Sequence[RawRecord], decoding: MessageDecoder, reject: Reject) -> Batch[Any]:
    """Return the batch that a reader makes of ``raws``, all of one topic, without rows that ``reject`` took."""
    batch, _, _ = decoding.batch(source, MessageRecords(raws[0].topic, list(map(_message, raws))), reject)
    return batch


def encode_record(
    topic: str, offset: int, timestamp: int, value: Any, codecs: Mapping[RecordPart, Codec[Any]]
) -> RawRecord:
    """Return the record that a reader would decode to a value.

    ``timestamp`` is in milliseconds since the Unix epoch, -1 for none; a Record's own takes precedence. Errors of the
    codecs propagate; TypeError if a Record is required and the value is not one.
    """
    key_codec, value_codec = codecs.get("key"), codecs["value"]
    if key_codec is None:
        needed = tuple(needed_headers(value_codec))
        return RawRecord(topic, 0, offset, timestamp, None, value_codec.encode(value), needed)
    if not isinstance(value, Record):
        raise TypeError(f"expected a Record, got {type(value).__name__}")
    key = None if value.key is None else key_codec.encode(value.key)
    encoded = None if value.value is None else value_codec.encode(value.value)
    time = timestamp if value.timestamp is None else value.timestamp
    headers = (*value.headers, *needed_headers(key_codec, value_codec))
    return RawRecord(topic, 0, offset, time, key, encoded, headers)


def _message(raw: RawRecord) -> Message:
    return Message(
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        key=raw.key,
        value=raw.value,
        headers=list(raw.headers),
        timestamp=(0 if raw.timestamp == -1 else 1, raw.timestamp),
    )
