"""The records that brokers have refused for a rule that is no setting of their topic, such as schema validation.

By the time of the response the transaction has failed, and a delivery report has the key and the value of a record, not
its origin. So the next attempt in this process rejects the row with the same key and value before it is sent. Records
are forgotten after an hour, because the rule may change.

Rule: a record is rejected only if the broker has named it. For some batches librdkafka reports the same error for all
records, whether the broker has named one of them, all, or none. The reports do not show where a batch ends, and several
may fail together. So several refused records in a row may be such a batch: the next attempt sends each of them alone.
The broker has named a refused record that is reported between others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final, TypeAlias

from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Message
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns

_Where: TypeAlias = tuple[str | None, int | None]
"""Topic and partition, as a delivery report has them."""
_REMEMBERED_SECONDS: Final = 3600.0


class RefusedRecords:
    """The records of one producer that brokers have refused, by topic and partition. ``cluster``: its bootstrap
    servers."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.recorded_at = 0.0
        """When the last one was recorded, by the monotonic clock."""
        self._runs: defaultdict[_Where, list[list[bytes]]] = defaultdict(lambda: [[]])
        """The refused records that were reported in a row. Others of their batch are between two runs."""

    def record(self, error: KafkaError, message: Message) -> None:
        """Record a failed delivery, if the broker refused the record or another one of its batch."""
        runs = self._runs[message.topic(), message.partition()]
        if error.code() == KafkaError._INVALID_DIFFERENT_RECORD:
            runs.append([])
        elif error.code() == KafkaError.INVALID_RECORD:
            if not self.recorded_at:
                _KNOWN.append(self)
            self.recorded_at = time.monotonic()
            runs[-1].append(_digest(message.key(), message.value()))

    def list_by_digest(self, topic: str) -> Iterator[tuple[bytes, bool]]:
        """Yield the records of a topic, each with whether the broker has named it."""
        for where, runs in [*self._runs.items()]:
            if where[0] == topic:
                yield from ((digest, len(run) == 1) for run in runs for digest in run)


_KNOWN: Final[list[RefusedRecords]] = []
"""The refused records of all producers of this process, which outlives the failed attempt."""


def find_refused_before(cluster: str, topic: str, columns: ProducerColumns) -> tuple[dict[int, str], frozenset[int]]:
    """Return the reason for each row that a broker has refused in an earlier attempt, and the rows to send alone."""
    since = time.monotonic() - _REMEMBERED_SECONDS
    known = [producer for producer in _KNOWN if producer.cluster == cluster and producer.recorded_at > since]
    records = [record for producer in known for record in producer.list_by_digest(topic)]
    if not records:
        return {}, frozenset()
    named = {digest for digest, is_named in records if is_named}
    suspected = {digest for digest, _ in records} - named
    rows = zip(islice(columns.keys, len(columns.values)), columns.values, strict=True)
    digests = [_digest(key, value) for key, value in rows]
    reason = (
        f"an earlier attempt sent this output, and a broker refused it by its own rule for the topic {topic}, such as "
        "schema validation. Look for the rule in the broker's log"
    )
    refused = {index: reason for index, digest in enumerate(digests) if digest in named}
    return refused, frozenset(index for index, digest in enumerate(digests) if digest in suspected)


def _digest(key: str | bytes | None, value: str | bytes | None) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (key, value):
        encoded = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if encoded is None else b"%d:" % len(encoded) + encoded)
    return digest.digest()
