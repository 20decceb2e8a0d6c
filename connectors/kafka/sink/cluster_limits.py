"""What the cluster allows, and what a user should know about it before the job runs.

Rule: a limit that would break the guarantee later is an error now, with the setting that lifts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kafka_eos.connectors.kafka.client.access_rights import Right
from kafka_eos.connectors.kafka.client.memory import largest_record
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import MARKER_LIFE
from kafka_eos.connectors.kafka.sink.record_sizes import Target
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

DEFAULT_MS: Final = 3_600_000
LONGEST_MS: Final = 2_147_483_547
"""The longest transaction timeout that librdkafka accepts: 24.8 days."""
_BROKER_DEFAULT_MS: Final = 900_000
_RETENTION: Final = ("retention.ms", "retention.bytes")
"""What lets a topic with ``cleanup.policy=delete`` go of its oldest records; -1 for neither keeps them."""


def broker_maximum_ms(rpc: KafkaRequests) -> int:
    """``transaction.max.timeout.ms``; Kafka's default if the user may not read it."""
    found = rpc.broker_config("transaction.max.timeout.ms")
    return _BROKER_DEFAULT_MS if found is None else int(found)


def transaction_timeout_ms(rpc: KafkaRequests, wanted: int | None) -> int:
    """The timeout to use: the user's, else the smaller of one hour and what the broker allows."""
    return wanted if wanted is not None else min(DEFAULT_MS, broker_maximum_ms(rpc))


@dataclass(frozen=True, slots=True)
class Demands:
    """What a job asks of its transactions, in milliseconds."""

    interval: int = 0
    """From one checkpoint to the next: so long, and longer, a transaction is open before it is prepared."""
    margin: int = 0
    """What must be left of the timeout when an epoch is committed; 0 where an epoch is one transaction at most."""

    @classmethod
    def of(cls, settings: Mapping[str, Json]) -> Demands:
        """As the engine says it to connectors; see ``JobContext.settings``."""
        seconds = (settings.get("checkpoint_interval"), settings.get("commit_margin"))
        return cls(*(int(value * 1000) if isinstance(value, int | float) else 0 for value in seconds))


@dataclass(frozen=True, slots=True)
class Memory:
    """For how many milliseconds a cluster remembers how a transaction ended; None if the user may not read it."""

    offsets: int | None
    ids: int | None


def check_transactions(rpc: KafkaRequests, wanted: int | None, demands: Demands) -> list[str]:
    """ConfigError if the job cannot work with this timeout; else a notice that names the outage it survives."""
    maximum = broker_maximum_ms(rpc)
    timeout = transaction_timeout_ms(rpc, wanted)
    minutes, ids = rpc.broker_config("offsets.retention.minutes"), rpc.broker_config("transactional.id.expiration.ms")
    memory = Memory(None if minutes is None else int(minutes) * 60_000, None if ids is None else int(ids))
    if problem := refusal(timeout, maximum, demands, memory):
        raise ConfigError(problem)
    notice = (
        f"Prepared output survives an outage of the whole job of up to {_span(timeout)} (transaction timeout). "
        "For longer ones raise transaction_timeout and the brokers' transaction.max.timeout.ms, "
        f"at most {_span(LONGEST_MS)}."
    )
    return [notice]


def refusal(timeout: int, maximum: int, demands: Demands, memory: Memory) -> str | None:
    """Why a job cannot work with a transaction timeout of so many milliseconds, and what to change; None if it can."""
    given = f"transaction_timeout of {_span(timeout)}"
    if timeout > LONGEST_MS:
        return f"{given}: librdkafka accepts at most {_span(LONGEST_MS)}."
    if timeout > maximum:
        return (
            f"{given} is more than the broker allows (transaction.max.timeout.ms={maximum}): with that the job would "
            f"survive an outage of {_span(maximum)}. Set transaction.max.timeout.ms={timeout} on every broker, or pass "
            "a shorter transaction_timeout."
        )
    if timeout <= demands.interval:
        return (
            f"{given} is over before the first checkpoint (checkpoint_interval is {_span(demands.interval)}): the "
            "broker would abort the output of every epoch. Pass a longer transaction_timeout, or a shorter "
            "checkpoint_interval."
        )
    if timeout <= demands.margin:
        return (
            f"{given} is not more than the {_span(demands.margin)} that must be left of it when an epoch of several "
            "transactions is committed, so that none expires between two commits: no epoch could be. Pass a longer one."
        )
    return _forgotten(given, timeout, memory)


