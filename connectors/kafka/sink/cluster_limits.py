"""The limits of the cluster, checked before the job runs.

Rule: a limit that would break the guarantee later is an error now, with the setting that lifts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import Permission
from kafka_eos.connectors.kafka.client.memory import largest_record
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import MARKER_LIFETIME
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.topic_rules import SETTINGS, TopicRules
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.json_values import Json

DEFAULT_MS: Final = 3_600_000
LONGEST_MS: Final = 2_147_483_547
"""The longest transaction timeout that librdkafka accepts: 24.8 days."""
_BROKER_DEFAULT_MS: Final = 900_000
_UNVERIFIED: Final = (
    "These brokers do not verify that a record belongs to an open transaction (KIP-890, in Kafka since 3.6). A record "
    "that arrives after its transaction has ended may become part of the next one, or block readers that read "
    "committed records only. Brokers other than Apache Kafka's are not tested: run kafka-eos audit on the output"
)
_REREAD_SECONDS: Final = 1.0
"""Seconds for which rejected rows are measured by the same limits."""
_RETENTION: Final = ("retention.ms", "retention.bytes")
"""Settings that let a topic with ``cleanup.policy=delete`` delete its oldest records; -1 disables a limit."""


def broker_maximum_ms(rpc: KafkaRequests) -> int:
    """Return ``transaction.max.timeout.ms``; Kafka's default if the user may not read it."""
    found = rpc.broker_config("transaction.max.timeout.ms")
    return _BROKER_DEFAULT_MS if found is None else int(found)


def transaction_timeout_ms(rpc: KafkaRequests, wanted: int | None) -> int:
    """Return the timeout to use: the user's, else the smaller of one hour and the broker's maximum."""
    return wanted if wanted is not None else min(DEFAULT_MS, broker_maximum_ms(rpc))


class TransactionNeeds(Struct, frozen=True):
    """The time for which the job's transactions must be able to stay open."""

    interval: int = 0
    """Milliseconds between checkpoints: a transaction is open at least this long before it is prepared."""
    margin: int = 0
    """Milliseconds of the timeout that must be left at the commit; 0 if an epoch has at most one transaction."""

    @classmethod
    def of(cls, settings: Mapping[str, Json]) -> TransactionNeeds:
        """Return the needs from the settings that the engine passes to connectors; see ``JobContext.settings``."""
        seconds = (settings.get("checkpoint_interval"), settings.get("commit_margin"))
        return cls(*(int(value * 1000) if isinstance(value, int | float) else 0 for value in seconds))


class RetentionLimits(Struct, frozen=True):
    """The time for which a cluster remembers the outcome of a transaction."""

    offsets: int | None
    ids: int | None


def check_transactions(rpc: KafkaRequests, wanted: int | None, demands: TransactionNeeds) -> list[str]:
    """Return notices: the outage that the job survives, and what the brokers lack.

    Raise ConfigError if the timeout cannot work.
    """
    maximum = broker_maximum_ms(rpc)
    timeout = transaction_timeout_ms(rpc, wanted)
    minutes, ids = rpc.broker_config("offsets.retention.minutes"), rpc.broker_config("transactional.id.expiration.ms")
    memory = RetentionLimits(None if minutes is None else int(minutes) * 60_000, None if ids is None else int(ids))
    if problem := find_timeout_problem(timeout, maximum, demands, memory):
        raise ConfigError(problem)
    notice = (
        f"Prepared output survives an outage of the whole job of up to {_span(timeout)} (transaction timeout). "
        "For longer ones raise transaction_timeout and the brokers' transaction.max.timeout.ms, "
        f"at most {_span(LONGEST_MS)}."
    )
    return [notice, *([] if rpc.verifies_transactions() else [_UNVERIFIED])]


def find_timeout_problem(timeout: int, maximum: int, demands: TransactionNeeds, memory: RetentionLimits) -> str | None:
    """Return why a transaction timeout cannot work, and the remedy; None if it can."""
    given = f"transaction_timeout of {_span(timeout)}"
    if timeout > LONGEST_MS:
        return f"{given}: librdkafka accepts at most {_span(LONGEST_MS)}."
    if timeout > maximum:
        return (
            f"{given} is more than the broker allows (transaction.max.timeout.ms={maximum}), with "
            f"which the job would survive an outage of {_span(maximum)}. Set "
            f"transaction.max.timeout.ms={timeout} on every broker, or pass a shorter "
            "transaction_timeout."
        )
    if timeout <= demands.interval:
        return (
            f"{given} expires before the first checkpoint (checkpoint_interval is "
            f"{_span(demands.interval)}): the broker would abort the output of every epoch. Pass "
            "a longer transaction_timeout, or a shorter checkpoint_interval."
        )
    if timeout <= demands.margin:
        return (
            f"{given} is not longer than the {_span(demands.margin)} that must remain when an "
            "epoch of several transactions is committed, so that none expires between two "
            "commits: no epoch could be committed. Pass a longer one."
        )
    return _forgotten(given, timeout, memory)


