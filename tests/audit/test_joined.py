"""Two streams over one state: what a function of both makes is computed again as far as its order is known, and a sink
behind a join is said to be not recomputed, while copies of its outputs are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from tests.audit.job import FED_AT, Job
from tests.audit.test_window_corruptions import out, shown
from tests.chaos.harness import read

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import CoProcessFunction, OutputTag, Pipeline, connect, monotonic
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    at: int

class Payment(msgspec.Struct):
    user: str
    at: int

class Counts(CoProcessFunction[str, Order, Payment, str]):
    def open(self, ctx):
        self.number = ctx.value_state("number", int, 0)

    def process_left(self, key, value):
        return self.counted(key)

    def process_right(self, key, value):
        return self.counted(key)

    def counted(self, key):
        self.number.put(self.number.get() + 1)
        return [f"{{key}} {{self.number.get()}}"]

UNPAID = OutputTag("unpaid", Order)
pipeline = Pipeline("{name}")
orders, payments = (
    pipeline.source(KafkaSource(topic, value=tp), name=name)
    .with_timestamps(lambda row: {begin} + row.at, watermarks=monotonic())
    .key_by(lambda row: row.user, name=f"by-{{name}}", values=tp)
    for name, topic, tp in (("orders", "{orders}", Order), ("payments", "{payments}", Payment))
)
both = connect(orders, payments)
both.process(Counts, name="counts").sink(KafkaSink("{counts}", value=str, key=lambda text: text), name="to-counts")
near = both.interval_join(
    lambda order, payment: f"{{order.user}} {{order.at}} {{payment.at}}", name="near", lower=0, upper=0.02,
    unmatched_left=UNPAID)
near.sink(KafkaSink("{pairs}", value=str, key=lambda text: text[:2]), name="to-pairs")
near.side_output(UNPAID).sink(KafkaSink("{unpaid}", value=Order), name="to-unpaid")
"""
BEGIN = (FED_AT - 86_400_000) // 1000 * 1000


def rows(step: int, count: int) -> list[tuple[int, str | None, bytes]]:
    return [(n % 2, None, b'{"user":"u%d","at":%d}' % (n % 4, n * step)) for n in range(count)]


@pytest.fixture
def job(new_job: Callable[..., Job], topic: Callable[..., str]) -> tuple[Job, dict[str, str]]:
    topics = {role: topic(partitions=2) for role in ("orders", "payments", "counts", "pairs", "unpaid")}
    found = new_job(PIPELINE, **topics, begin=BEGIN)
    found.feed(topics["orders"], rows(5, 100))
    found.feed(topics["payments"], rows(7, 70))
    return found, topics


def test_joins_are_not_recomputed_and_a_function_of_two_streams_is(job: tuple[Job, dict[str, str]], spark: Any) -> None:
    run, topics = job
    run.run(workers=2, failpoints="commit.before=kill@1")

    verdict = run.audit(spark)

    assert (verdict.conclusion, verdict.findings) == (Conclusion.PASS, ()), shown(verdict)
    for sink in ("to-pairs", "to-unpaid"):
        assert f"sink {sink} not recomputed: it is behind the join 'near'" in verdict.headline
    assert read(run.bootstrap, topics["pairs"])
    assert len(read(run.bootstrap, topics["counts"])) == 170


def test_a_pair_that_is_there_twice_is_a_duplicate(job: tuple[Job, dict[str, str]], spark: Any) -> None:
    run, topics = job
    run.run(workers=2)
    twice = [out(message) for message in read(run.bootstrap, topics["pairs"])][:1]
    run.write(topics["pairs"], twice)

    verdict = run.audit(spark)

    assert {finding.check for finding in verdict.findings} >= {Check.DUPLICATE}, shown(verdict)
