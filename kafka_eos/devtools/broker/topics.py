"""Topics and records of a Kafka cluster, for the commands ``kafka-eos broker topic``, ``produce`` and ``consume``.

Rule: these functions are for trying a pipeline by hand and for tests; only committed records are read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import (
    EOF,
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    NewTopic,
    Producer,
    TopicPartition,
)
from kafka_eos.connectors.kafka.client.log_bridge import SILENT
from kafka_eos.connectors.kafka.record_headers import read_raw_headers
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import Headers, RawRecord
from kafka_eos.devtools.broker.readiness import wait_until

_MOST_QUEUED: Final = 10_000
"""Records to queue in the client."""
_SECONDS: Final = 20.0
"""Seconds to wait for a response of the cluster."""


@contextmanager
def _explained(cluster: Cluster, what: str) -> Iterator[None]:
    """Map an error of the client to a ConfigError with advice."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0] if error.args else error
        reason = cause.str() if isinstance(cause, KafkaError) else str(error)
        hint = "; is a broker running there? kafka-eos broker status" if not _is_an_answer(cause) else ""
        raise ConfigError(f"{what} on {cluster.bootstrap}: {reason}{hint}") from error


def _is_an_answer(cause: object) -> bool:
    """Return whether the error came from a broker; codes of the client are negative."""
    return isinstance(cause, KafkaError) and cause.code() > 0


def _config(cluster: Cluster) -> dict[str, Any]:
    return cluster.build_client_config({}, SILENT)


def list_topics(cluster: Cluster) -> dict[str, int]:
    """Return the number of partitions of each topic, without Kafka's own topics."""
    with _explained(cluster, "topics cannot be listed"):
        found = AdminClient(_config(cluster)).list_topics(timeout=_SECONDS).topics
    return {name: len(of.partitions) for name, of in sorted(found.items()) if not name.startswith("__")}


KEEP_OLD_RECORDS: Final[Mapping[str, str]] = {"retention.ms": "-1"}
"""The configuration of topics for tests, whose records may have timestamps of long ago."""


