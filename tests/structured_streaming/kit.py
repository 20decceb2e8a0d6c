"""What these tests share: input, drivers to kill, and the claims about the output.

Rule: output is read as a read_committed consumer sees it, and is complete only if nothing is open below its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.core.ids import Term
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming import ExactlyOnceQuery, exactly_once_kafka
from kafka_eos.structured_streaming.batch_ledger import BatchLedger, QueryIdentity
from kafka_eos.structured_streaming.spark_checkpoint import OURS
from tests.producers import in_order
from tests.structured_streaming import driver
from tests.waiting import PATIENCE, eventually

USERS = 6
ROWS = 100
"""Of ``driver.PER_BATCH`` each: three batches."""


def feed(bootstrap: str, topic: str, ids: range) -> None:
    producer = in_order(bootstrap)
    for n in ids:
        producer.produce(topic, str(n), f"u{n % USERS}")
    assert producer.flush(PATIENCE) == 0


def messages(bootstrap: str, topic: str) -> list[Any]:
    """Every message that a read_committed consumer sees, up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the broker says at once that there is no more
            "enable.auto.commit": False,
        }
    )
    left = set(consumer.list_topics(topic, 10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, 0) for p in left])
    found, deadline = [], time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"{topic} could not be read to its end: {left}"
        for message in consumer.consume(500, 0.05):
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
    consumer.close()
    return found


