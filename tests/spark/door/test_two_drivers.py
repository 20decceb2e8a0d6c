"""Two drivers run one query: the second is refused, or the first is fenced; never do both write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.connectors.kafka.committer import KafkaCommitter
from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.coordinator import term as terms
from kafka_eos.errors import Fenced, JobLocked
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import JobContext
from kafka_eos.spark.door.ledger import Ledger, Promise
from kafka_eos.spark.door.settling import claimed
from tests.spark.door.kit import Totals, ended


def test_the_second_on_a_host_is_refused(totals: Totals, spark: Any) -> None:
    with totals.start(spark, trigger={"processingTime": "200 milliseconds"}) as first:
        with pytest.raises(JobLocked, match="already run by process"):
            totals.start(spark)
        first.processAllAvailable()

    totals.exact()


def test_whoever_claims_the_query_fences_its_driver(totals: Totals, spark: Any) -> None:
    """As a driver on another host would, where locks do not reach."""
    first = totals.start(spark, trigger={"processingTime": "200 milliseconds"})
    first.processAllAvailable()
    terms.claim(LocalStorage(totals.checkpoint / "kafka_eos"), totals.job, Term(0))
    totals.feed()

    with pytest.raises(Fenced, match="term 1 was replaced by term 2"):
        first.awaitTermination()

    totals.run(spark)
    totals.exact()


def test_what_was_promised_before_the_claim_is_known_after_it(bootstrap: str, tmp_path: Path) -> None:
    """Between the look of a new driver at the checkpoint and its claim, the old one may promise and Spark decide."""
    storage, where = LocalStorage(tmp_path), Cluster(bootstrap)
    old, new = Ledger(storage, "totals"), Ledger(storage, "totals")
    with closing(KafkaCommitter(where, JobContext(old.job, Term(0), {}))) as committer:
        term = claimed(old, committer)
        old.promise(Promise(job=old.job, batch=4, term=term.n, created_at=0, scope=where.scope, records=0, digest=0,
                            transactions=()))  # fmt: skip
        claimed(new, committer)

    assert new.newest(4) == EpochId(Epoch(4), term)


@pytest.mark.campaign
def test_a_driver_that_was_taken_over_while_it_slept_decides_nothing(
    totals: Totals, spark: Any, viewfs: Callable[[Path], str]
) -> None:
    """The checkpoint is on a file system without locks; the first driver sleeps between promise and decision."""
    place = viewfs(totals.checkpoint)
    first = totals.stopped_at("door.promised", place)

    totals.run(spark, checkpoint=place)
    totals.exact()
    decided = totals.decided()
    os.kill(first.pid, signal.SIGCONT)
    ended(first)

    assert "Fenced" in totals.tail()
    assert totals.decided() == decided
    totals.exact()
