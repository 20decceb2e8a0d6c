"""All dead letters that are there at this moment, one after the other.

Rule: as much memory as the reader of a topic takes, however many there are. What is open in a transaction is not there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.sink.dead_letters import Letter
from kafka_eos.connectors.kafka.source.kafka_source import KafkaSource
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Record

_PATIENCE: Final = 60.0
"""Seconds without a record after which the brokers are taken for gone."""


def context(job: str, settings: Settings) -> JobContext:
    """Of one who only reads: it owns nothing."""
    return JobContext(job, Term(0), settings.for_connectors())


def letters(source: KafkaSource[Record[bytes, bytes]], ctx: JobContext) -> Iterator[tuple[str, Letter | None]]:
    """Where each record is, ``topic/partition/offset``, and the letter that it is; None if it is none.

    Raises ConfigError without the topic, Retryable if its brokers do not answer for a minute.
    """
    ends, begin = source.ends(ctx), source.discover(ctx, None)
    task: Any = TaskContext(ctx, 0, 1, "dead-letters")
    with closing(source.reader(task, begin)) as reader:
        heard = time.monotonic()
        while not reader.reached(ends):
            batch = reader.poll(LIMITS.dead_letters_per_poll, 0.2)
            if batch is not None:
                heard = time.monotonic()
                origin = batch.origin
                for row, record in zip(batch.rows, batch.values, strict=True):
                    yield f"{origin.topic}/{origin.partitions[row]}/{origin.offsets[row]}", Letter.opened(record)
            elif time.monotonic() - heard > _PATIENCE:
                raise Retryable(f"topic {source.topic} could not be read to its end: nobody answers since a minute")