def _forgotten(given: str, timeout: int, memory: Memory) -> str | None:
    """A cluster that forgets sooner makes committed output look lost, and it would be made again."""
    life = int(MARKER_LIFE * 1000)
    if memory.offsets is not None and memory.offsets < max(timeout, life):
        return (
            f"The brokers forget after {_span(memory.offsets)} (offsets.retention.minutes={memory.offsets // 60_000}) "
            f"whether a transaction was committed; with a {given} the job needs it for {_span(max(timeout, life))}. "
            f"Set offsets.retention.minutes={-(-max(timeout, life) // 60_000)} or more on every broker."
        )
    if memory.ids is not None and memory.ids < timeout:
        return (
            f"The brokers forget a transactional id after {_span(memory.ids)} (transactional.id.expiration.ms="
            f"{memory.ids}), sooner than the outage that a {given} promises to survive. Set "
            f"transactional.id.expiration.ms={timeout} or more on every broker, or pass a shorter transaction_timeout."
        )
    return None


def check_topic(rpc: KafkaRequests, topic: str, needed: Collection[Right]) -> list[str]:
    """ConfigError if the topic does not exist or rights to it are missing; notices on weak durability settings."""
    facts = rpc.topic(topic)
    if facts is None:
        raise ConfigError(missing_topic(topic, rpc.bootstrap))
    rpc.expect_rights(needed)
    notices = []
    if facts.replicas < 2:
        notices.append(f"Topic {topic} has one replica: losing that broker's disk loses it.")
    elif (rpc.topic_config(topic, "min.insync.replicas") or "2") == "1":
        notices.append(
            f"Topic {topic} has min.insync.replicas=1: a write is acknowledged while only one replica has it."
        )
    return notices


def rows_that_go_away(rpc: KafkaRequests, topic: str) -> str | None:
    """A notice for a topic that is read as a table, if it lets go of the newest row of a key; else None."""
    policy = rpc.topic_config(topic, "cleanup.policy") or "compact"
    limits = [f"{name}={limit}" for name in _RETENTION if (limit := rpc.topic_config(topic, name)) not in (None, "-1")]
    if "delete" not in policy or not limits:
        return None
    return (
        f"Topic {topic} is read as a table, and with cleanup.policy={policy} and {', '.join(limits)} it deletes what "
        "keys have, also where nothing newer replaces it. Set cleanup.policy=compact."
    )


def target(rpc: KafkaRequests, topic: str, config: Mapping[str, Any]) -> Target:
    """What a topic takes now, and what a producer with this ``config`` does."""
    found, facts = rpc.topic_config(topic, "max.message.bytes"), rpc.topic(topic)
    if facts is None:
        raise ConfigError(missing_topic(topic, rpc.bootstrap))
    return Target(topic, None if found is None else int(found), largest_record(config), facts.partitions)


def missing_topic(topic: str, bootstrap: str) -> str:
    """What to tell whoever named a topic that does not exist."""
    return (
        f"the topic {topic!r} does not exist on {bootstrap}. Create it, with the partitions and replicas you need: "
        f"kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {topic} --partitions 4"
    )


def _span(milliseconds: int) -> str:
    """A duration for people, rounded down: ``15 min``, ``24.8 days``."""
    span = timedelta(milliseconds=milliseconds)
    for size, unit in ((timedelta(days=1), "days"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min")):
        if span >= size:
            return f"{span * 10 // size / 10:g} {unit}"
    return f"{milliseconds / 1000:.3g} s"
