"""Kill a job at each step of its epochs while the producer epochs of its transactional ids turn over.

A producer's epoch is a 16-bit number. Before it would exceed 32767, the coordinator gives the id another producer. That
takes 32,000 preparations of an id, so the test writes high epochs into the coordinator's log, as its own records.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.job_names import TransactionalId
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.committer import FENCED_MS
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.devtools.broker import Broker
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import IdentityRecord, load
from kafka_eos.storage.job_storage import LocalStorage
from tests.broker.transaction_kit import coordinator_partition
from tests.chaos.harness import Job, create_topic, feed
from tests.chaos.test_failpoints import FAMILIES, script, unchanged_by_a_recovery
from tests.waiting import PATIENCE

TERMS, SLOTS = range(2, 60), range(4)
LAST_EPOCH = 32766
"""The epoch with which an id gets another producer."""


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.limits("tiny")
@pytest.mark.parametrize("families", FAMILIES.values(), ids=FAMILIES)
def test_a_job_that_dies_where_producer_epochs_turn_over_loses_and_doubles_nothing(
    broker_factory: Callable[..., Broker], tmp_path: Path, families: tuple[str, ...]
) -> None:
    broker = broker_factory()
    name = f"turn-{uuid4().hex[:10]}"
    job = Job(name, broker.bootstrap, f"{name}-in", f"{name}-out", tmp_path / "job")
    job.directory.mkdir()
    for topic in (job.input, job.output):
        create_topic(broker.bootstrap, topic, 3)
    feed(broker.bootstrap, job.input, range(100))
    job.run()
    ids = [str(TransactionalId(name, _identity(job), Term(term), 0, slot)) for term in TERMS for slot in SLOTS]
    before = _raise_epochs(broker, ids)

    feed(broker.bootstrap, job.input, range(100, 2000))
    job.run(script(families))

    unchanged_by_a_recovery(job)
    with KafkaRequests(Cluster(broker.bootstrap)) as rpc:
        after = rpc.described("|".join(ids).replace(".", r"\."))
    turned = [name for name in ids if after[name].producer_id != before[name]]
    assert len(turned) > 4, f"only {len(turned)} ids have another producer"


def _identity(job: Job) -> JobIdentity | None:
    storage = LocalStorage(job.checkpoints / job.name)
    return load(storage, IdentityRecord, paths.IDENTITY, job.name).id


def _raise_epochs(broker: Broker, ids: Iterable[str]) -> dict[str, int]:
    """Create ids whose epochs turn over within some transactions; return their producer ids.

    Only a restarted coordinator reads its log, and brokers accept records for it from this client's name only.
    """
    producers: dict[str, int] = {}
    log = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "__admin_client", "acks": "all"})
    partitions = len(log.list_topics("__transaction_state", PATIENCE).topics["__transaction_state"].partitions)
    with KafkaRequests(Cluster(broker.bootstrap)) as rpc:
        for number, name in enumerate(ids):
            assert rpc.create(name, FENCED_MS) == "NONE"
            seen = rpc.describe(name)
            assert seen is not None
            producers[name] = seen.producer_id
            key = struct.pack(f">hh{len(name)}s", 0, len(name), name.encode())
            now = int(time.time() * 1000)
            # Producer id, epoch, timeout, state Empty, no partitions, time of the update, no time of a start.
            value = struct.pack(">hqhibiqq", 0, seen.producer_id, LAST_EPOCH - number % 4, FENCED_MS, 0, -1, now, -1)
            log.produce("__transaction_state", value, key, coordinator_partition(name, partitions))
    assert log.flush(PATIENCE) == 0
    broker.stop()
    broker.start()
    with KafkaRequests(Cluster(broker.bootstrap)) as rpc:
        seen = rpc.describe(name)
        assert seen is not None and seen.producer_epoch > LAST_EPOCH - 4, "the coordinator has not read the epochs"
    return producers
