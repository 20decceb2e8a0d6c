"""Several tasks of several batches in one Python process: each row once, whatever the process keeps between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.connectors.kafka.sink.producer_pool import SPARE
from kafka_eos.core.errors import UserError
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.structured_streaming import partition_writer as task
from kafka_eos.structured_streaming.batch_ledger import BatchLedger
from kafka_eos.structured_streaming.spark_checkpoint import OURS
from tests.micro_batches import NAME, Driver, MicroBatch, rows
from tests.transactional_broker import Row, TransactionalBroker
from tests.waiting import eventually

Made = Callable[..., Driver]
TASKS = 5
STORED = ("manifests", "receipts")


def values_of(number: int) -> list[bytes]:
    """The rows of a batch, one a task."""
    return [f"{number}/{task}".encode() for task in range(TASKS)]


def batch(number: int) -> MicroBatch:
    return MicroBatch.of(*values_of(number))


def test_each_task_of_a_batch_has_a_transaction_of_its_own(driver: Made, kafka: TransactionalBroker) -> None:
    first = driver().start()

    first.prepare(0, batch(0))

    # So many producers have been ordered: those of the tasks, and those that are kept warm.
    eventually(lambda: kafka.initialized.total() >= TASKS + SPARE + 1, "the producers that come next are there")
    assert set(kafka.initialized.values()) == {1}, "a prepared transaction was fenced"
    assert len(kafka.open) == TASKS
    assert kafka.visible == []
    first.decide(0)
    assert first.end() is None
    assert sorted(kafka.values) == values_of(0)
    assert kafka.open == []


def test_slots_serve_again_once_their_batch_is_visible(driver: Made, kafka: TransactionalBroker) -> None:
    first = driver().start()

    for number in range(4):
        first.run(number, batch(number))
        assert sorted(kafka.values) == [value for earlier in range(number + 1) for value in values_of(earlier)]
        assert kafka.open == []

    assert len(kafka.ids) < 4 * TASKS
    assert first.end() is None


def test_an_attempt_of_a_task_that_spark_gave_up_is_aborted_with_its_batch(
    driver: Made, kafka: TransactionalBroker
) -> None:
    first = driver().start()
    list(task.write_partition(first.assignment(0), [rows(b"0/0")]))

    first.run(0, batch(0))

    assert sorted(kafka.values) == values_of(0)
    assert kafka.open == []


@pytest.mark.limits(settled_batches_kept=100)
def test_a_partition_without_rows_has_no_transaction(driver: Made, kafka: TransactionalBroker) -> None:
    first = driver().start()

    first.run(0, MicroBatch([], [rows()], [rows(), rows(b"row"), rows(b"next")]))
    first.run(1, MicroBatch([]))
    first.run(2, batch(2))

    assert sorted(kafka.values[:2]) == [b"next", b"row"]
    assert sorted(kafka.values[2:]) == values_of(2)
    assert [len(first.settling.ledger.load_committed(number).transactions) for number in range(3)] == [1, 0, TASKS]


def test_rows_go_to_the_topic_and_the_partition_that_they_name(driver: Made, kafka: TransactionalBroker) -> None:
    named = rows(b"a", b"b", b"c", topic=["out", "other", "out"], partition=[1, 0, 0])

    driver(topic=None).start().run(0, MicroBatch([named, rows(b"d", topic=["other"], partition=[0])]))

    found = sorted((row.topic, row.partition, row.value) for row in kafka.visible)
    assert found == [("other", 0, b"b"), ("other", 0, b"d"), ("out", 0, b"c"), ("out", 1, b"a")]
    assert kafka.visible.index(Row("other", 0, None, b"b")) < kafka.visible.index(Row("other", 0, None, b"d"))


def test_a_row_without_a_topic_is_refused(driver: Made, kafka: TransactionalBroker) -> None:
    first = driver(topic=None).start()

    with pytest.raises(UserError, match="the column 'topic' is null in a row"):
        first.prepare(0, MicroBatch([rows(b"a", topic=["out"])], [rows(b"b", b"c", topic=["out", None])]))

    assert first.end() is None
    assert kafka.open == []
    assert kafka.visible == []


@pytest.mark.limits(settled_batches_kept=2)
def test_old_batches_are_forgotten_whole(driver: Made, tmp_path: Path) -> None:
    first = driver().start()

    for number in range(5):
        first.run(number, MicroBatch.of(b"row"))

    records = [sorted(path.name for path in (tmp_path / "kafka_eos" / kind).iterdir()) for kind in STORED]
    assert [len(names) for names in records] == [2, 2]
    assert first.settling.ledger.batches() == [3, 4]
    assert first.settling.ledger.list_committed() == {3, 4}
    again = driver()
    assert again.recovered.newest == 4
    assert again.settling.ledger.list_committed() == {3, 4}


class DyingStorage(LocalStorage):
    """A storage whose process dies before its second deletion."""

    deleted = 0

    def delete(self, name: str) -> None:
        self.deleted += 1
        if self.deleted == 2:
            raise KeyboardInterrupt
        super().delete(name)


@pytest.mark.limits(settled_batches_kept=1)
def test_a_batch_that_is_half_forgotten_does_not_look_undecided(driver: Made, tmp_path: Path) -> None:
    first = driver().start()
    first.run(0, MicroBatch.of(b"row"))
    ledger = BatchLedger(DyingStorage(tmp_path / OURS), NAME)
    ledger.refresh()

    with pytest.raises(KeyboardInterrupt):
        ledger.prune(1)

    ledger.refresh()
    assert (ledger.batches(), ledger.list_committed()) == ([], {0})