def nothing_is_open(bootstrap: str, topic: str) -> None:
    """The last stable offset of every partition is its end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(topic, 10).topics[topic].partitions
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in partitions}

    def ends(level: Any) -> list[int]:
        return [found.result(10).offset for found in admin.list_offsets(asked, isolation_level=level).values()]

    # Markers follow an EndTxn by milliseconds.
    eventually(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED), "all is ended", 20.0
    )


@dataclass
class Totals:
    """One query of ``driver``: its topics, its checkpoint, and what its output must be."""

    bootstrap: str
    source: str
    target: str
    checkpoint: Path
    fired: Path
    kind: str = "random"
    fed: int = 0

    def feed(self, rows: int = ROWS) -> None:
        feed(self.bootstrap, self.source, range(self.fed, self.fed + rows))
        self.fed += rows

    # ------------------------------------------------------------ drivers

    def launch(self, failpoints: str = "", checkpoint: str | None = None) -> subprocess.Popen[bytes]:
        """A driver process in a process group of its own."""
        search = os.pathsep.join(filter(None, [str(driver.ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": search}
        if failpoints:
            environment |= {"KAFKA_EOS_FAILPOINTS": failpoints, "KAFKA_EOS_FAILPOINT_LOG": str(self.fired)}
        arguments = [self.kind, self.bootstrap, self.source, self.target, checkpoint or str(self.checkpoint)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.structured_streaming.driver", *arguments],
            cwd=driver.ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("ab"),
            start_new_session=True,
        )

    def stopped_at(self, failpoint: str, checkpoint: str | None = None) -> subprocess.Popen[bytes]:
        """A driver that stops there in its second batch, and goes on at SIGCONT; its JVM does not stop."""
        return self.stopped(f"{failpoint}=stop@2", checkpoint)

    def stopped(self, script: str, checkpoint: str | None = None) -> subprocess.Popen[bytes]:
        """A driver that stops at the next failpoint of ``script``, which a test gives to all its drivers."""
        process = self.launch(script, checkpoint)
        status = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: status.read_text().rpartition(")")[2].split()[0] in "TZ", "the driver stops")
        assert process.poll() is None, self.tail()
        return process

    def killed_at(self, failpoint: str, *recovering: str) -> None:
        """Run a driver until it kills itself there in its second batch, then one more for each point of a recovery.

        Their JVMs and their Python workers die with them.
        """
        second = driver.PARTITIONS if failpoint == "commit.between" else 2  # which is hit before every commit but one
        script = ";".join([f"{failpoint}=kill@{second}", *(f"{point}=kill" for point in recovering)])
        for point in (failpoint, *recovering):
            process = self.launch(script)
            ended(process)
            assert process.returncode == -signal.SIGKILL, self.tail()
            assert self.fired.read_text().splitlines()[-1].startswith(f"{point} kill"), "the fault did not fire"

    @property
    def log(self) -> Path:
        return self.fired.with_suffix(".log")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def start(self, spark: Any, **options: Any) -> ExactlyOnceQuery:
        """The same query in this process."""
        return exactly_once_kafka(
            driver.query(spark, self.kind, self.bootstrap, self.source),
            topic=self.target,
            bootstrap_servers=self.bootstrap,
            **{
                "checkpoint": self.checkpoint,
                "name": "totals",
                "output_mode": "update",
                "trigger": {"availableNow": True},
            }
            | options,
        )

    def run(self, spark: Any, **options: Any) -> ExactlyOnceQuery:
        """The same query in this process, to the end of the input."""
        query = self.start(spark, **options)
        query.awaitTermination()
        return query

    # ------------------------------------------------------------ Spark's checkpoint

    @property
    def commits(self) -> Path:
        return self.checkpoint / "commits"

    def decided(self) -> int:
        """The newest batch in Spark's commit log."""
        return max(int(path.name) for path in self.commits.iterdir() if path.name.isdecimal())

    def is_decided(self, batch: int) -> bool:
        return (self.commits / str(batch)).exists()

    def transactions(self, batch: int) -> int:
        """Return the number of transactions prepared for the batch: one for each task that had rows."""
        ledger = BatchLedger(LocalStorage(self.checkpoint / OURS), "totals")
        ledger.refresh()
        return len(ledger.load(ledger.attempts(batch)[-1]).transactions)

    def forget(self, batch: int) -> None:
        """Delete Spark's decision."""
        self._delete("commits", batch)

    def replay(self, batch: int) -> None:
        """What messages say to do about a decided batch whose output is not there."""
        self.forget(batch)
        if (self.checkpoint / "offsets" / str(batch + 1)).exists():
            self._delete("offsets", batch + 1)

    def _delete(self, log: str, batch: int) -> None:
        (self.checkpoint / log / str(batch)).unlink()
        (self.checkpoint / log / f".{batch}.crc").unlink(missing_ok=True)

    # ------------------------------------------------------------ claims

    def outputs(self) -> dict[str, list[Any]]:
        """By user, in the order of the log."""
        found: dict[str, list[Any]] = defaultdict(list)
        for message in messages(self.bootstrap, self.target):
            found[message.key().decode()].append(json.loads(message.value()))
        return found

    def exact(self, last: int | None = None) -> None:
        """Each batch up to ``last`` (by default the newest decided one) is visible once, and none after it.

        A running total hides a batch that is missing, so every output is compared with the input of its own batch.
        """
        nothing_is_open(self.bootstrap, self.target)
        self.none_staged()
        last = self.decided() if last is None else last
        outputs = self.outputs()
        assert {user: [output["ids"] for output in lists] for user, lists in outputs.items()} == self.wanted(last)
        assert sum((Counter(lists[-1]["ids"]) for lists in outputs.values()), Counter()) == Counter(range(self.fed))
        for user, lists in outputs.items():
            assert all(sum(output["tokens"]) == output["total"] for output in lists)
            for before, after in pairwise(lists):
                assert Counter(before["tokens"]) <= Counter(after["tokens"]), f"{user}: not from the same attempt"

    def wanted(self, last: int) -> dict[str, list[list[int]]]:
        """By user: for each batch up to ``last`` that has rows of the user, the sorted ids of all its rows so far."""
        rows = messages(self.bootstrap, self.source)
        found: dict[str, list[list[int]]] = {}
        for batch in range(last + 1):
            ends = self.ends(batch)
            read: dict[str, list[int]] = defaultdict(list)
            for row in rows:
                if row.offset() < ends.get(str(row.partition()), 0):
                    read[row.key().decode()].append(int(row.value()))
            for user, ids in read.items():
                lists = found.setdefault(user, [])
                if not lists or len(lists[-1]) < len(ids):
                    lists.append(sorted(ids))
        return found

    def ends(self, batch: int) -> dict[str, int]:
        """Spark's plan of the batch: by partition of the source, the offset behind its last row."""
        plan = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        ends: dict[str, int] = json.loads(plan[-1])[self.source]
        return ends

    def agrees_with_state(self, spark: Any) -> None:
        """The last output of every user is what Spark's state holds."""
        state = spark.read.format("statestore").load(str(self.checkpoint)).collect()
        held = {row.key.user: row.value[-1] for row in state}
        assert held == {user: lists[-1]["total"] for user, lists in self.outputs().items()}

    def none_staged(self) -> None:
        """No transaction of the query is open, of whatever term."""
        assert self.staged() == []

    def staged(self) -> list[str]:
        ctx = JobContext(self.job, Term(1_000_000), {})
        committer = KafkaCommitter(Cluster(self.bootstrap), ctx)
        try:
            return [staged.name for staged in committer.list_staged(ctx) if "Prepare" not in staged.detail]
        finally:
            committer.close()

    @property
    def job(self) -> str:
        stored = (self.checkpoint / OURS / paths.IDENTITY).read_bytes()
        return records.decode(QueryIdentity, paths.IDENTITY, stored).job


def ended(process: subprocess.Popen[bytes], seconds: float = PATIENCE) -> None:
    """Wait for the driver, then end what is left of its group: the host has crashed."""
    try:
        process.wait(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
