"""Jobs that read several topics, found by a pattern, leave records out by their headers, and end by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from msgspec import structs

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.core.provenance import HEADER
from tests.audit.job import Job
from tests.audit.job_runs import told_by
from tests.chaos.harness import read
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

APP = """
import re
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

source = KafkaSource(
    re.compile("{input}-.+"),
    value=str,
    header_filter=lambda headers: headers.get("kind") != b"test",
    exclude={exclude!r},
    until={until!r},
)
pipeline = Pipeline("{name}", checkpoint_dir="checkpoints")
(
    pipeline.source(source, name="orders")
    .key_by(lambda order: order[0])
    .fold(
        name="total",
        init=lambda: 0,
        step=lambda total, order: total + int(order[1:]),
        emit=lambda key, total: f"{{key}}={{total}}",
    )
    .sink(KafkaSink("{output}", value=str, key=lambda text: text[0]), name="totals")
)
"""


def feed(job: Job, topic: str, *orders: str, partition: int = 0) -> None:
    """Those in brackets are tests."""
    # Idempotent, for the order: the first batch of a new topic may have to be sent again.
    producer = in_order(job.bootstrap)
    for order in orders:
        headers = [("kind", b"test" if order.startswith("(") else b"order")]
        producer.produce(topic, order.strip("()").encode(), partition=partition, headers=headers)
    assert producer.flush(PATIENCE) == 0


def make(admin: AdminClient, *topics: str) -> None:
    for made in admin.create_topics([NewTopic(topic, 2) for topic in topics]).values():
        made.result(PATIENCE)


def app_of(job: Job, output: str, **options: object) -> str:
    given = {"exclude": (), "until": None, **options}
    return APP.format(name=job.name, input=job.topics["input"], output=output, **given)


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
def test_each_topic_that_matches_is_read_from_its_beginning_and_audited(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any, engine: str
) -> None:
    """The second one is made while the job is away, a worker dies, and the run ends at what is there by itself."""
    names = {"input": f"in-{uuid4().hex[:8]}", "output": topic(partitions=2)}
    one, two, not_one = (f"{names['input']}-{last}" for last in ("one", "two", "old"))
    job = new_job("", **names)
    job.app.write_text(app_of(job, names["output"], exclude=[not_one]))
    make(admin, one, not_one)
    feed(job, one, "a1", "(a100)", "a2")
    feed(job, not_one, "a1000")
    job = replace(job, checkpoints=str(job.directory / "checkpoints"))
    job.run("--engine", engine)
    make(admin, two)
    feed(job, one, "b5", "(b100)", partition=1)
    feed(job, two, "a4", "c1", "(c100)", "c2")
    job.app.write_text(app_of(job, names["output"], exclude=[not_one], until="latest"))
    job.run("--engine", engine, failpoints="worker.ack.before=kill")
    code, said = job.ask("run", str(job.app), "--engine", engine)
    assert code == 0, said
    assert sorted(message.value() for message in read(job.bootstrap, names["output"])) == [
        b"a=1", b"a=3", b"a=7", b"b=5", b"c=1", b"c=3",
    ]  # fmt: skip

    verdict = job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert {} == verdict.skipped
    assert (6, 6) == (verdict.facts.outputs, verdict.facts.expected)

    copy = topic(partitions=2)
    producer = in_order(job.bootstrap)
    for message in read(job.bootstrap, names["output"]):
        key, value, where = message.key(), message.value(), told_by(message.headers())
        if value == b"c=1":
            continue
        if value == b"b=5":  # as if a test had been counted
            later = structs.replace(where, offset=where.offset + 1, update=2)
            producer.produce(copy, b"b=105", key, message.partition(), headers=[(HEADER, str(later).encode())])
        producer.produce(copy, value, key, message.partition(), headers=message.headers())
    assert producer.flush(PATIENCE) == 0
    spoilt = job.app.with_name("spoilt.py")
    spoilt.write_text(app_of(job, copy, exclude=[not_one]))
    verdict = replace(job, app=spoilt, pipeline=None).audit(spark)

    named = {Check.LOST: 1, Check.UNEXPECTED: 1}
    assert named.items() <= found(verdict).items(), verdict.headline
