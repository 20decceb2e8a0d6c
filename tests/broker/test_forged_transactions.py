"""A decided manifest that names the open transaction of another program, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import TaskContext
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import TransactionDescription
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource
from tests.broker.kafka_kit import batch, values_of
from tests.waiting import eventually


@pytest.fixture
def job() -> str:
    return f"orders-{uuid4().hex[:8]}"


@pytest.fixture
def coordinator(bootstrap: str, topic: Callable[..., str], job: str, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    out, opened = topic(), list[Coordinator]()

    def made() -> tuple[Coordinator, KafkaSink[Any]]:
        pipeline, sink = Pipeline(job), KafkaSink(out, value=bytes)
        pipeline.source(ListSource([b"a"]), name="rows").sink(sink, name="out")
        storage, patience = LocalStorage(tmp_path / job), Retrier(threading.Event(), print)
        settings: dict[str, Json] = {"bootstrap_servers": bootstrap}
        opened.append(Coordinator(pipeline.plan(), storage, History(storage, print), patience, settings, 3))
        return opened[-1], sink

    yield made
    for each in opened:
        each.close()


def decided(coordinator: Coordinator, sink: KafkaSink[Any]) -> Manifest:
    """An epoch with one row that is prepared."""
    coordinator.recovery.restore()
    epoch = coordinator.ownership.next_epoch()
    writer = sink.writer(TaskContext(coordinator.ownership.load_identity(), 0, 1, "out", first_epoch=epoch.epoch))
    writer.write(batch(b"own"))
    committables = tuple(writer.seal(epoch)())
    writer.discard()
    return coordinator.epochs.decide(epoch, EpochContents({"rows": {}}, (), committables))


def test_the_transaction_of_a_program_is_not_committed_by_a_job_that_a_manifest_tells_to(
    bootstrap: str, topic: Callable[..., str], coordinator: Callable[[], Any], job: str, tmp_path: Path
) -> None:
    accounts, payments = topic(), f"payments-app-{uuid4().hex[:6]}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": payments})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(accounts, b"half a payment")
    producer.flush(30)
    orders = decided(*coordinator())
    with closing(KafkaRequests(Cluster(bootstrap, {}))) as rpc:
        before = rpc.describe(payments)
        assert before is not None and before.state == "Ongoing"

        for name in (payments, f"{payments}.0123456789ab.1.0.0"):
            storage = LocalStorage(tmp_path / job)
            storage.delete(orders.name)
            records.publish(storage, replace(orders, committables=forged(orders, name, before)))
            with pytest.raises(CorruptCheckpoint, match=payments):
                coordinator()[0].recovery.restore()

        assert rpc.describe(payments) == before
    assert values_of(bootstrap, accounts) == []

    producer.produce(accounts, b"the other half")
    producer.commit_transaction(30)
    eventually(lambda: values_of(bootstrap, accounts) == [b"half a payment", b"the other half"], "one payment")


def forged(orders: Manifest, name: str, seen: TransactionDescription) -> tuple[Any, ...]:
    (own,) = orders.committables
    payload = {**own.payload, "transactional_id": name}
    payload |= {"producer_id": seen.producer_id, "producer_epoch": seen.producer_epoch}
    return (replace(own, payload=payload),)
