"""One client finishes many prepared transactions at the same time: each gets its answer, and connections are kept."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.connection import BrokerConnection
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.coordination.epochs import EpochCommitter
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.storage.job_storage import MemoryStorage
from tests.broker.transaction_kit import committed_values, new_writer, write

SCOPE = "kafka:here"
MANY = 12


def test_many_transactions_are_finished_at_once_by_one_client(
    bootstrap: str, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, name = topic(), f"t-{uuid.uuid4().hex[:10]}"
    writers = [new_writer(bootstrap, f"{name}.1.{n}.0") for n in range(MANY)]
    for n, writer in enumerate(writers):
        write(writer, out, f"value-{n}")
    with KafkaRequests(Cluster(bootstrap)) as rpc:
        version = rpc.end_txn_version()
    committables = [Committable(SCOPE, writer.commit_name(out, version).payload(), 1) for writer in writers]
    committer = KafkaCommitter(Cluster(bootstrap), JobContext(name, Term(1), {}))
    finisher = EpochCommitter(MemoryStorage(), {SCOPE: committer}, Retrier(threading.Event(), print))
    opened: list[BrokerConnection] = []
    let_in = BrokerConnection._handshake
    monkeypatch.setattr(BrokerConnection, "_handshake", lambda self, until: opened.append(self) or let_in(self, until))

    probes = finisher.probe(committables)
    decision = authorize(EpochId(Epoch(1), Term(1)), probes, 1.0)
    assert isinstance(decision, CommitAuthorized)
    outcomes = [finisher.commit(committables, decision), finisher.commit(committables, decision)]
    committer.close()

    assert {probe.status for probe in probes} == {CommitStatus.PREPARED}
    assert outcomes == [[CommitOutcome.COMMITTED] * MANY, [CommitOutcome.ALREADY] * MANY]
    assert sorted(committed_values(bootstrap, out)) == sorted(f"value-{n}" for n in range(MANY))
    assert 0 < len(opened) <= MANY
