"""Reads all dead letters that exist at this moment, one after the other.

Rule: the reader needs constant memory, however many dead letters exist. Records of open transactions are not read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.connectors.kafka.source.kafka_source import KafkaSource
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Record

_PATIENCE: Final = 60.0
"""Seconds without a record after which reading fails."""


def context(job: str, settings: Settings) -> JobContext:
    """Return the context of a reader that owns nothing."""
    return JobContext(job, Term(0), settings.connector_defaults())


def read_dead_letters(
    source: KafkaSource[Record[bytes, bytes]], ctx: JobContext
) -> Iterator[tuple[str, DeadLetter | None]]:
    """Read every record of the topic: its location, and the dead letter or None.

    Raises ConfigError if the topic does not exist, Retryable if its brokers do not respond for a minute.
    """
    ends, begin = source.get_end_positions(ctx), source.discover(ctx, None)
    task: Any = TaskContext(ctx, 0, 1, "dead-letters")
    with closing(source.reader(task, begin)) as reader:
        last_record_at = time.monotonic()
        while not reader.has_reached(ends):
            batch = reader.poll(LIMITS.dead_letters_per_poll, 0.2)
            if batch is not None:
                last_record_at = time.monotonic()
                origin = batch.origin
                for row, record in zip(batch.origin_rows, batch.values, strict=True):
                    yield (
                        f"{origin.topic}/{origin.partitions[row]}/{origin.offsets[row]}",
                        DeadLetter.from_record(record),
                    )
            elif time.monotonic() - last_record_at > _PATIENCE:
                raise Retryable(
                    f"topic {source.topic} could not be read to its end: the brokers have not responded for a minute"
                )
