"""Jobs whose source began at a time: what lies before it was never read, and counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.core.provenance import HEADER
from tests.audit.job import FED_AT, Job
from tests.audit.job_runs import told_by
from tests.chaos.harness import read
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

SINCE = FED_AT
"""In milliseconds since the Unix epoch, of a whole second."""
TOTALS = """
from datetime import UTC, datetime
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=str, start=datetime.fromtimestamp({since}, UTC)), name="orders")
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


def feed(job: Job, topic: str, *orders: tuple[int, str, int]) -> None:
    """Partition, text, and milliseconds since ``SINCE``."""
    producer = in_order(job.bootstrap)
    for partition, text, at in orders:
        producer.produce(topic, text.encode(), partition=partition, timestamp=SINCE + at)
    assert producer.flush(PATIENCE) == 0


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
@pytest.mark.campaign
def test_a_source_that_began_at_a_time_is_recomputed_from_there(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, engine: str
) -> None:
    """Of ``a`` and ``b`` there are orders before the time; of ``c`` there are no others, and later ones come after
    the start, among them one that is older than the time."""
    names = {"input": topic(partitions=3), "output": topic(partitions=2)}
    job = new_job(TOTALS, since=str(SINCE // 1000), **names)
    feed(job, names["input"], (0, "a100", -2), (0, "a200", -1), (1, "b100", -1), (2, "c100", -5))
    feed(job, names["input"], (0, "a1", 0), (0, "a2", 1), (1, "b1", 7))
    job.run("--engine", engine, workers=2)
    feed(job, names["input"], (0, "a4", 9), (1, "b2", -3), (2, "c1", 10))
    job.run("--engine", engine, workers=2)

    verdict = job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert (6, 6) == (verdict.facts.outputs, verdict.facts.expected)
    assert "not judged: 4 before the start (offsets) of the inputs" in verdict.headline
    assert {} == verdict.skipped

    copy = topic(partitions=2)
    producer = in_order(job.bootstrap)
    for message in read(job.bootstrap, names["output"]):
        key, value, where = message.key().decode(), message.value(), told_by(message.headers())
        if value == b"b=1":
            continue  # of the first one at the time
        if value == b"a=3":
            value = b"a=203"  # as if the order before the first one had been read, too
        spoilt = [(key, value, where)]
        if key == "c":
            spoilt.append((key, b"c=100", structs.replace(where, offset=0, update=2)))  # of an order that was not read
        for key, value, where in spoilt:
            producer.produce(
                copy, value, key, message.partition(), headers=[(HEADER, str(where).encode())],
                timestamp=message.timestamp()[1],
            )  # fmt: skip
    assert producer.flush(PATIENCE) == 0
    app = job.app.with_name("spoilt.py")
    app.write_text(TOTALS.format(name=job.name, since=SINCE // 1000, input=names["input"], output=copy))

    verdict = replace(job, app=app, pipeline=None).audit(spark)

    named = {Check.WRONG_VALUE: 1, Check.LOST: 1, Check.UNEXPECTED: 1}
    that_follows = {Check.UPDATE_GAP: 1, Check.WRONG_COUNT: 2, Check.WRONG_EPOCH: 1}
    assert named | that_follows == found(verdict), verdict.headline
