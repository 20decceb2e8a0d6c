"""What the cluster allows, and what a user should know about it before the job runs.

Rule: a limit that would break the guarantee later is an error now, with the setting that lifts it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from kafka_eos.connectors.kafka.rpc import Coordinators
from kafka_eos.errors import ConfigError

DEFAULT_MS: Final = 3_600_000
LONGEST_MS: Final = 2_147_483_547
"""The longest transaction timeout that librdkafka accepts: 24.8 days."""
_BROKER_DEFAULT_MS: Final = 900_000


def broker_maximum_ms(rpc: Coordinators) -> int:
    """``transaction.max.timeout.ms``; Kafka's default if the user may not read it."""
    found = rpc.broker_config("transaction.max.timeout.ms")
    return _BROKER_DEFAULT_MS if found is None else int(found)


def transaction_timeout_ms(rpc: Coordinators, wanted: int | None) -> int:
    """The timeout to use: the user's, else the smaller of one hour and what the broker allows."""
    return wanted if wanted is not None else min(DEFAULT_MS, broker_maximum_ms(rpc))


def check_transactions(rpc: Coordinators, wanted: int | None) -> list[str]:
    """ConfigError if the broker will not accept the timeout; else a notice that names the outage it survives."""
    maximum = broker_maximum_ms(rpc)
    timeout = transaction_timeout_ms(rpc, wanted)
    if timeout > LONGEST_MS:
        raise ConfigError(f"transaction_timeout of {_span(timeout)}: librdkafka accepts at most {_span(LONGEST_MS)}.")
    if timeout > maximum:
        raise ConfigError(
            f"transaction_timeout of {_span(timeout)} is more than the broker allows "
            f"(transaction.max.timeout.ms={maximum}): with that the job would survive an outage of {_span(maximum)}. "
            f"Set transaction.max.timeout.ms={timeout} on every broker, or pass a shorter transaction_timeout."
        )
    notice = (
        f"Prepared output survives an outage of the whole job of up to {_span(timeout)} (transaction timeout). "
        "For longer ones raise transaction_timeout and the brokers' transaction.max.timeout.ms, "
        f"at most {_span(LONGEST_MS)}."
    )
    return [notice]


def check_topic(rpc: Coordinators, topic: str) -> list[str]:
    """ConfigError if the topic does not exist; notices on weak durability settings."""
    facts = rpc.topic(topic)
    if facts is None:
        raise ConfigError(missing_topic(topic, rpc.bootstrap))
    notices = []
    if facts.replicas < 2:
        notices.append(f"Topic {topic} has one replica: losing that broker's disk loses it.")
    elif (rpc.topic_config(topic, "min.insync.replicas") or "2") == "1":
        notices.append(
            f"Topic {topic} has min.insync.replicas=1: a write is acknowledged while only one replica has it."
        )
    return notices


def missing_topic(topic: str, bootstrap: str) -> str:
    """What to tell whoever named a topic that does not exist."""
    return (
        f"the topic {topic!r} does not exist on {bootstrap}. Create it, for example: "
        f"kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {topic} --partitions 4"
    )


def _span(milliseconds: int) -> str:
    """A duration for people, rounded down: ``15 min``, ``24.8 days``."""
    span = timedelta(milliseconds=milliseconds)
    for size, unit in ((timedelta(days=1), "days"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min")):
        if span >= size:
            return f"{span * 10 // size / 10:g} {unit}"
    return f"{milliseconds / 1000:.3g} s"
