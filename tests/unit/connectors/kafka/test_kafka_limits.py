"""A setting that can never work is refused before anything runs, with the setting that lifts the limit."""

from typing import Any

import pytest
from kio.schema.describe_configs.v4 import response as configured
from kio.schema.errors import ErrorCode

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.messages.transactions import ADD_PARTITIONS_TO_TXN
from kafka_eos.connectors.kafka.sink.cluster_limits import (
    RetentionLimits,
    TransactionNeeds,
    check_transactions,
    find_timeout_problem,
)
from tests.scripted_broker import NOW, ScriptedBroker

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
        (10_000, TransactionNeeds(1_000, 10_000), WEEK, "10 s that must be left"),
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
