"""Decodes records that were read by another client, as the reader would have: for the audit and for tests.

Rule: the decoding is the source's own; all that is new are the messages, because it starts from raw records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import Codec, Part
from kafka_eos.connectors.kafka.client.librdkafka import Message
from kafka_eos.connectors.kafka.sink.encoding import needed_headers
from kafka_eos.connectors.kafka.source.decoding import Decoding, Reject
from kafka_eos.core.records import Batch, RawRecord, Record


def replay(source: str, raws: Sequence[RawRecord], decoding: Decoding, reject: Reject) -> Batch[Any]:
    """The batch that a reader makes of ``raws``, which are of one topic; rows that ``reject`` took are left out."""
    batch, _ = decoding.batch(source, raws[0].topic, list(map(_message, raws)), reject)
    return batch


def unread(topic: str, offset: int, timestamp: int, value: Any, codecs: Mapping[Part, Codec[Any]]) -> RawRecord:
    """The record in partition 0 of which a reader makes ``value``: a ``Record`` if there is a codec of keys.

    ``timestamp`` is in milliseconds since the Unix epoch, -1 for none; a Record's own goes first. Raises what the
    codecs raise, TypeError if a Record is wanted and it is none.
    """
    key_codec, value_codec = codecs.get("key"), codecs["value"]
    if key_codec is None:
        return RawRecord(topic, 0, offset, timestamp, None, value_codec.encode(value), needed_headers(value_codec))
    if not isinstance(value, Record):
        raise TypeError(f"expected a Record, got {type(value).__name__}")
    key = None if value.key is None else key_codec.encode(value.key)
    encoded = None if value.value is None else value_codec.encode(value.value)
    time = timestamp if value.timestamp is None else value.timestamp
    headers = [*value.headers, *needed_headers(key_codec, value_codec)]
    return RawRecord(topic, 0, offset, time, key, encoded, headers)


def _message(raw: RawRecord) -> Message:
    return Message(
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        key=raw.key,
        value=raw.value,
        headers=list(raw.headers),
        timestamp=(0 if raw.timestamp < 0 else 1, raw.timestamp),
    )
