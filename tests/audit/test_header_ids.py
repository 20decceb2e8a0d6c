"""A job whose records name their schemas in headers: killed, audited, and audited again with a header that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kafka_eos.audit import Check, Conclusion
from kafka_eos.codecs import Registry, avro
from tests.audit.job import Job
from tests.chaos.harness import read
from tests.producers import in_order
from tests.registry_server import RegistryServer
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

APP = """
import msgspec
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.codecs import Registry, avro

class Payment(msgspec.Struct):
    id: int
    amount: int

class Total(msgspec.Struct):
    id: int
    total: int

def schemas(tp):
    return avro(
        tp,
        registry=Registry("{url}"),
        subject=lambda topic, part, record: f"{name}-{{record}}",
        id_in="header",
        auto_register=True,
    )

pipeline = Pipeline("{name}", checkpoint_dir="checkpoints")
(
    pipeline.source(KafkaSource("{input}", value=schemas(Payment)), name="payments", on_error=dead_letter("{refused}"))
    .key_by(lambda payment: payment.id % 3)
    .fold(name="total", init=lambda: Total(0, 0), step=lambda total, p: Total(p.id, total.total + p.amount),
          emit=lambda key, total: total)
    .sink(KafkaSink("{output}", value=schemas(Total)), name="totals")
)
"""


class Payment(msgspec.Struct):
    id: int
    amount: int


def ran(new_job: Callable[..., Job], topic: Callable[..., str], registry: RegistryServer) -> Job:
    """A job that was killed twice, and has put out and refused what it should."""
    names = {"input": topic(), "output": topic(), "refused": topic()}
    job = new_job(APP, url=registry.url, **names)
    asked = Registry(registry.url)
    in_header, before = (
        avro(
            Payment, registry=asked, auto_register=True, id_in=where, subject=lambda *_: f"{job.name}-Payment"
        ).for_topic(names["input"], "value")
        for where in ("header", "prefix")
    )
    in_header.check()
    producer = in_order(job.bootstrap)
    for n in range(60):
        codec: Any = in_header if n >= 20 else before  # the producer changed from one to the other
        headers = [] if codec is before else [*codec.headers()]
        producer.produce(names["input"], codec.encode(Payment(n, n + 1)), headers=headers)
    producer.produce(names["input"], in_header.encode(Payment(60, 1)), headers=[("__value_schema_id", b"\0")])
    assert producer.flush(PATIENCE) == 0

    job.run(failpoints="sink.prepare.after=kill@1;commit.before=kill@1")

    found = read(job.bootstrap, names["output"])
    assert sorted(message.headers()[0] for message in found) == [found[0].headers()[0]] * 60
    assert found[0].headers()[0][0] == "__value_schema_id"
    (letter,) = read(job.bootstrap, names["refused"])
    assert "is 00, not a schema id" in dict(letter.headers())["dead_letter.message"].decode()
    return job


def test_a_job_reads_and_writes_ids_in_headers(
    new_job: Callable[..., Job], topic: Callable[..., str], registry: RegistryServer
) -> None:
    ran(new_job, topic, registry)


@pytest.mark.campaign
def test_the_audit_compares_headers_with_those_that_the_sink_writes(
    new_job: Callable[..., Job], topic: Callable[..., str], registry: RegistryServer, spark: Any
) -> None:
    job = ran(new_job, topic, registry)
    names = job.topics
    found = read(job.bootstrap, names["output"])

    verdict = job.audit(spark)
    assert (Conclusion.PASS, 61) == (verdict.conclusion, verdict.facts.outputs), verdict.headline

    copy, producer = topic(), in_order(job.bootstrap)
    for at, message in enumerate(found):
        (name, data), *others = message.headers()
        wrong = (name, data[:4] + bytes([data[4] ^ 1]))
        given = [wrong if at == 7 else (name, data), *others]
        producer.produce(copy, message.value(), message.key(), headers=given, timestamp=message.timestamp()[1])
    assert producer.flush(PATIENCE) == 0
    spoilt = job.app.with_name("spoilt.py")
    spoilt.write_text(APP.format(name=job.name, **{**names, "output": copy}))
    verdict = replace(job, app=spoilt, pipeline=None).audit(spark)
    assert {finding.check: finding.count for finding in verdict.findings} == {Check.WRONG_VALUE: 1}, verdict.headline
