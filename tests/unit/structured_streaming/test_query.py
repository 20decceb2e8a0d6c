"""What the user of a running query sees: whether it runs, what is visible, and what ended it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.core.errors import CommittableLost, ConfigError
from kafka_eos.structured_streaming.query import ExactlyOnceQuery
from kafka_eos.structured_streaming.spark_checkpoint import LocalCommitLog
from tests.micro_batches import Driver, MicroBatch
from tests.transactional_broker import TransactionalBroker
from tests.waiting import PATIENCE, eventually

Made = Callable[..., Driver]
ROWS = MicroBatch.of(b"a", b"b")


class SparkQuery:
    """Spark's handle of a query. ``ended`` by the test, or by whoever stops it."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.ended = driver, threading.Event()
        self.error: Exception | None = None
        self._jsq = SimpleNamespace(lastProgress=self._progress)

    def _progress(self) -> Any:
        last = self.driver.reported
        return None if last is None else SimpleNamespace(batchId=lambda: last)

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()

    def stop(self) -> None:
        self.ended.set()

    def exception(self) -> Exception | None:
        return self.error

    def awaitTermination(self) -> None:  # noqa: N802 - as StreamingQuery has it
        assert self.ended.wait(PATIENCE)
        if self.error is not None:
            raise self.error

    def processAllAvailable(self) -> None:  # noqa: N802 - as StreamingQuery has it
        self.driver.prepare(0, ROWS)
        self.driver.decide(0)


@pytest.fixture
def spark(driver: Made) -> Iterator[SparkQuery]:
    made = SparkQuery(driver())
    yield made
    made.stop()
    assert made.driver.batch_committer.wait(PATIENCE)


@pytest.fixture
def query(spark: SparkQuery) -> ExactlyOnceQuery:
    return running(spark)


def running(spark: SparkQuery) -> ExactlyOnceQuery:
    return ExactlyOnceQuery(cast(Any, spark), "totals", (), spark.driver.batch, spark.driver.batch_committer)


def test_executors_without_kafka_eos(driver: Made) -> None:
    """What a task raises there is Spark's; what the query ends with says what to do."""

    def fail() -> None:
        raise PySparkException("ModuleNotFoundError: No module named 'kafka_eos'")

    batch = driver().batch
    with pytest.raises(PySparkException):
        batch(cast(Any, MicroBatch.of(b"a").while_collected(fail)), 0)

    assert isinstance(batch.failure, ConfigError)
    assert "executors cannot import kafka_eos" in str(batch.failure)


def test_a_query_runs_until_all_that_it_decided_is_visible(
    query: ExactlyOnceQuery, spark: SparkQuery, kafka: TransactionalBroker
) -> None:
    assert (query.isActive, query.last_visible_batch) == (True, None)
    assert not query.finish(0)
    assert not query.awaitTermination(0)

    query.processAllAvailable()

    assert sorted(kafka.values) == [b"a", b"b"]
    assert (query.isActive, query.last_visible_batch) == (True, 0)
    assert query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert query.awaitTermination()


def test_a_query_is_stopped_at_the_end_of_its_block(
    query: ExactlyOnceQuery, spark: SparkQuery, kafka: TransactionalBroker
) -> None:
    with query as entered:
        assert entered is query
        spark.driver.prepare(0, ROWS)

    assert spark.ended.is_set()
    assert not query.isActive
    assert kafka.visible == []
    assert kafka.open == []


def test_a_decision_beside_a_rival_counts_once_spark_reports_it(driver: Made, kafka: TransactionalBroker) -> None:
    rival = driver()
    rival.prepare(0, MicroBatch.of(b"rival"))
    spark = SparkQuery(driver())
    query = running(spark)

    query.processAllAvailable()

    assert sorted(kafka.values) == [b"a", b"b"]
    assert query.stop()


def test_what_ended_a_query_is_told_as_it_was_raised(query: ExactlyOnceQuery, spark: SparkQuery) -> None:
    error = RuntimeError("a task has failed")
    spark.fail(error)

    with pytest.raises(RuntimeError, match="a task has failed"):
        query.awaitTermination(PATIENCE)
    assert query.exception() is error


def test_our_own_error_goes_before_what_spark_makes_of_it(query: ExactlyOnceQuery, spark: SparkQuery) -> None:
    spark.driver.batch.failure = ours = ValueError("ours")
    spark.fail(RuntimeError("Spark's text of it"))

    with pytest.raises(ValueError, match="ours"):
        query.awaitTermination(PATIENCE)
    assert query.exception() is ours


def test_what_a_batch_could_not_do_counts_for_nothing_unless_spark_fails(
    query: ExactlyOnceQuery, spark: SparkQuery
) -> None:
    spark.driver.batch.failure = ValueError("tried again, and done")

    assert query.stop(PATIENCE)

    assert query.exception() is None


def test_a_batch_that_was_interrupted_by_the_stop_is_no_error(query: ExactlyOnceQuery, spark: SparkQuery) -> None:
    spark.driver.batch.failure = RetryInterrupted("stopped")
    spark.fail(RuntimeError("Spark's text of it"))

    assert query.stop(PATIENCE)

    assert query.exception() is None


def test_a_batch_that_cannot_be_committed_stops_spark(
    query: ExactlyOnceQuery, spark: SparkQuery, kafka: TransactionalBroker
) -> None:
    spark.driver.prepare(0, ROWS)
    spark.driver.settling.committer.abort(kafka.open)
    spark.driver.decide(0)

    eventually(spark.ended.is_set, "Spark's query is stopped")
    with pytest.raises(CommittableLost):
        query.awaitTermination(PATIENCE)


def test_the_newest_decision_is_that_of_the_highest_number(tmp_path: Path) -> None:
    decisions = LocalCommitLog(tmp_path)
    assert decisions.find_latest_batch() is None
    commits = tmp_path / "commits"
    commits.mkdir()
    assert decisions.find_latest_batch() is None

    for name in ("9", "10", ".10.crc", ".11.tmp", "metadata"):
        (commits / name).touch()

    assert decisions.find_latest_batch() == 10
    assert [batch for batch in range(13) if decisions.has(batch)] == [9, 10]
