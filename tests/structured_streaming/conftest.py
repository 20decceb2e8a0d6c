"""Queries with topics and a checkpoint of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.connectors.kafka.committer import KafkaCommitter
from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.ids import Term
from kafka_eos.interfaces import JobContext
from kafka_eos.structured_streaming.hadoop import OURS, LocalDecisions
from kafka_eos.structured_streaming.ledger import Ledger
from kafka_eos.structured_streaming.settling import Settling
from tests.structured_streaming.kit import Totals


@pytest.fixture
def totals(bootstrap: str, topic: Callable[..., str], tmp_path: Path) -> Totals:
    """A query whose input is written; its output has two partitions."""
    made = Totals(bootstrap, topic(2), topic(2), tmp_path / "checkpoint", tmp_path / "fired")
    made.feed()
    return made


@pytest.fixture
def viewfs(spark: Any) -> Callable[[Path], str]:
    """A path as Spark sees it in a file system that is not this host's: ``viewfs(path)``."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.other.link./disk", "file:///")
    return lambda path: f"viewfs://other/disk{path}"


@pytest.fixture
def settling(bootstrap: str, tmp_path: Path) -> Iterator[Settling]:
    """Of a query that has not begun, in its first term."""
    ledger = Ledger(LocalStorage(tmp_path / OURS), "totals")
    ctx = JobContext(ledger.job, Term(1), {})
    with closing(KafkaCommitter(Cluster(bootstrap), ctx)) as committer:
        yield Settling(ctx, ledger, LocalDecisions(tmp_path), committer, str(tmp_path))