def _forgotten(given: str, timeout: int, memory: RetentionLimits) -> str | None:
    """Return why the cluster forgets outcomes too early: committed output would look lost, and be produced again."""
    lifetime = int(MARKER_LIFETIME * 1000)
    if memory.offsets is not None and memory.offsets < max(timeout, lifetime):
        return (
            f"The brokers forget after {_span(memory.offsets)} "
            f"(offsets.retention.minutes={memory.offsets // 60000}) whether a transaction was "
            f"committed; with a {given} the job needs this information for "
            f"{_span(max(timeout, lifetime))}. Set "
            f"offsets.retention.minutes={-(-max(timeout, lifetime) // 60000)} or more on every broker."
        )
    if memory.ids is not None and memory.ids < timeout:
        return (
            f"The brokers forget a transactional id after {_span(memory.ids)} "
            f"(transactional.id.expiration.ms={memory.ids}), but a {given} is meant to survive a "
            f"longer outage. Set transactional.id.expiration.ms={timeout} or more on every "
            "broker, or pass a shorter transaction_timeout."
        )
    return None


def check_topic(rpc: KafkaRequests, topic: str, needed: Collection[Permission]) -> list[str]:
    """Return notices about weak durability. Raise ConfigError if the topic does not exist or permissions
    are missing."""
    facts = rpc.topic(topic)
    if facts is None:
        raise ConfigError(missing_topic(topic, rpc.bootstrap))
    rpc.expect_rights(needed)
    notices = []
    if facts.replicas < 2:
        notices.append(f"Topic {topic} has one replica: if that broker loses its disk, the topic is lost.")
    elif (rpc.topic_config(topic, "min.insync.replicas") or "2") == "1":
        notices.append(
            f"Topic {topic} has min.insync.replicas=1: a write is acknowledged while only one replica has it."
        )
    return notices


def check_table_retention(rpc: KafkaRequests, topic: str) -> str | None:
    """Return a notice if a topic that is read as a table deletes the latest row of a key."""
    policy = rpc.topic_config(topic, "cleanup.policy") or "compact"
    limits = [f"{name}={limit}" for name in _RETENTION if (limit := rpc.topic_config(topic, name)) not in (None, "-1")]
    if "delete" not in policy or not limits:
        return None
    return (
        f"Topic {topic} is read as a table, but cleanup.policy={policy} with "
        f"{', '.join(limits)} also deletes the newest value of a key. Set "
        "cleanup.policy=compact."
    )


def fetch_topic_limits(rpc: KafkaRequests, topic: str, config: Mapping[str, Any]) -> TopicLimits:
    """Return a topic's limits combined with the producer's."""
    facts, settings = rpc.topic(topic), rpc.topic_configs(topic, ("max.message.bytes", *SETTINGS))
    if facts is None:
        raise ConfigError(missing_topic(topic, rpc.bootstrap))
    size, rules = settings["max.message.bytes"], TopicRules.of(settings)
    return TopicLimits(topic, None if size is None else int(size), largest_record(config), facts.partitions, rules)


class CurrentLimits:
    """The limits of a topic, which are queried again before a row is rejected for them. Each writer session has one."""

    def __init__(self, fetch: Callable[[], TopicLimits]) -> None:
        self._fetch = fetch
        self._fetched_at = time.monotonic()
        self.latest = fetch()

    def reread(self) -> TopicLimits:
        """Return limits that are at most a second old: one may have been raised. Without a response they stay."""
        if time.monotonic() > self._fetched_at + _REREAD_SECONDS:
            with suppress(Retryable, ConfigError):
                self.latest = self._fetch()
            self._fetched_at = time.monotonic()
        return self.latest


def missing_topic(topic: str, bootstrap: str) -> str:
    """Return the message for a topic that does not exist."""
    return (
        f"the topic {topic!r} does not exist on {bootstrap}. Create it, with the partitions and replicas you need: "
        f"kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {topic} --partitions 4"
    )


def _span(milliseconds: int) -> str:
    """Return a duration for display, rounded down: ``15 min``, ``24.8 days``."""
    span = timedelta(milliseconds=milliseconds)
    for size, unit in ((timedelta(days=1), "days"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min")):
        if span >= size:
            return f"{span * 10 // size / 10:g} {unit}"
    return f"{milliseconds / 1000:.3g} s"
