"""Rows that a receiver refuses for good are not delivered: they are counted like dead letters, and by sink."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import TaskContext
from kafka_eos.connectors.idempotent import DeliveryRefused, IdempotentSink, Receiver, Row
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.job_history import History
from kafka_eos.core.records import Batch
from kafka_eos.runtime.epoch_reports import EpochContents, commit_metrics
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource
from kafka_eos.testing.list_source import ListOrigin


class Odd(Receiver):
    """Takes odd numbers only."""

    name = "odd"

    def send(self, rows: Sequence[Row]) -> None:
        if any(json.loads(row.value) % 2 == 0 for row in rows):
            raise DeliveryRefused("even")


class Started:
    """A job whose sink sets rows aside, and what it tells."""

    def __init__(self, directory: Path) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.sink = IdempotentSink(Odd(), outbox=directory / "outbox", value=int, batch=10, set_aside=10)
        pipeline = Pipeline("orders")
        pipeline.source(ListSource([1, 2, 3]), name="numbers").sink(self.sink, name="out")
        self.plan, self.storage = pipeline.plan(), LocalStorage(directory / "orders")
        self.refusals = DeadLetterMonitor(
            "none", 10, lambda event, **facts: self.told.append((event, facts)), lambda _: None
        )
        self.coordinator = self.begin()

    def begin(self) -> Coordinator:
        history, patience = History(self.storage, print), Retrier(threading.Event(), print)
        made = Coordinator(self.plan, self.storage, history, patience, {}, 3, refusals=self.refusals)
        made.check()
        made.recovery.restore()
        return made

    def decide(self, *values: int) -> Manifest:
        epoch, ctx = self.coordinator.ownership.next_epoch(), self.coordinator.ownership.load_identity()
        writer = self.sink.writer(TaskContext(ctx, 0, 1, "out", first_epoch=epoch.epoch))
        writer.write(Batch(list(values), range(len(values)), ListOrigin("numbers", "list", 0, 0, list(values))))
        committables = tuple(replace(each, by_sink={"out": each.records}) for each in writer.seal(epoch)())
        return self.coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), committables))


def test_rows_that_a_receiver_refused_do_not_count_as_committed(tmp_path: Path) -> None:
    job = Started(tmp_path)
    results = [
        (manifest := job.decide(*values), job.coordinator.epochs.commit(manifest)) for values in ((1, 2, 3, 4), (5,))
    ]

    assert [result.set_aside for _, result in results] == [{"out": 2}, {}]
    assert [commit_metrics(*each)["records_by_sink"] for each in results] == [{"out": 2}, {"out": 1}]
    assert [commit_metrics(*each)["records"] for each in results] == [2, 1]
    epoch = results[0][0].epoch
    assert job.told == [("set-aside", {"epoch": epoch, "counts": {"out": 2}, "total": {"out": 2}})]


def test_a_recovery_that_commits_again_counts_them_once(tmp_path: Path) -> None:
    """The attempt ended between the commits and the receipt."""
    job = Started(tmp_path)
    manifest = job.decide(1, 2, 3, 4)
    job.coordinator.epochs.commit(manifest)
    for receipt in (tmp_path / "orders" / "receipts").iterdir():
        if str(manifest.epoch) in receipt.name:
            receipt.unlink()

    job.begin()

    assert [facts["total"] for _, facts in job.told] == [{"out": 2}]


def test_a_recovery_counts_what_it_commits(tmp_path: Path) -> None:
    job = Started(tmp_path)
    job.decide(1, 2, 3, 4)

    job.begin()

    assert [facts["total"] for _, facts in job.told] == [{"out": 2}]
