"""Inputs on one cluster and outputs on another: each topic is read where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import SplitId
from kafka_eos.devtools.broker import Broker
from tests.audit.job import Job, epoch, out
from tests.audit.topic_pair import ORDERS, Pair, found
from tests.chaos.harness import create_topic

MIRRORED = "source.orders"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[str]:
    """The address of a second cluster, with one topic."""
    broker = Broker(tmp_path / "broker")
    broker.start()
    try:
        create_topic(broker.bootstrap, MIRRORED, 2)
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


MIRROR = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
words.sink(KafkaSink("{input}", value=str, bootstrap_servers="{other}"), name="copies")
"""


@pytest.mark.campaign
def test_a_job_copies_a_topic_to_one_of_the_same_name(
    new_job: Callable[..., Job], topic: Callable[..., str], other: str, spark: Any
) -> None:
    """The offsets of each are those of its own cluster: the copies are in one partition, with a marker behind them."""
    source = topic(partitions=2)
    create_topic(other, source, 1)
    job = new_job(MIRROR, input=source, other=other)
    job.feed(source, [(p, None, b"a") for _ in range(3) for p in (0, 1)])
    outs = [out((p, i), None, b"a", topic=source, source="words") for i in range(3) for p in (0, 1)]
    replace(job, bootstrap=other).write(source, outs[1:])
    ends = {SplitId(f"{source}/{p}"): 3 for p in (0, 1)}
    job.commits(epoch(1, 0), epoch(1, 1), positions={"words": ends}, counts={epoch(1, 1): len(outs)})

    lost = job.audit(spark)
    replace(job, bootstrap=other).write(source, outs[:1])
    late = job.audit(spark)

    assert {Check.LOST: 1, Check.WRONG_COUNT: 1} == found(lost), lost.headline
    assert (6, 5) == (lost.facts.inputs, lost.facts.outputs)
    assert {Check.REORDERED: 1} == found(late), late.headline


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
