"""The records that brokers have refused for a rule that is no setting of their topic, such as schema validation.

By the time of the response the transaction has failed, and a delivery report has the key and the value of a record, not
its origin. So the next attempt in this process rejects the row with the same key and value before it is sent.

Rule: a record is rejected only if the broker has named it. For some batches librdkafka reports the same error for all
records, whether the broker has named one of them, all, or none. The next attempt sends each of these records alone: the
only record of a refused batch is the one that the broker has named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final, TypeAlias

from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Message
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns

_Where: TypeAlias = tuple[str | None, int | None]
"""Topic and partition, as a delivery report has them."""


class RefusedRecords:
    """The records of one producer that brokers have refused, by topic and partition."""

    def __init__(self) -> None:
        self._refused: defaultdict[_Where, list[bytes]] = defaultdict(list)
        self._with_others: set[_Where] = set()
        """Partitions where the broker has refused other records of a batch only because of these."""

    def record(self, error: KafkaError, message: Message) -> None:
        """Record a failed delivery, if the broker refused the record or another one of its batch."""
        where = message.topic(), message.partition()
        if error.code() == KafkaError._INVALID_DIFFERENT_RECORD:
            self._with_others.add(where)
        elif error.code() == KafkaError.INVALID_RECORD:
            if not self._refused:
                _KNOWN.append(self)
            self._refused[where].append(_digest(message.key(), message.value()))

    def list_by_digest(self, topic: str) -> Iterator[tuple[bytes, bool]]:
        """Yield the records of a topic, each with whether the broker has named it."""
        for where, digests in [*self._refused.items()]:
            if where[0] == topic:
                named = where in self._with_others or len(digests) == 1
                yield from ((digest, named) for digest in digests)


_KNOWN: Final[list[RefusedRecords]] = []
"""The refused records of all producers of this process, which outlives the failed attempt."""


def find_refused_before(topic: str, columns: ProducerColumns) -> tuple[dict[int, str], frozenset[int]]:
    """Return the reason for each row that a broker has refused in an earlier attempt, and the rows to send alone."""
    records = [record for producer in _KNOWN for record in producer.list_by_digest(topic)]
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
