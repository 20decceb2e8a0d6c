"""Operators of the engine that lose rows, in the job and in the audit's own processes: the audit names each sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_eos.audit import Check, Conclusion
from tests.audit.job import Job

PIPELINE = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.runtime.operators.fold import FoldOperator
from kafka_eos.runtime.operators.stateless import FilterOperator

def lose_rows(operator):
    whole = operator.process
    def half(self, batch):
        planted = self._ctx.operator.startswith("planted")
        return whole(self, batch.take(range(len(batch) // 2)) if planted else batch)
    operator.process = half

lose_rows(FilterOperator)
lose_rows(FoldOperator)

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
words.filter(bool, name="planted-filter").sink(KafkaSink("{kept}", value=str), name="kept")
(
    words.key_by(lambda word: word)
    .fold(name="planted-fold", init=int, step=lambda count, word: count + 1)
    .sink(KafkaSink("{counted}", value=tuple[str, int]), name="counted")
)
"""


def test_the_audit_does_not_lose_the_rows_that_operators_of_the_engine_lose(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    job = new_job(PIPELINE, input=topic(), kept=topic(), counted=topic())
    job.feed(job.topics["input"], [(0, None, b'"%c"' % (97 + i % 3)) for i in range(30)])
    job.run("--checkpoint-interval", "10s", workers=1)

    verdict = job.audit(spark)

    lost = {finding.check: finding.by_sink for finding in verdict.findings}.get(Check.LOST, {})
    assert Conclusion.FAIL is verdict.conclusion, verdict.headline
    assert {"kept", "counted"} == lost.keys()
