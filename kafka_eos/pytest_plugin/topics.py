"""Topics of a test: created for it, written and read by it, deleted after it.

Rule: a test writes and deletes only topics that a test has created, so it can run on a broker that others use.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any, Final, Self
from uuid import uuid4

from kafka_eos.codecs import codec_for
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import RawRecord
from kafka_eos.devtools.broker.topics import (
    KEEP_OLD_RECORDS,
    RecordToSend,
    consume_records,
    create_topics,
    delete_topics,
    produce_records,
)
from kafka_eos.pytest_plugin.servers import STARTED
from kafka_eos.testing import TimestampedValue

_CREATED: Final = set[tuple[str, str]]()
"""The topics that tests of this session have created: broker and name."""


class TestTopic:
    """A topic of one test."""

    __test__ = False  # pytest must not collect it

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster

    def produce(self, *values: Any, key: str | Callable[[Any], Any] | None = None) -> None:
        """Write values and wait until the broker has acknowledged them.

        Bytes and texts are written as they are, other values as JSON. A ``TimestampedValue`` sets the record's time.
        ``key``: a field of the values, or a function of a value.
        """
        produce_records(self._cluster, self.name, [_encode(value, key) for value in values])

    def records(self) -> list[RawRecord]:
        """Return all committed records, partition by partition in order."""
        with closing(consume_records(self._cluster, self.name)) as found:
            return sorted(found, key=lambda record: (record.partition, record.offset))

    def consume(self, value: Any = bytes) -> list[Any]:
        """Return the values of all committed records, decoded as ``value``: a type, or a codec."""
        codec = codec_for(value)
        return [None if record.value is None else codec.decode(record.value) for record in self.records()]

    def await_values(self, count: int, value: Any, seconds: float) -> list[Any]:
        """Return the values as soon as there are ``count``, or those that exist after ``seconds``."""
        deadline = time.monotonic() + seconds
        while len(found := self.consume(value)) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def __repr__(self) -> str:
        return f"topic {self.name!r}"


class TopicFactory:
    """Creates the topics of one test, and deletes them at its end."""

    def __init__(self, bootstrap: str, test: str) -> None:
        self._cluster = Cluster(bootstrap)
        self._stem = re.sub(r"[^a-zA-Z0-9]+", "-", test)[:40].strip("-")
        self._created: list[str] = []

    def __call__(self, name: str | None = None, *, partitions: int = 1) -> TestTopic:
        """Create a topic; without a name, one that no other test has. Raise ConfigError if it exists."""
        name = name or f"{self._stem}-{uuid4().hex[:8]}"
        create_test_topics(self._cluster, [name], partitions)
        self._created.append(name)
        return TestTopic(self._cluster, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        delete_test_topics(self._cluster, self._created)


def create_test_topics(cluster: Cluster, names: Sequence[str], partitions: int) -> None:
    """Create topics for a test. Raise ConfigError if one exists."""
    create_topics(cluster, names, partitions, KEEP_OLD_RECORDS)
    _CREATED.update((cluster.bootstrap, name) for name in names)


def expect_test_topics(job: str, cluster: Cluster, names: Collection[str]) -> None:
    """Raise ConfigError if one of these topics is not a test's: a job of a test would write to it."""
    if cluster.bootstrap in STARTED:
        return
    if others := sorted(name for name in names if (cluster.bootstrap, name) not in _CREATED):
        raise ConfigError(
            f"{', '.join(others)} exist on {cluster.bootstrap} and were not created by this test session, so nothing "
            f"was written. run_pipeline writes the input of a test, and job {job!r} its output, only to topics that a "
            "test has created. Leave out --kafka-eos-broker (and KAFKA_EOS_TEST_BROKER) for a broker of the session, "
            "or delete the topics if they are those of an earlier test"
        )


def delete_test_topics(cluster: Cluster, names: list[str]) -> None:
    """Delete topics that tests have created. The next test can create them again."""
    if not names:
        return
    delete_topics(cluster, names)
    _CREATED.difference_update((cluster.bootstrap, name) for name in names)


def _encode(given: Any, key: str | Callable[[Any], Any] | None) -> RecordToSend:
    value, timestamp = (given.value, given.timestamp) if isinstance(given, TimestampedValue) else (given, 0)
    found = _key_of(value, key)
    encoded = None if value is None else codec_for(type(value)).encode(value)
    return RecordToSend(None if found is None else codec_for(type(found)).encode(found), encoded, (), timestamp)


def _key_of(value: Any, key: str | Callable[[Any], Any] | None) -> Any:
    if key is None or callable(key):
        return None if key is None else key(value)
    return value[key] if isinstance(value, dict) else getattr(value, key)
