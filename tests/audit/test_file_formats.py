"""Files of every format, audited as topics are: what a job has written passes, and what was done to it is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from kafka_eos.audit import Check, Conclusion
from tests.audit.job import Job
from tests.audit.job_runs import fed_at
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

PIPELINE = """
import datetime
import msgspec
from pathlib import Path
from kafka_eos import Pipeline
from kafka_eos.connectors.files import Csv, FileSink, JsonLines, Parquet, Roll
from kafka_eos.connectors.kafka import KafkaSource

class Order(msgspec.Struct):
    user: str
    n: int
    note: str | None = None

class Total(msgspec.Struct):
    user: str
    total: int
    share: float
    at: datetime.datetime
    last: Order

def emit(user, total):
    return Total(user, total, total / 7, datetime.datetime.fromtimestamp(total, datetime.UTC), Order(user, total, "x"))

def files(name, **options):
    return FileSink(Path(__file__).parent / name, value=Total, envelope=True, **options)

pipeline = Pipeline("{name}", checkpoint_interval=0.05, batch_size=20)
orders = pipeline.source(KafkaSource("{input}", value=Order), name="orders")
totals = orders.key_by(lambda order: order.user).fold(
    name="total", init=lambda: 0, step=lambda total, order: total + order.n, emit=emit)
totals.sink(files("parquet", format="parquet", partition_by=lambda row: {{"user": row.user}}), name="parquet")
totals.sink(files("avro", format="avro", roll=Roll(rows=7)), name="avro")
totals.sink(files("csv", format="csv"), name="csv")
totals.sink(files("packed", format=JsonLines("gzip")), name="packed")
totals.sink(files("lines", partition_by=lambda row: {{"user": row.user}}), name="lines")
orders.sink(FileSink(Path(__file__).parent / "plain", value=Order, format="parquet"), name="plain")
"""
ORDERS = 60


@pytest.fixture
def job(new_job: Callable[..., Job], bootstrap: str, topic: Callable[..., str]) -> Job:
    made = new_job(PIPELINE, input=topic(partitions=3))
    producer = in_order(bootstrap)
    for i in range(ORDERS):
        order = b'{"user":"u%d","n":%d,"note":"a, \\"b\\"\\nc"}' % (i % 4, i % 11 + 1)
        producer.produce(made.topics["input"], order, partition=i % 3, timestamp=fed_at(i % 3, i // 3))
    assert producer.flush(PATIENCE) == 0
    made.run()
    return made


def parts(job: Job, sink: str) -> list[Path]:
    return sorted((job.app.parent / sink).rglob("part-*"))


@pytest.mark.campaign
def test_files_of_every_format_are_audited(job: Job, spark: Any) -> None:
    verdict = job.audit(spark)
    assert (Conclusion.PASS, (), 6 * ORDERS) == (verdict.conclusion, verdict.findings, verdict.facts.outputs)
    assert "not audited" not in verdict.headline

    lost = parts(job, "parquet")[0]
    lost_rows = pq.ParquetFile(lost).metadata.num_rows
    lost.unlink()
    changed = parts(job, "parquet")[-1]
    table = pq.ParquetFile(changed).read()
    totals = table["total"].to_pylist()
    pq.write_table(table.set_column(1, table.schema.field("total"), [[9999, *totals[1:]]]), changed)
    twice = parts(job, "avro")[0]
    twice.with_name(f"{twice.stem}~0900.avro").write_bytes(twice.read_bytes())
    twice_rows = len(list(fastavro.reader(twice.open("rb"))))
    cut = parts(job, "packed")[0]
    cut.write_bytes(cut.read_bytes()[:-12])
    with parts(job, "csv")[0].open("a") as file:
        file.write("z,1\n")

    found = {finding.check: finding.by_sink for finding in job.audit(spark).findings}

    assert found[Check.DUPLICATE] == {"avro": twice_rows}
    assert found[Check.LOST].keys() == {"parquet", "packed"} and found[Check.LOST]["parquet"] == lost_rows
    assert found[Check.WRONG_VALUE] == {"parquet": 1}
    assert found[Check.MALFORMED] == {"packed": 1}
    assert found[Check.FOREIGN] == {"csv": 1}
