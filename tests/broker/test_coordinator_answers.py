"""What a real coordinator answers about a prepared transaction. ``docs/kafka-coordinator-answers.md`` is this file.

Each test pins one row. If a broker or client upgrade changes an answer, a test here fails before a job does.
`make matrix` asks each release that is supported; what takes EndTxn 5 is skipped where the broker has none.
"""

from __future__ import annotations

import gc
import logging
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import TransactionStatus, derive_status
from kafka_eos.connectors.kafka.sink.committer import FENCED_MS, KafkaCommitter
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.devtools.broker import Broker
from tests.broker.transaction_kit import (
    Writer,
    committed_values,
    create_topic,
    end,
    mark,
    new_writer,
    prepared,
    settled,
    state,
    write,
)
from tests.waiting import PATIENCE, eventually

VERSIONS = pytest.mark.parametrize("version", [4, 5])
Topic = Callable[..., str]


@pytest.fixture
def rpc(bootstrap: str) -> Iterator[KafkaRequests]:
    with KafkaRequests(Cluster(bootstrap)) as requests:
        yield requests


@pytest.fixture(autouse=True)
def _known_version(request: pytest.FixtureRequest) -> None:
    """Skips the cases of EndTxn 5 where the broker does not know it."""
    asked = getattr(request.node, "callspec", None)
    wanted = [] if asked is None else [asked.params.get(name) for name in ("version", "first", "second")]
    if 5 in wanted and request.getfixturevalue("rpc").end_txn_version() < 5:
        pytest.skip("this release knows no EndTxn 5")


def test_which_version_a_release_has(rpc: KafkaRequests, release: str) -> None:
    """With ``transaction.version`` 2 EndTxn v5 is used: it bumps the epoch and so fences a zombie."""
    assert (rpc.transaction_version(), rpc.end_txn_version()) == ((0, 4) if release == "3.9" else (2, 5))


