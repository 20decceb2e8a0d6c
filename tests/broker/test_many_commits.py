"""One client finishes many prepared transactions at the same time: each gets its answer, and connections are kept."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from kafka_eos._util.retry import Patience
from kafka_eos.abc.committer import Committable, Outcome, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.connection import Connection
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.coordination.epochs import Finisher
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.commit import Commit, authorize
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
    finisher = Finisher(MemoryStorage(), {SCOPE: committer}, Patience(threading.Event(), print))
    opened: list[Connection] = []
    let_in = Connection._let_in
    monkeypatch.setattr(Connection, "_let_in", lambda self, until: opened.append(self) or let_in(self, until))

    probes = finisher.probe(committables)
    decision = authorize(EpochId(Epoch(1), Term(1)), probes, 1.0)
    assert isinstance(decision, Commit)
    outcomes = [finisher.commit(committables, decision), finisher.commit(committables, decision)]
    committer.close()

    assert {probe.standing for probe in probes} == {Standing.PREPARED}
    assert outcomes == [[Outcome.COMMITTED] * MANY, [Outcome.ALREADY] * MANY]
    assert sorted(committed_values(bootstrap, out)) == sorted(f"value-{n}" for n in range(MANY))
    assert 0 < len(opened) <= MANY