def create_topics(
    cluster: Cluster, names: Sequence[str], partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Create topics with the cluster's default number of replicas. Raises ConfigError, for example if one exists."""
    wanted = [NewTopic(name, num_partitions=partitions, config=dict(config or {})) for name in names]
    admin = AdminClient(_config(cluster))  # a name keeps it alive: its futures fail without it
    for name, done in admin.create_topics(wanted, operation_timeout=_SECONDS).items():
        with _explained(cluster, f"topic {name!r} cannot be created"):
            done.result(_SECONDS)
    _await_listing(cluster, admin, lambda listed: listed.issuperset(names), f"{', '.join(names)} created")


def delete_topics(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete topics with all their records; return when a broker lists them no more.

    Raises ConfigError, for example if one does not exist.
    """
    admin = AdminClient(_config(cluster))  # a name keeps it alive: its futures fail without it
    for name, done in admin.delete_topics([*names], operation_timeout=_SECONDS).items():
        with _explained(cluster, f"topic {name!r} cannot be deleted"):
            done.result(_SECONDS)
    _await_listing(cluster, admin, lambda listed: listed.isdisjoint(names), f"{', '.join(names)} deleted")


def _await_listing(cluster: Cluster, admin: AdminClient, expected: Callable[[set[str]], bool], change: str) -> None:
    """Wait until a broker lists a change that the controller has made: brokers learn of it a little later."""

    def is_listed() -> bool:
        with _explained(cluster, "topics cannot be listed"):
            return expected({*admin.list_topics(timeout=_SECONDS).topics})

    if not wait_until(is_listed, _SECONDS):
        raise ConfigError(f"{change} on {cluster.bootstrap}, but after {_SECONDS:g} s its brokers do not list it so")


def count_records(cluster: Cluster, topic: str) -> int:
    """Return the number of records of a topic that is not compacted and was never written in transactions."""
    config = {**_config(cluster), "group.id": f"kafka-eos-broker-{uuid4().hex}"}
    partitions = [TopicPartition(topic, number) for number in range(list_topics(cluster)[topic])]
    with _explained(cluster, f"records of {topic!r} cannot be counted"), closing(Consumer(config)) as consumer:
        ends = [consumer.get_watermark_offsets(each, timeout=_SECONDS) for each in partitions]
    return sum(high - low for low, high in ends)


def produce_lines(cluster: Cluster, topic: str, lines: Iterable[str], separator: str | None) -> int:
    """Write each line as a record; with ``separator``, the text before it is the key. Return their number."""
    return produce_records(cluster, topic, (RecordToSend(*_split(line, separator)) for line in lines))


@dataclass(frozen=True, slots=True)
class RecordToSend:
    """A record to write. ``timestamp``: milliseconds since the Unix epoch, 0 for the time of sending."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0
    partition: int = -1
    """-1 lets the partitioner choose by the key."""

    def send(self, producer: Producer, topic: str, **options: Any) -> None:
        """Hand the record to a producer. ``options``: of its ``produce``. Raises BufferError if its queue is full."""
        producer.produce(
            topic,
            self.value,
            self.key,
            partition=self.partition,
            headers=list(self.headers),
            timestamp=self.timestamp,
            **options,
        )


def produce_records(cluster: Cluster, topic: str, records: Iterable[RecordToSend]) -> int:
    """Write records in order and wait until the broker has acknowledged all. Return their number."""
    if topic not in list_topics(cluster):
        raise ConfigError(
            f"no topic {topic!r} on {cluster.bootstrap}: create it with kafka-eos broker topic create {topic}"
        )
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer, count = Producer({**_config(cluster), "enable.idempotence": True}), 0
    try:
        for record in records:
            while len(producer) >= _MOST_QUEUED:
                producer.poll(0.1)
            record.send(producer, topic, on_delivery=delivered)
            producer.poll(0)
            count += 1
    finally:
        left = producer.flush(_SECONDS)  # including the lines before one without a key
    if failed or left:
        reason = failed[0].str() if failed else f"no response within {_SECONDS:g} s"
        raise ConfigError(f"{len(failed) + left} of {count} records were not written to {topic!r}: {reason}")
    return count


def _split(line: str, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line.encode()
    key, found, value = line.partition(separator)
    if not found:
        raise ConfigError(f"the line {line!r} has no {separator!r} between key and value (--key-separator)")
    return key.encode(), value.encode()


def consume_lines(
    cluster: Cluster, topic: str, *, from_beginning: bool, until_end: bool, separator: str | None
) -> Generator[str, None, None]:
    """Yield committed records as lines, after the key and ``separator`` if that is given."""
    with closing(consume_records(cluster, topic, from_beginning=from_beginning, until_end=until_end)) as records:
        for record in records:
            yield _line(record, separator)


def consume_records(
    cluster: Cluster, topic: str, *, from_beginning: bool = True, until_end: bool = True
) -> Generator[RawRecord, None, None]:
    """Yield committed records: those that exist, or with ``from_beginning=False`` those that come.

    ``until_end``: stop when all partitions are read to their current end; otherwise wait for more.
    """
    partitions = list_topics(cluster).get(topic)
    if partitions is None:
        raise ConfigError(f"topic {topic!r} does not exist on {cluster.bootstrap}: kafka-eos broker topic list")
    config = {
        "group.id": f"kafka-eos-broker-{uuid4().hex}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
    }
    with closing(Consumer({**_config(cluster), **config})) as consumer:
        start = -2 if from_beginning else -1  # Kafka's numbers for the beginning and the end of a log
        consumer.assign([TopicPartition(topic, number, start) for number in range(partitions)])
        at_end: set[int | None] = set()
        while not (until_end and len(at_end) == partitions):
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield _raw_record(message)
            elif error.code() == EOF:
                at_end.add(message.partition())
            elif error.code() > 0 or error.fatal():
                raise ConfigError(f"topic {topic!r} cannot be read: {error.str()}")


def _raw_record(message: Message) -> RawRecord:
    return RawRecord(
        str(message.topic()),
        int(message.partition() or 0),
        int(message.offset() or 0),
        int(message.timestamp()[1]),
        message.key(),
        message.value(),
        tuple(read_raw_headers(message)),
    )


def _line(record: RawRecord, separator: str | None) -> str:
    value = (record.value or b"").decode(errors="replace")
    return value if separator is None else f"{(record.key or b'').decode(errors='replace')}{separator}{value}"
