"""A setting that can never work is refused before anything runs, with the setting that lifts the limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.describe_configs.v4 import response as configured
from kio.schema.errors import ErrorCode

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.messages.transactions import ADD_PARTITIONS_TO_TXN
from kafka_eos.connectors.kafka.sink.cluster_limits import (
    CurrentLimits,
    RetentionLimits,
    TransactionNeeds,
    check_table_retention,
    check_topic,
    check_transactions,
    fetch_topic_limits,
    find_timeout_problem,
)
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.topic_rules import ANY_RECORD
from kafka_eos.core.errors import ConfigError, Retryable
from tests.kafka_log import Log
from tests.scripted_broker import NOW, ScriptedBroker
from tests.wire import METADATA

DESCRIBE_CONFIGS = 32
DAY = 24 * 3_600_000
WEEK = RetentionLimits(7 * DAY, 7 * DAY)
UNKNOWN = RetentionLimits(None, None)


@pytest.mark.parametrize(
    ("timeout", "demands", "memory"),
    [
        (3_600_000, TransactionNeeds(), UNKNOWN),
        (3_600_000, TransactionNeeds(1_000, 10_000), WEEK),
        (10_001, TransactionNeeds(10_000, 10_000), WEEK),
        (5_000, TransactionNeeds(1_000, 0), WEEK),  # one transaction an epoch: it may be committed to its last moment
        (7 * DAY, TransactionNeeds(1_000, 10_000), WEEK),
    ],
)
def test_what_can_work_is_taken(timeout: int, demands: TransactionNeeds, memory: RetentionLimits) -> None:
    assert find_timeout_problem(timeout, 8 * DAY, demands, memory) is None


@pytest.mark.parametrize(
    ("timeout", "demands", "memory", "said"),
    [
        (30 * DAY, TransactionNeeds(), UNKNOWN, "librdkafka accepts at most"),
        (9 * DAY, TransactionNeeds(), UNKNOWN, "transaction.max.timeout.ms=691200000"),
        (60_000, TransactionNeeds(interval=60_000), WEEK, "checkpoint_interval is 1 min"),
        (10_000, TransactionNeeds(1_000, 10_000), WEEK, "10 s that must remain"),
        (3_600_000, TransactionNeeds(), RetentionLimits(DAY, 7 * DAY), "Set offsets.retention.minutes=8640 or more"),
        (8 * DAY, TransactionNeeds(), RetentionLimits(7 * DAY, 9 * DAY), "Set offsets.retention.minutes=11520 or more"),
        (3_600_000, TransactionNeeds(), RetentionLimits(7 * DAY, 60_000), "Set transactional.id.expiration.ms=3600000"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_change(
    timeout: int, demands: TransactionNeeds, memory: RetentionLimits, said: str
) -> None:
    assert said in (find_timeout_problem(timeout, 8 * DAY, demands, memory) or "")


def test_demands_are_what_the_engine_says() -> None:
    assert TransactionNeeds.of({"checkpoint_interval": 0.5, "commit_margin": 10.0}) == TransactionNeeds(500, 10_000)
    assert TransactionNeeds.of({"bootstrap_servers": "a:1"}) == TransactionNeeds()


def _hidden(request: Any) -> Any:
    """Return settings as for a user without the permission to read them."""
    result, response = configured.DescribeConfigsResult, configured.DescribeConfigsResponse
    denied: Any = ErrorCode.cluster_authorization_failed
    results = tuple(
        result(
            error_code=denied,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=(),
        )
        for asked in request.resources
    )
    return response(throttle_time=NOW, results=results)  # type: ignore[arg-type]


@pytest.mark.parametrize(("newest", "notices"), [(3, 2), (4, 1)])
def test_brokers_that_do_not_verify_transactions_are_warned_about(newest: int, notices: int) -> None:
    """Kafka before 3.6 and Redpanda do not verify. ``transaction.version`` does not show this: 3.9 verifies."""
    with (
        ScriptedBroker({DESCRIBE_CONFIGS: _hidden}, highest={ADD_PARTITIONS_TO_TXN: newest}) as broker,
        KafkaRequests(Cluster(broker.address)) as rpc,
    ):
        found = check_transactions(rpc, None, TransactionNeeds())

    assert len(found) == notices
    assert ("do not verify that a record belongs to an open transaction" in found[-1]) is (newest < 4)


# ---------------------------------------------------------------- topics


@contextmanager
def _topic(settings: dict[str, str], replicas: int = 1) -> Iterator[KafkaRequests]:
    """Requests to a broker with the topic ``in``; it tells these settings, and no others."""
    log = Log(2)

    def described(request: Any) -> Any:
        answer: Any = log.answers[METADATA](request)
        topics = tuple(
            replace(topic, partitions=tuple(
                replace(part, replica_nodes=tuple(range(1, 1 + replicas))) for part in topic.partitions
            )) for topic in answer.topics
        )  # fmt: skip
        return replace(answer, topics=topics)

    def configs(request: Any) -> Any:
        entry: Any = configured.DescribeConfigsResourceResult
        result: Any = configured.DescribeConfigsResult
        response: Any = configured.DescribeConfigsResponse
        results = tuple(
            result(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                configs=tuple(
                    entry(name=name, value=value, read_only=False, is_sensitive=False, synonyms=(), documentation=None)
                    for name, value in settings.items()
                    if asked.configuration_keys is None or name in asked.configuration_keys
                ),
            )
            for asked in request.resources
        )
        return response(throttle_time=NOW, results=results)

    with ScriptedBroker({**log.answers, METADATA: described, DESCRIBE_CONFIGS: configs}) as broker:
        log.port = broker.port
        with KafkaRequests(Cluster(broker.address)) as rpc:
            yield rpc


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "7"}, None),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, None),
        ({"cleanup.policy": "delete"}, None),
        ({"retention.ms": "5"}, None),
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}, "delete with retention.ms=5 also"),
        ({"cleanup.policy": "compact,delete", "retention.bytes": "7"}, "compact,delete with retention.bytes=7 also"),
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "7"}, "ms=5, retention.bytes=7 also"),
    ],
)
def test_a_table_s_topic_that_deletes_rows_is_noticed(settings: dict[str, str], said: str | None) -> None:
    with _topic(settings) as rpc:
        found = check_table_retention(rpc, "in")

    assert (found is None) is (said is None)
    assert said is None or said in str(found)


@pytest.mark.parametrize(
    ("replicas", "settings", "said"),
    [
        (1, {"min.insync.replicas": "1"}, ["has one replica"]),
        (2, {"min.insync.replicas": "1"}, ["has min.insync.replicas=1"]),
        (2, {"min.insync.replicas": "2"}, []),
        (3, {}, []),
    ],
)
def test_a_topic_that_may_lose_records_is_noticed(replicas: int, settings: dict[str, str], said: list[str]) -> None:
    with _topic(settings, replicas) as rpc:
        found = check_topic(rpc, "in", [])

    assert len(found) == len(said)
    assert all(text in notice for text, notice in zip(said, found, strict=True))


def test_the_limits_of_a_topic_are_its_own_and_those_of_the_producer() -> None:
    settings = {"max.message.bytes": "5000", "cleanup.policy": "compact", "message.timestamp.after.max.ms": "60"}
    with _topic(settings) as rpc:
        found = fetch_topic_limits(rpc, "in", {"message.max.bytes": 777})
    assert (found.topic, found.limit, found.largest, found.partitions) == ("in", 5_000, 777, 2)
    assert (found.rules.needs_key, found.rules.after) == (True, 60)
    with _topic({}) as rpc:
        unknown = fetch_topic_limits(rpc, "in", {})
    assert (unknown.limit, unknown.rules) == (None, ANY_RECORD)


def test_a_topic_that_does_not_exist_is_named() -> None:
    with _topic({}) as rpc:
        with pytest.raises(ConfigError, match="the topic 'gone' does not exist on 127.0.0.1:"):
            check_topic(rpc, "gone", [])
        with pytest.raises(ConfigError, match="the topic 'gone' does not exist on 127.0.0.1:"):
            fetch_topic_limits(rpc, "gone", {})


def test_limits_are_read_again_after_a_second_and_stay_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    answers: list[TopicLimits | Exception] = [TopicLimits("in", n, 9, 1) for n in (1, 2)]
    answers += [Retryable("away"), ConfigError("gone"), TopicLimits("in", 3, 9, 1)]

    def fetch() -> TopicLimits:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    limits = CurrentLimits(fetch)
    seen = []
    for seconds in (0.5, 0.5, 0.1, 0.9, 0.2, 0.5, 0.7, 1.1):
        now += seconds
        seen.append((limits.reread().limit, len(answers)))
    assert seen == [(1, 4), (1, 4), (2, 3), (2, 3), (2, 2), (2, 2), (2, 1), (3, 0)]
