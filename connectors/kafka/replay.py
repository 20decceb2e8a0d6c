"""Decodes records that were read by another client, as the reader would have: for the audit.

Rule: the decoding is the source's own; only the loop around it is new, because it starts from raw records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafka_eos.connectors.kafka.client import Message
from kafka_eos.connectors.kafka.reader import KafkaOrigin
from kafka_eos.records import Batch, RawRecord


def replay(
    source: str,
    raws: Sequence[RawRecord],
    columns: Callable[[Sequence[Message]], tuple[Sequence[Any], Callable[[Any], Any]]],
    reject: Callable[[RawRecord, Exception], None],
) -> Batch[Any]:
    """The batch that a reader with these ``columns`` makes of ``raws``; rows that ``reject`` took are left out."""
    messages = list(map(_message, raws))
    encoded, decode = columns(messages)
    values: list[Any] = []
    rows: list[int] = []
    for row, item in enumerate(encoded):
        try:
            values.append(decode(item))
        except Exception as error:  # noqa: BLE001 - a codec may raise anything; the row is reported, not skipped
            reject(raws[row], error)
        else:
            rows.append(row)
    return Batch(values, rows, KafkaOrigin(source, raws[0].topic, messages))


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
