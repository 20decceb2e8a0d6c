"""Inputs on one cluster and outputs on another: each topic is read where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import Broker
from tests.audit.topic_pair import ORDERS, Pair, found
from tests.waiting import PATIENCE

MIRRORED = "source.orders"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[str]:
    """The address of a second cluster, with one topic."""
    broker = Broker(tmp_path / "broker")
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(MIRRORED, 2, 1)])[MIRRORED].result(PATIENCE)
        yield broker.bootstrap
    finally:
        broker.kill()


def test_outputs_of_one_cluster_are_compared_with_inputs_of_another(pair: Pair, other: str, spark: Any) -> None:
    outs = [replace(o, text=None) for o in pair.outs if o is not pair.outs[5]]
    replace(pair.job, bootstrap=other).write(MIRRORED, outs)
    question = TopicAuditOptions(
        other, inputs=(pair.input,), outputs=(MIRRORED,), id="$.id", input_bootstrap=pair.job.bootstrap
    )

    verdict = audit_topics(question, spark=spark)

    assert (Conclusion.FAIL, {Check.LOST: 1}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert (ORDERS, ORDERS - 1) == (verdict.facts.inputs, verdict.facts.outputs)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"inputs": (), "input_bootstrap": "old:1"}, "add --input"),
        ({"inputs": ("i",), "input_config": {"sasl.username": "me"}}, "add its address"),
    ],
)
def test_a_cluster_of_the_inputs_needs_inputs_and_an_address(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TopicAuditOptions("new:1", **{"outputs": ("t",), "id": "$.x", **asked})