@VERSIONS
def test_commit_of_a_killed_process(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """SIGKILL after the flush; another process commits; every repeat says so again."""
    out, name = topic(), f"t-{uuid.uuid4().hex[:10]}.1.0.0"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.broker.prepare_and_wait", bootstrap, out, name],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    pid, epoch = map(int, child.stdout.readline().split())
    child.kill()
    child.wait()

    answers = [rpc.end(name, pid, epoch, commit=True, version=version) for _ in range(3)]

    assert answers == ["NONE"] * 3
    assert committed_values(bootstrap, out) == ["a", "b"]


@VERSIONS
def test_epoch_after_a_commit(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """v4 keeps the epoch, v5 raises it by one."""
    writer = prepared(bootstrap, topic())

    assert end(rpc, writer, version) == "NONE"

    pid, epoch = writer.identity
    seen = settled(rpc, writer, "CompleteCommit")
    assert (seen.producer_id, seen.producer_epoch) == (pid, epoch + (version == 5))


@VERSIONS
def test_abort_after_commit(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    writer = prepared(bootstrap, topic())
    end(rpc, writer, version)
    settled(rpc, writer, "CompleteCommit")

    assert end(rpc, writer, version, commit=False) == "INVALID_TXN_STATE"


@VERSIONS
def test_commit_after_abort(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    writer = prepared(bootstrap, topic())
    end(rpc, writer, version, commit=False)
    settled(rpc, writer, "CompleteAbort")

    assert end(rpc, writer, version) == "INVALID_TXN_STATE"


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [(4, 5, "INVALID_TXN_STATE"), (5, 4, "PRODUCER_FENCED")],
    ids=["4 then 5", "5 then 4"],
)
def test_versions_do_not_mix(
    bootstrap: str, topic: Topic, rpc: KafkaRequests, first: int, second: int, answer: str
) -> None:
    """A commit repeated in the other version is refused though committed: the committable stores its version."""
    writer = prepared(bootstrap, topic())
    end(rpc, writer, first)
    settled(rpc, writer, "CompleteCommit")

    assert end(rpc, writer, second) == answer


@VERSIONS
def test_commit_after_librdkafkas_own_commit(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """librdkafka ends with an old version: a repeat in v5 is refused though committed."""
    writer = prepared(bootstrap, topic())
    writer.producer.commit_transaction(PATIENCE)
    settled(rpc, writer, "CompleteCommit")

    assert end(rpc, writer, version) == ("NONE" if version == 4 else "INVALID_TXN_STATE")


@VERSIONS
def test_commit_after_another_producers_init(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """The open transaction is aborted, the id is Empty two epochs on."""
    out = topic()
    writer = prepared(bootstrap, out)
    new_writer(bootstrap, writer.transactional_id)

    assert end(rpc, writer, version) == "PRODUCER_FENCED"
    seen = state(rpc, writer)
    assert (seen.state, seen.producer_epoch - writer.identity[1]) == ("Empty", 2)
    assert committed_values(bootstrap, out) == []


@VERSIONS
def test_commit_after_commit_and_init(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """The same refusal though it was committed: fenced does not mean aborted."""
    out = topic()
    writer = prepared(bootstrap, out)
    end(rpc, writer, version)
    settled(rpc, writer, "CompleteCommit")
    new_writer(bootstrap, writer.transactional_id)

    assert end(rpc, writer, version) == "PRODUCER_FENCED"
    assert committed_values(bootstrap, out) == ["a", "b"]


@VERSIONS
def test_fence_by_raw_init(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """A raw InitProducerId aborts what is open and leaves its own timeout on the id, which tells it is fenced."""
    writer = prepared(bootstrap, topic())

    assert rpc.fence(writer.transactional_id, FENCED_MS) == "NONE"

    seen = state(rpc, writer)
    assert (seen.state, seen.timeout_ms) == ("Empty", FENCED_MS)
    assert end(rpc, writer, version) == "PRODUCER_FENCED"


@VERSIONS
@pytest.mark.parametrize("shift", [-1, 1, 5])
def test_wrong_epoch(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int, shift: int) -> None:
    """An epoch that is not the open one is refused and changes nothing."""
    name = f"t-{uuid.uuid4().hex[:10]}.1.0.0"
    new_writer(bootstrap, name)  # so that the epoch is above 0
    writer = prepared(bootstrap, topic(), transactional_id=name)

    assert end(rpc, writer, version, epoch=shift) == "PRODUCER_FENCED"
    assert state(rpc, writer).state == "Ongoing"


@VERSIONS
def test_unknown_id(rpc: KafkaRequests, version: int) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}.1.0.0"

    assert rpc.end(name, 1, 0, commit=True, version=version) == "INVALID_PRODUCER_ID_MAPPING"
    assert rpc.describe(name) is None


@VERSIONS
def test_wrong_producer_id(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    writer = prepared(bootstrap, topic())
    pid, epoch = writer.identity

    answer = rpc.end(writer.transactional_id, pid + 100_000, epoch, commit=True, version=version)

    assert answer == "INVALID_PRODUCER_ID_MAPPING"


@VERSIONS
def test_commit_of_an_empty_transaction(bootstrap: str, rpc: KafkaRequests, version: int) -> None:
    """Nothing was produced: the coordinator knows of no transaction. So an empty epoch has no committable."""
    writer = new_writer(bootstrap)
    writer.producer.begin_transaction()

    assert end(rpc, writer, version) == "INVALID_TXN_STATE"


@VERSIONS
def test_a_replay_commits_the_next_transaction(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """A producer instance that is used twice: a repeated commit of the first ends the second half-written."""
    out = topic()
    writer = prepared(bootstrap, out)
    writer.producer.commit_transaction(PATIENCE)
    settled(rpc, writer, "CompleteCommit")
    write(writer, out, "half")

    assert end(rpc, writer, version) == "NONE"
    settled(rpc, writer, "CompleteCommit")
    assert committed_values(bootstrap, out) == ["a", "b", "half"]


def _names(failed: list[str]) -> Callable[[Any, object], None]:
    def delivered(error: Any, _message: object) -> None:
        if error is not None:
            failed.append(error.name())

    return delivered


def test_v4_lets_a_zombie_go_on(bootstrap: str, topic: Topic, rpc: KafkaRequests) -> None:
    """After our commit the old process opens a new transaction under the same epoch. So v4 needs a fence.

    A partition of the committed transaction refuses it (the broker verifies that it is part of an open one); the
    first row for any other partition is added to a new transaction, and then all are accepted.
    """
    out, other = topic(), topic()
    failed: list[str] = []
    zombie = prepared(bootstrap, out, on_delivery=_names(failed))
    end(rpc, zombie, 4)
    settled(rpc, zombie, "CompleteCommit")
    zombie.producer.produce(other, "zombie", "k")
    zombie.producer.flush(PATIENCE)

    seen = state(rpc, zombie)

    assert failed == []
    assert (seen.state, seen.producer_epoch) == ("Ongoing", zombie.identity[1])


def test_v4_refuses_a_zombie_on_the_same_partition(bootstrap: str, topic: Topic, rpc: KafkaRequests) -> None:
    out = topic()
    failed: list[str] = []
    zombie = prepared(bootstrap, out, on_delivery=_names(failed))
    end(rpc, zombie, 4)
    settled(rpc, zombie, "CompleteCommit")
    zombie.producer.produce(out, "zombie", "k")
    zombie.producer.flush(PATIENCE)

    assert failed == ["INVALID_TXN_STATE"]
    assert state(rpc, zombie).state == "CompleteCommit"


@pytest.mark.parametrize("version", [5])
def test_v5_fences_a_zombie(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    out = topic()
    zombie = prepared(bootstrap, out)
    end(rpc, zombie, version)
    settled(rpc, zombie, "CompleteCommit")

    zombie.producer.produce(out, "zombie", "k")
    with pytest.raises((KafkaException, SystemError)):
        _go_on(zombie)

    assert state(rpc, zombie).state == "CompleteCommit"
    assert committed_values(bootstrap, out) == ["a", "b"]


def _go_on(zombie: Writer) -> None:
    zombie.producer.flush(PATIENCE)
    zombie.producer.commit_transaction(PATIENCE)


@VERSIONS
def test_a_fence_after_the_commit_stops_a_zombie(
    bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int
) -> None:
    out = topic()
    zombie = prepared(bootstrap, out)
    end(rpc, zombie, version)
    settled(rpc, zombie, "CompleteCommit")
    rpc.fence(zombie.transactional_id, FENCED_MS)

    zombie.producer.produce(out, "zombie", "k")
    with pytest.raises((KafkaException, SystemError)):
        _go_on(zombie)

    assert state(rpc, zombie).state == "Empty"
    assert committed_values(bootstrap, out) == ["a", "b"]


# ---------------------------------------------------------------- the marker


@VERSIONS
def test_the_marker_tells_commit_from_abort(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int) -> None:
    """Invisible while prepared; visible after the commit, also when the id was initialised again; never after abort."""
    out, group = topic(), f"g-{uuid.uuid4().hex[:8]}"
    first = prepared(bootstrap, out)
    committed = mark(first, out, group)
    seen = [rpc.marker(group, out, 0)]
    end(rpc, first, version)
    new_writer(bootstrap, first.transactional_id)
    seen.append(rpc.marker(group, out, 0))
    second = prepared(bootstrap, out)
    mark(second, out, group)
    rpc.fence(second.transactional_id, FENCED_MS)
    seen.append(rpc.marker(group, out, 0))

    assert seen == [None, committed, committed]


def test_a_topic_that_is_deleted_takes_its_markers_along(bootstrap: str, rpc: KafkaRequests) -> None:
    """Without the topic no coordinator can prove that it is current, so lost and committed output look alike."""
    out, group = f"gone-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, out)
    writer = prepared(bootstrap, out)
    ours = writer.commit_name(out, rpc.end_txn_version(), mark(writer, out, group), group)
    end(rpc, writer, ours.end_txn_version)
    rpc.fence(writer.transactional_id, FENCED_MS)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([out])[out].result(PATIENCE)
    eventually(lambda: rpc.marker(group, out, 0) is None, "the marker is deleted")

    with closing(KafkaCommitter(Cluster(bootstrap), JobContext("t", Term(2), {}), 2.0)) as committer:
        probe = committer.probe(Committable(Cluster(bootstrap).scope, ours.payload(), 1))

    assert probe.status is CommitStatus.UNKNOWN
    assert f"the topic {out}, which would show whether it was committed, was deleted" in probe.detail


@VERSIONS
@pytest.mark.parametrize("fate", ["open", "committed", "committed+fenced", "aborted", "fenced", "unknown"])
def test_the_verdict_is_right(bootstrap: str, topic: Topic, rpc: KafkaRequests, version: int, fate: str) -> None:
    """``derive_status`` on real facts, for everything that can have happened."""
    out, group = topic(), f"g-{uuid.uuid4().hex[:8]}"
    writer = prepared(bootstrap, out)
    ours = writer.commit_name(out, version, mark(writer, out, group), group)
    _suffer(rpc, writer, version, fate)
    if fate == "unknown":
        ours = type(ours)(**{**ours.payload(), "transactional_id": "never-seen.1.0.0", "uuid": "other"})  # type: ignore[arg-type]

    seen = rpc.describe(ours.transactional_id, current=True)
    verdict = derive_status(ours, seen, rpc.marker(group, out, 0, current=True), 0.0, True)

    expected = {
        "open": TransactionStatus.PREPARED,
        "committed": TransactionStatus.COMMITTED,
        "committed+fenced": TransactionStatus.COMMITTED,
    }
    assert verdict is expected.get(fate, TransactionStatus.LOST)


def _suffer(rpc: KafkaRequests, writer: Writer, version: int, fate: str) -> None:
    if fate.startswith("committed"):
        end(rpc, writer, version)
        settled(rpc, writer, "CompleteCommit")
    if fate == "aborted":
        end(rpc, writer, version, commit=False)
        settled(rpc, writer, "CompleteAbort")
    if fate.endswith("fenced"):
        rpc.fence(writer.transactional_id, FENCED_MS)


@pytest.mark.campaign
@pytest.mark.timeout(1800)  # 32,000 requests: a minute, or ten on a busy machine
def test_no_status_changes_where_the_epoch_of_a_producer_turns_over(
    bootstrap: str, topic: Topic, rpc: KafkaRequests
) -> None:
    """Each preparation raises the epoch of its id. Before it exceeds 32767, the id gets a new producer."""
    out, name, version = topic(), f"turn-{uuid.uuid4().hex[:8]}.1.0.0", rpc.end_txn_version()
    for _ in range(2**15 - 12):
        assert rpc.fence(name, 60_000) == "NONE"
    producers, committed = [], 0
    permit = CommitPermit(EpochId(Epoch(1), Term(1)))
    with closing(KafkaCommitter(Cluster(bootstrap), JobContext("t", Term(2), {}))) as committer:
        for number in range(16):
            writer, group = prepared(bootstrap, out, transactional_id=name), f"g-{uuid.uuid4().hex[:8]}"
            ours = writer.commit_name(out, version, mark(writer, out, group), group)
            stored = Committable(Cluster(bootstrap).scope, ours.payload(), 2)
            producers.append(writer.identity)
            assert committer.probe(stored).status is CommitStatus.PREPARED
            fate = ("killed before the commit", "killed after it", "taken over", "lost")[number % 4]
            if fate == "lost":
                rpc.fence(name, 60_000)
                assert _settled_status(committer, stored) is CommitStatus.LOST
                continue
            if fate == "killed after it":
                end(rpc, writer, version)
            committer.commit(permit, stored)
            assert committer.commit(permit, stored) is CommitOutcome.ALREADY
            if fate == "taken over":
                rpc.fence(name, 60_000)
            assert _settled_status(committer, stored) is CommitStatus.COMMITTED
            committed += 1

    assert len({pid for pid, _ in producers}) > 1, f"the epoch has not turned over: {producers}"
    assert committed_values(bootstrap, out) == ["a", "b"] * committed


def _settled_status(committer: KafkaCommitter, stored: Committable) -> CommitStatus | None:
    """Return the status, once the coordinator has ended the transactions that it is ending."""

    def status() -> CommitStatus | None:
        try:
            return committer.probe(stored).status
        except Retryable:
            return None

    return eventually(status, "a status")


def test_an_id_is_created_only_if_the_coordinator_does_not_know_it(rpc: KafkaRequests) -> None:
    """With a producer id that no coordinator gives, InitProducerId never changes an id that exists."""
    name = f"t-{uuid.uuid4().hex[:10]}"

    assert rpc.create(name, FENCED_MS + 1) == "NONE"
    created = rpc.describe(name)
    assert created is not None
    assert created.timeout_ms == FENCED_MS + 1

    assert rpc.create(name, FENCED_MS) == "PRODUCER_FENCED"
    assert rpc.describe(name) == created


# ---------------------------------------------------------------- time, restarts, the client


@pytest.fixture
def quick(broker_factory: Callable[..., Broker]) -> Broker:
    """A broker that looks for timed-out transactions five times a second, to be restarted at will."""
    return broker_factory(overrides={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"})


@pytest.mark.campaign
def test_timeouts_and_restarts(quick: Broker) -> None:
    """A short timeout aborts; the longest survives a broker restart and is committed after it, by one client."""
    create_topic(quick.bootstrap, "out")
    with KafkaRequests(Cluster(quick.bootstrap), patience=60) as rpc:
        newest = rpc.end_txn_version()
        short = {version: prepared(quick.bootstrap, "out", timeout_ms=5_000) for version in {4, newest}}
        long = prepared(quick.bootstrap, "out", timeout_ms=2_147_483_547)
        for writer in short.values():
            assert settled(rpc, writer, "CompleteAbort").producer_epoch == writer.identity[1] + 1
        answers = {version: end(rpc, writer, version) for version, writer in short.items()}
        quick.stop()
        quick.start()
        seen = state(rpc, long)
        after = end(rpc, long, newest)

    assert answers == {version: "PRODUCER_FENCED" if version == 4 else "INVALID_TXN_STATE" for version in {4, newest}}
    assert (seen.state, seen.producer_id, seen.producer_epoch) == ("Ongoing", *long.identity)
    assert after == "NONE"
    assert committed_values(quick.bootstrap, "out") == ["a", "b"]


def test_dropping_a_producer_leaves_its_transaction_open(bootstrap: str, topic: Topic, rpc: KafkaRequests) -> None:
    writer = prepared(bootstrap, topic())
    name = writer.transactional_id
    del writer
    gc.collect()

    found = rpc.describe(name)
    assert found is not None
    assert found.state == "Ongoing"


def test_closing_a_producer_aborts_its_transaction(bootstrap: str, topic: Topic, rpc: KafkaRequests) -> None:
    """The trap: so a prepared producer is never closed, nor used as a context manager."""
    writer = prepared(bootstrap, topic())
    writer.producer.close()

    settled(rpc, writer, "CompleteAbort")


def test_librdkafka_ends_with_an_old_version(bootstrap: str, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """EndTxn v1: so its own commit never raises the epoch."""
    logger = logging.getLogger("librdkafka-protocol")
    with caplog.at_level(logging.DEBUG, logger.name):
        writer = prepared(bootstrap, topic(), debug="protocol", log_level=7, logger=logger)
        writer.producer.commit_transaction(PATIENCE)
        eventually(lambda: writer.producer.poll(0.05) is not None and "EndTxn" in caplog.text, "log lines")

    assert "EndTxnRequest (v1" in caplog.text


def test_librdkafka_refuses_an_endless_timeout(bootstrap: str) -> None:
    with pytest.raises(KafkaException, match="socket.timeout.ms"):
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": "x",
                "transaction.timeout.ms": 2_147_483_647,
                "socket.timeout.ms": 30_000,
                "message.timeout.ms": 30_000,
            }
        )


@pytest.mark.campaign
def test_costs(
    bootstrap: str,
    topic: Topic,
    rpc: KafkaRequests,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Median milliseconds of each step; recorded, not judged: they are the machine's."""
    out, group = topic(), f"g-{uuid.uuid4().hex[:8]}"
    spent: dict[str, list[float]] = {}

    def timed(step: str, call: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        answer = call(*args)
        spent.setdefault(step, []).append((time.perf_counter() - began) * 1000)
        return answer

    for _ in range(10):
        name = f"t-{uuid.uuid4().hex[:10]}.1.0.0"
        writer = timed("new producer and init_transactions", new_writer, bootstrap, name)
        timed("begin, produce, flush", write, writer, out, "x")
        timed("send the marker", mark, writer, out, group)
        timed("DescribeTransactions", state, rpc, writer)
        timed("OffsetFetch of the marker", rpc.marker, group, out, 0)
        timed("EndTxn", end, rpc, writer, rpc.end_txn_version())
        timed("until CompleteCommit", settled, rpc, writer, "CompleteCommit")
        timed("fence (raw InitProducerId)", rpc.fence, name, FENCED_MS)
        timed("init_transactions of a used id", new_writer, bootstrap, name)
    report = {step: f"{statistics.median(times):.1f} ms (max {max(times):.1f})" for step, times in spent.items()}
    with capsys.disabled():
        print("", *(f"{step}: {cost}" for step, cost in report.items()), sep="\n  ")
    for step, cost in report.items():
        record_property(step, cost)
