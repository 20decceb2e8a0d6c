"""How fast ``kafka-eos audit topics`` is: two topics of N records, one audit by id, and what it took.

    python -m benchmarks.audit_scale --records 2000000 --bootstrap 127.0.0.1:9092 [--unordered]

Both topics are written by the Spark session that audits them, so that a hundred million records take minutes.
Rule: the audited output is right, and the audit must say so: a fast audit that finds nothing wrong proves nothing,
so with ``--spoil`` one output is left out and the audit must name it. No plan may hold Python.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic

from kafka_eos.audit import Check
from kafka_eos.audit.cluster.spark_session import open_session
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.connectors.kafka.client.log_bridge import SILENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
PARTITIONS = 4
KEYS = 100_000
IN_PYTHON = re.compile(r"Python|MapInArrow|MapInPandas")
PRODUCER = {"linger.ms": "50", "batch.size": "1000000", "buffer.memory": "134217728", "compression.type": "lz4"}


def main() -> None:
    """Make the topics, audit them, print records per second and the disk that it took, and remove the topics."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--records", type=int, default=2_000_000, help="inputs, and as many outputs")
    arguments.add_argument("--bootstrap", default="127.0.0.1:9092")
    arguments.add_argument("--spoil", action="store_true", help="leave one output out, which must be found")
    arguments.add_argument("--unordered", action="store_true", help="compare ids in groups, and no order")
    given = arguments.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap, **SILENT})
    source, target = (f"audit-scale-{role}-{uuid4().hex[:8]}" for role in ("in", "out"))
    for made in admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in (source, target)]).values():
        made.result(30)
    try:
        with closing(_Session()) as session:
            question = TopicAuditOptions(
                given.bootstrap, inputs=(source,), outputs=(target,), id="$.id", unordered=given.unordered
            )
            _measured(session.spark, question, given)
    finally:
        for gone in admin.delete_topics([source, target]).values():
            gone.result(30)


class _Session:
    def __init__(self) -> None:
        self.spark = open_session(long=True)

    def close(self) -> None:
        self.spark.stop()


def _measured(spark: SparkSession, question: TopicAuditOptions, given: argparse.Namespace) -> None:
    plans: list[str] = []
    _timed("generated", given.records * 2, lambda: _generate(spark, question, given))
    began = time.monotonic()

    def progress(text: str) -> None:
        print(f"  {time.monotonic() - began:6.1f} s  {text}", flush=True)

    with _disk(spark) as used:
        verdict = _timed(
            "audited", given.records * 2, lambda: audit_topics(question, progress=progress, spark=spark, plans=plans)
        )
    print(f"at most {max(used) / 1e9:.2f} GB of disk for shuffles and tables\n{verdict.headline}")
    found = {finding.check: finding.count for finding in verdict.findings}
    if verdict.traceback or found != ({Check.LOST: 1} if given.spoil else {}):
        sys.exit(f"the audit should have found {'one loss' if given.spoil else 'nothing'}\n{verdict.traceback}")
    if not plans or any(IN_PYTHON.search(plan) for plan in plans):
        sys.exit("there is Python in the plans of the audit")


def _timed(what: str, records: int, work: Callable[[], T]) -> T:
    began = time.monotonic()
    result = work()
    took = time.monotonic() - began
    print(f"{what} {records:,} records in {took:.1f} s: {records / took:,.0f} records/s", flush=True)
    return result


def _generate(spark: SparkSession, question: TopicAuditOptions, given: argparse.Namespace) -> None:
    """The same ids in both topics, about 100 bytes a record. One task fills one partition, so ids rise in each."""
    for topic in (*question.inputs, *question.outputs):
        row = f"""
            SELECT '{topic}' AS topic, CAST(id * {PARTITIONS} DIV {given.records} AS INT) AS partition,
                   concat('user-', user) AS key,
                   concat('{{"id":', id, ',"user":"user-', user, '","amount":', id % 1000, ',"of":"{topic}"}}') AS value
            FROM (SELECT id, CAST(id % {KEYS // PARTITIONS} * {PARTITIONS} + id * {PARTITIONS} DIV {given.records}
                                  AS STRING) AS user
                  FROM range(0, {given.records}, 1, {PARTITIONS}))"""
        left_out = given.records // 2 if given.spoil and topic in question.outputs else -1
        options = {f"kafka.{name}": value for name, value in PRODUCER.items()}
        spark.sql(f"SELECT * FROM ({row}) WHERE value NOT LIKE '{{\"id\":{left_out},%'").write.format("kafka").options(
            **options, **{"kafka.bootstrap.servers": question.bootstrap}
        ).save()


@contextmanager
def _disk(spark: SparkSession) -> Iterator[list[int]]:
    """Bytes in Spark's local directories, looked at every other second."""
    jvm = spark._jvm
    assert jvm is not None
    roots = [Path(d) for d in jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirsString()]
    used, stop = [0], Event()

    def look() -> None:
        while not stop.wait(2):
            used.append(sum(file.stat().st_size for root in roots for file in root.rglob("*") if file.exists()))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
