"""A backfill of files that goes on with a topic on Spark, where tasks are killed, and then on the other engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.spark.kit import Job, feed, payment

BACKFILL = """
from kafka_eos import monotonic
from kafka_eos.connectors.files import FileSource

class InOrder(ProcessFunction):
    def open(self, ctx):
        self.ctx, self.timers = ctx, ctx.timers()
        self.waiting = ctx.map_state("waiting", int, Payment)

    def process(self, key, payment):
        assert self.ctx.timestamp > self.ctx.watermark, f"payment {{payment.id}} is late, and none is"
        self.waiting.put(payment.id, payment)
        self.timers.register(payment.id)
        return []

    def on_timer(self, key, time):
        found = self.waiting.get(time)
        self.waiting.remove(time)
        return [found]

pipeline = Pipeline("{name}", batch_size=60)
history = pipeline.source(
    FileSource("{directory}/history", value=Payment, format="parquet", until="latest", in_order=True), name="history"
).with_timestamps(lambda payment: payment.id, watermarks=monotonic())
live = pipeline.source(
    KafkaSource("{input}", value=Payment), name="live", after=history
).with_timestamps(lambda payment: payment.id, watermarks=monotonic())
(
    history.union(live)
    .filter(lambda payment: payment.id not in (133, 433) or not once(f"killed-{{payment.id}}")
            or os.kill(os.getpid(), signal.SIGKILL))
    .key_by(lambda payment: payment.account)
    .process(InOrder, name="in-order")
    .sink(KafkaSink("{output}", value=Payment, key=lambda payment: payment.account, timestamp=None), name="to-kafka")
)
"""
LAST = 10_000
"""Payments from here on take event time to all others."""


@pytest.mark.campaign
def test_files_and_then_the_topic_are_read_once_and_in_order_on_both_engines(
    new_job: Callable[..., Job], spark: Any
) -> None:
    job = new_job(BACKFILL, input=3, output=2)
    history = job.directory / "history"
    history.mkdir()
    for number in range(4):
        rows = [payment(n) for n in range(100 * number, 100 * number + 100)]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), history / f"part-{number}.parquet")
    feed(job, "input", map(payment, range(400, 500)))

    job.on_spark(spark)
    feed(job, "input", map(payment, range(500, 600)))
    job.embedded(2)
    feed(job, "input", map(payment, range(LAST, LAST + 20)))
    job.on_spark(spark)

    sent: dict[str, list[int]] = {f"a{n}": [] for n in range(20)}
    for row in job.values("output"):
        if row["id"] < LAST:
            sent[row["account"]].append(row["id"])
    assert sent == {f"a{n}": list(range(n, 600, 20)) for n in range(20)}
    assert all((job.directory / f"killed-{n}").exists() for n in (133, 433))
    reads = [facts["read"] for event, facts in job.events if event == "decided"]
    assert not any({"history", "live"} <= {name for name, n in read.items() if n} for read in reads)  # type: ignore[attr-defined]
    assert job.left_open() == []
