"""The committer against a coordinator at the wire: what it asks, in which order, and what it makes of each answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v11.response import MetadataResponseTopic

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc.brokers import CoordinatorKey
from kafka_eos.connectors.kafka.rpc.messages.cluster import TRANSACTION
from kafka_eos.connectors.kafka.rpc.messages.transactions import describe_transactions
from kafka_eos.connectors.kafka.rpc.transaction_status import NEVER, KafkaCommittable
from kafka_eos.connectors.kafka.rpc.twin_names import twin_of
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.core.errors import CommittableLost, Fenced, Retryable, TransientConfigError, UserError
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from tests.kafka_coordinator import (
    DESCRIBE_QUORUM,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Coordinator,
    Held,
)
from tests.scripted_broker import ScriptedBroker
from tests.waiting import PATIENCE, eventually
from tests.wire import METADATA

OWN, OTHER = JobIdentity("00000000000a"), JobIdentity("00000000000b")
NAME = f"job.{OWN}.1.0.0"
TOPIC_ID, RECREATED = str(UUID(int=1)), str(UUID(int=2))
DAY_MS = 24 * 3600 * 1000
FENCED_MS, HELD_MS = 1_009, 1_010
"""Numbers that are on clusters: marks and fences of every version so far."""
PERMIT = CommitPermit(EpochId(Epoch(4), Term(1)))
EMPTY = Held("Empty", 7, 4, 60_000, -1)
FENCED = replace(EMPTY, timeout_ms=FENCED_MS)
COMMITTED = Held("CompleteCommit", 7, 4, 60_000, -1)
ABORTING = Held("PrepareAbort", 7, 4, 60_000, 1_000)


def now_ms() -> int:
    return int(time.time() * 1000)


def prepared(**changed: int | str) -> KafkaCommittable:
    """What a writer of term 1 has prepared just now."""
    topic = "out", TOPIC_ID, 2
    ours = KafkaCommittable(NAME, 7, 3, 5, "uuid", "job.group", *topic, now_ms(), 60_000, 1, "here")
    return msgspec.structs.replace(ours, **changed)


def stored(ours: KafkaCommittable) -> Committable:
    return Committable("kafka://there", ours.payload(), 1)


@dataclass(frozen=True, slots=True)
class Side:
    """A committer of one term of the incarnation ``OWN``, the broker that it asks, and its coordinator's state."""

    committer: KafkaCommitter
    ctx: JobContext
    broker: ScriptedBroker
    at: Coordinator

    def commit(self, ours: KafkaCommittable) -> CommitOutcome:
        return self.committer.commit(PERMIT, stored(ours))

    def show_marker(self, marker: str = "uuid") -> None:
        self.at.markers["job.group", "out", 2] = marker

    def asked(self, *keys: int) -> list[int]:
        """Which of these requests were sent, in order."""
        return [request.__api_key__ for request in self.broker.seen if request.__api_key__ in keys]

    def fenced(self) -> list[str]:
        """The ids that were fenced, without those that only prove that the coordinator is current."""
        named = [each.transactional_id for each in self.broker.seen if each.__api_key__ == INIT_PRODUCER_ID]
        return [name for name in named if ".current." not in name]


Made = Callable[..., Side]


@pytest.fixture
def made() -> Iterator[Made]:
    """``made(term)``: committers of one cluster."""
    at = Coordinator()
    with ScriptedBroker(at.answers) as broker:
        broker.script(METADATA, topics(broker, ErrorCode.none))
        committers: list[KafkaCommitter] = []

        def make(term: int = 1, identity: JobIdentity | None = OWN) -> Side:
            ctx = JobContext("job", Term(term), {}, identity)
            committers.append(KafkaCommitter(Cluster(broker.address), ctx, PATIENCE))
            return Side(committers[-1], ctx, broker, at)

        yield make
        for committer in committers:
            committer.close()


@pytest.fixture
def side(made: Made) -> Side:
    return made()


# ---------------------------------------------------------------- one cluster, whatever its address

THERE = "another cluster"


@pytest.mark.parametrize("scope", ["kafka://localhost:9092", "kafka://ada@broker-2:9092,broker-3:9092"])
def test_what_is_on_this_cluster_is_recognized_under_any_address(side: Side, scope: str) -> None:
    side.committer._patience = 0.3
    assert side.committer.has_prepared(msgspec.structs.replace(stored(prepared()), scope=scope))
    assert not side.committer.has_prepared(Committable(scope, prepared(cluster_id=THERE).payload(), 1))


def test_a_cluster_without_an_id_recognizes_nothing(side: Side) -> None:
    """Two such clusters have the same one, and one of them would call lost what the other has."""
    side.broker.cluster_id = None
    assert not side.committer.has_prepared(
        msgspec.structs.replace(stored(prepared(cluster_id="")), scope="kafka://elsewhere:9092")
    )


def test_a_cluster_that_is_reached_for_a_moment_does_not_decide_where_output_is(side: Side) -> None:
    """A start with other bootstrap servers would end: the pipeline seems to have no sink on that cluster any more."""
    side.broker.cluster_id = THERE
    metadata = side.broker._self

    def lead_back(request: object) -> object:
        answer = metadata(request)
        side.broker.cluster_id = "here"
        return answer

    side.broker.script(METADATA, lead_back)

    assert side.committer.has_prepared(msgspec.structs.replace(stored(prepared()), scope="kafka://elsewhere:9092"))


def test_a_look_for_output_of_another_cluster_does_not_bind_a_committer_to_it(side: Side) -> None:
    side.committer._patience = 0.3
    side.at.ids[NAME] = Held()

    assert not side.committer.has_prepared(stored(prepared(cluster_id=THERE)))
    assert side.committer.probe(stored(prepared())).status is CommitStatus.PREPARED


def test_what_another_connector_prepared_is_not_on_this_cluster(side: Side) -> None:
    assert not side.committer.has_prepared(Committable("file:/out", {"cluster_id": "here"}, 1))


def test_a_cluster_that_does_not_know_a_transaction_of_another_one_proves_nothing(side: Side) -> None:
    """The address leads to another cluster now: nothing of the epoch may be called lost there, nor committed."""
    elsewhere = stored(prepared(cluster_id=THERE))
    side.committer._rpc._patience = 0.3

    for look in (
        lambda: side.committer.probe(elsewhere),
        lambda: side.committer.commit(PERMIT, elsewhere),
        lambda: side.committer.find_missing_commits(side.ctx, PERMIT.epoch, [elsewhere]),
    ):
        with pytest.raises(
            TransientConfigError, match=f"connects to the Kafka cluster here, .* on the cluster {THERE}"
        ):
            look()
    assert side.asked(DESCRIBE_TRANSACTIONS, END_TXN) == []


def test_an_address_that_leads_to_another_cluster_for_a_moment_ends_nothing(side: Side) -> None:
    """The address was resolved to another cluster when the committer first connected."""
    side.at.ids[NAME] = Held()
    side.broker.cluster_id = THERE
    side.committer.register(side.ctx)
    metadata = side.broker._self

    def lead_back(request: object) -> object:
        answer = metadata(request)
        side.broker.cluster_id = "here"
        return answer

    side.broker.script(METADATA, lead_back)

    assert side.committer.probe(stored(prepared())).status is CommitStatus.PREPARED


def test_output_on_two_clusters_is_not_taken_for_one(side: Side) -> None:
    side.at.ids[NAME] = Held()
    side.committer.probe(stored(prepared()))
    side.broker.cluster_id = THERE

    with pytest.raises(TransientConfigError, match=f"connects to the Kafka cluster here, .* on the cluster {THERE}"):
        side.committer.probe(stored(prepared(cluster_id=THERE)))
    assert side.asked(DESCRIBE_TRANSACTIONS) == [DESCRIBE_TRANSACTIONS]


def test_a_broker_of_another_cluster_behind_the_same_address_is_not_believed(side: Side) -> None:
    side.at.ids[NAME] = Held()
    assert side.committer.probe(stored(prepared())).status is CommitStatus.PREPARED
    side.broker.cluster_id = THERE
    side.at.ids.clear()
    side.broker.hang_up()
    look = describe_transactions([NAME])

    with pytest.raises(
        Retryable, match=rf"^127\.0\.0\.1:\d+ is a broker of the Kafka cluster {THERE}, .* works with the cluster here"
    ):
        side.committer._rpc._brokers.ask(look, CoordinatorKey(TRANSACTION, NAME), time.monotonic() + PATIENCE)


# ---------------------------------------------------------------- what is known about a committable


def test_what_is_open_is_prepared_until_its_timeout(side: Side) -> None:
    side.at.ids[NAME] = Held(timeout_ms=3_600_000, started_at=now_ms())

    probe = side.committer.probe(stored(prepared()))

    assert probe.status is CommitStatus.PREPARED
    assert 3_000 < probe.expires_in <= 3_600
    assert probe.detail == f"transaction {NAME} (producer 7, epoch 3): Ongoing under producer 7 epoch 3"


@pytest.mark.parametrize("behind_ms", [2 * DAY_MS, 61_000])
def test_with_a_wrong_clock_here_the_clusters_decides_when_a_transaction_expires(side: Side, behind_ms: int) -> None:
    """This machine is ahead by more than the timeout: every epoch with two transactions would be revoked."""
    side.at.clock_ms = lambda: now_ms() - behind_ms
    side.at.ids[NAME] = Held(timeout_ms=60_000, started_at=now_ms() - behind_ms)

    assert side.committer.probe(stored(prepared())).expires_in > 60.0 - PATIENCE


def test_with_a_clock_that_is_behind_what_expires_soon_is_found(side: Side) -> None:
    """Otherwise an epoch would be split: its last transactions would expire while the first is committed."""
    ahead_ms = 2 * 3_600_000
    side.at.clock_ms = lambda: now_ms() + ahead_ms
    side.at.ids[NAME] = Held(timeout_ms=3_600_000, started_at=now_ms() + ahead_ms - 3_595_000)

    assert side.committer.probe(stored(prepared())).expires_in <= 5.0 + PATIENCE


def test_without_the_clusters_clock_the_time_since_the_preparation_counts(side: Side) -> None:
    """This machine is two hours behind."""
    side.at.ids[NAME] = Held(timeout_ms=3_600_000, started_at=now_ms() + 7_200_000)

    assert side.committer.probe(stored(prepared(prepared_at=now_ms() - 3_595_000))).expires_in <= 5.0


def test_a_clock_that_cannot_be_read_does_not_delay_a_commit(side: Side) -> None:
    side.committer._rpc._patience = 1.0
    side.at.quorum_error = ErrorCode.not_controller
    side.at.clock_ms = now_ms
    side.at.ids[NAME] = Held(timeout_ms=3_600_000, started_at=now_ms())

    for _ in range(2):
        assert 3_000 < side.committer.probe(stored(prepared())).expires_in <= 3_600
    asked = side.asked(DESCRIBE_QUORUM, DESCRIBE_TRANSACTIONS)
    assert asked[-2:] == [DESCRIBE_QUORUM, DESCRIBE_TRANSACTIONS], "it is measured once a minute"


def test_the_time_for_which_this_machine_slept_counts(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still meanwhile, and the clock of the machine is set when it wakes up."""
    side.at.clock_ms = now_ms
    side.at.ids[NAME] = Held(timeout_ms=3_600_000, started_at=now_ms())
    assert side.committer.probe(stored(prepared())).expires_in > 3_000

    before = time.time
    monkeypatch.setattr(time, "time", lambda: before() + 3_595)

    assert side.committer.probe(stored(prepared())).expires_in <= 5.0


def test_what_expires_soon_does_so_also_if_the_cluster_does_not_tell_its_time(side: Side) -> None:
    side.at.ids[NAME] = Held(timeout_ms=60_000, started_at=now_ms() - DAY_MS)

    assert side.committer.probe(stored(prepared())).expires_in == 0.0


def test_what_is_open_without_a_timeout_stays_so(side: Side) -> None:
    side.at.ids[NAME] = Held(timeout_ms=NEVER)

    assert side.committer.probe(stored(prepared())).expires_in == float("inf")


@pytest.mark.parametrize("held", [None, COMMITTED, EMPTY])
def test_its_marker_shows_that_it_was_committed_whoever_has_its_id_now(side: Side, held: Held | None) -> None:
    side.at.ids.update({NAME: held} if held else {})
    side.show_marker()

    assert side.committer.probe(stored(prepared())).status is CommitStatus.COMMITTED


def test_the_marker_is_read_after_the_state(side: Side) -> None:
    """Read before it, it could have come in between, and the output would pass for lost."""
    side.at.ids[NAME] = EMPTY

    side.committer.probe(stored(prepared()))

    assert side.asked(DESCRIBE_TRANSACTIONS, OFFSET_FETCH) == [DESCRIBE_TRANSACTIONS, OFFSET_FETCH] * 2


# ---------------------------------------------------------------- a coordinator that was replaced and does not know it


def outdated(side: Side, key: int, write: int, answer: Callable[[object], object]) -> None:
    """Committed in truth; the coordinator behind ``key`` knows nothing of it until a ``write`` is refused."""
    side.at.ids[NAME] = COMMITTED
    side.show_marker()
    before, after = side.at.answers[key], Coordinator().answers[key]
    refused: list[bool] = []

    def prove(request: object) -> object:
        if not refused:
            refused.append(True)
            return answer(request)
        return side.at.answers[write](request)

    side.broker.script(key, lambda request: (before if refused else after)(request))
    side.broker.script(write, prove)


def test_a_group_coordinator_that_was_replaced_does_not_lose_a_commit(made: Made) -> None:
    """It answers from memory, and has no marker: the only proof, once a new producer has taken the id."""
    side = made()
    outdated(side, OFFSET_FETCH, OFFSET_COMMIT, lambda request: side.at.stored(request, ErrorCode.not_coordinator))
    side.at.ids[NAME] = EMPTY

    assert side.committer.probe(stored(prepared())).status is CommitStatus.COMMITTED


def test_a_transaction_coordinator_that_was_replaced_does_not_lose_a_commit(side: Side) -> None:
    """The commit is decided, and its marker is not written yet: only a current coordinator shows that."""
    outdated(side, DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID, lambda request: side.at.fenced(ErrorCode.not_coordinator))
    side.at.markers.clear()

    assert side.committer.probe(stored(prepared())).status is CommitStatus.COMMITTED


def test_a_coordinator_that_cannot_prove_that_it_is_current_gives_no_answer(side: Side) -> None:
    side.committer._rpc._patience = 2.0
    side.broker.script(OFFSET_COMMIT, lambda request: side.at.stored(request, ErrorCode.request_timed_out))
    side.broker.script(METADATA, topics(side.broker, ErrorCode.none))

    with pytest.raises(Retryable, match="OffsetFetch for 'job.group' .* no response in 2 s"):
        side.committer.probe(stored(prepared()))


def deleted_topic(side: Side) -> None:
    """Delete the topic of the marker. Without it a group stores no offset, so no coordinator can prove its state."""
    side.committer._rpc._patience = 0.3
    unknown = ErrorCode.unknown_topic_or_partition
    side.broker.script(OFFSET_COMMIT, lambda request: side.at.stored(request, unknown))
    side.broker.script(METADATA, topics(side.broker, unknown))


def topics(broker: ScriptedBroker, error: ErrorCode, topic_id: str = TOPIC_ID) -> Callable[[Any], object]:
    """Return a handler whose metadata shows this error and this id for every topic."""
    brokers, topic = broker._self, MetadataResponseTopic

    def describe(request: Any) -> object:
        names = [each.name for each in request.topics or ()]
        seen = tuple(topic(error_code=error, name=name, topic_id=UUID(topic_id), partitions=()) for name in names)
        return replace(brokers(request), topics=seen)

    return describe


@pytest.mark.parametrize(("held", "version"), [(None, 5), (EMPTY, 5), (Held(), 4)])
def test_what_is_lost_with_its_topic_is_unknown(side: Side, held: Held | None, version: int) -> None:
    """Otherwise the job would retry forever. The transaction may be committed, with output in other topics."""
    deleted_topic(side)
    side.at.ids.update({NAME: held} if held else {})

    probe = side.committer.probe(stored(prepared(end_txn_version=version)))

    assert probe.status is CommitStatus.UNKNOWN
    assert "the topic out, which would show whether it was committed, was deleted or recreated" in probe.detail


@pytest.mark.parametrize(("held", "version"), [(None, 5), (EMPTY, 5), (Held(), 4)])
def test_what_is_lost_with_its_topic_stays_unknown_when_the_topic_is_created_again(
    side: Side, held: Held | None, version: int
) -> None:
    """The new topic has no marker, whether the transaction was committed or not: it would pass for lost."""
    side.at.ids.update({NAME: held} if held else {})
    ours = prepared(end_txn_version=version)
    expected = CommitStatus.LOST if version == 5 else CommitStatus.PREPARED
    assert side.committer.probe(stored(ours)).status is expected

    side.broker.script(METADATA, topics(side.broker, ErrorCode.none, RECREATED))

    assert side.committer.probe(stored(ours)).status is CommitStatus.UNKNOWN
    with pytest.raises(CommittableLost, match="the topic out, .* was deleted or recreated; look for its records"):
        side.commit(ours)
    side.show_marker()
    assert side.committer.probe(stored(ours)).status is CommitStatus.COMMITTED


@pytest.mark.parametrize("held", [COMMITTED, Held()])
def test_what_the_coordinator_knows_needs_no_topic(side: Side, held: Held) -> None:
    deleted_topic(side)
    side.at.ids[NAME] = held

    assert side.committer.probe(stored(prepared())).status is not CommitStatus.UNKNOWN


def test_with_v4_an_open_transaction_is_committed_only_if_a_current_coordinator_has_no_marker(side: Side) -> None:
    """A zombie may have opened another one under the same id and epoch after the commit of ours."""
    outdated(side, OFFSET_FETCH, OFFSET_COMMIT, lambda request: side.at.stored(request, ErrorCode.not_coordinator))
    side.at.ids[NAME] = Held()

    assert side.commit(prepared(end_txn_version=4)) is CommitOutcome.ALREADY
    assert side.asked(END_TXN) == []


def test_a_proof_changes_nothing_of_the_id_and_the_group(side: Side) -> None:
    with pytest.raises(CommittableLost):
        side.commit(prepared())

    assert NAME not in side.at.ids
    groups = [each.group_id for each in side.broker.seen if each.__api_key__ == OFFSET_COMMIT]
    assert groups == [twin_of("job.group")]


def test_nobody_asks_for_the_marker_of_what_is_open(side: Side) -> None:
    side.at.ids[NAME] = Held()

    side.committer.probe(stored(prepared()))

    assert side.asked(OFFSET_FETCH) == []


def test_with_v4_what_is_open_may_be_a_zombies_under_the_same_id_and_epoch(side: Side) -> None:
    side.at.ids[NAME] = Held()
    side.show_marker()

    assert side.committer.probe(stored(prepared(end_txn_version=4))).status is CommitStatus.COMMITTED


@pytest.mark.parametrize("missing", [ErrorCode.group_id_not_found, ErrorCode.unknown_topic_id])
def test_a_group_or_a_topic_that_is_not_there_has_no_marker(side: Side, missing: ErrorCode) -> None:
    side.at.group_error = missing

    assert side.committer.probe(stored(prepared())).status is CommitStatus.LOST


@pytest.mark.parametrize("part", ["group_error", "partition_error"])
def test_a_marker_that_cannot_be_read_is_not_taken_for_one_that_is_not_there(side: Side, part: str) -> None:
    """Or output that is committed would pass for lost."""
    side.show_marker()
    setattr(side.at, part, ErrorCode.invalid_request)

    with pytest.raises(UserError, match="OffsetFetch of group job.group was refused"):
        side.committer.probe(stored(prepared()))


def test_an_offset_that_is_not_committed_is_no_marker(side: Side) -> None:
    side.show_marker()
    side.at.marked_at = -1

    assert side.committer.probe(stored(prepared())).status is CommitStatus.LOST


def test_what_left_no_trace_is_lost(side: Side) -> None:
    probe = side.committer.probe(stored(prepared()))

    assert probe.status is CommitStatus.LOST
    assert "unknown to the coordinator; its marker never became visible" in probe.detail


def test_what_left_no_trace_and_is_old_is_unknown(side: Side) -> None:
    old = prepared(prepared_at=now_ms() - 6 * DAY_MS - 1_000)

    assert side.committer.probe(stored(old)).status is CommitStatus.UNKNOWN
    assert "may have forgotten" in side.committer.probe(stored(old)).detail
    younger = prepared(prepared_at=now_ms() - 5 * DAY_MS)
    assert side.committer.probe(stored(younger)).status is CommitStatus.LOST


def test_with_a_clock_that_is_behind_what_is_old_is_unknown_too(side: Side) -> None:
    """Its marker may have been deleted: it would be revoked although it was committed."""
    side.at.clock_ms = lambda: now_ms() + 2 * DAY_MS

    assert side.committer.probe(stored(prepared(prepared_at=now_ms() - 5 * DAY_MS))).status is CommitStatus.UNKNOWN


def test_what_the_coordinator_is_still_ending_is_asked_again(side: Side) -> None:
    side.at.ids[NAME] = ABORTING

    with pytest.raises(Retryable, match="still finishing it"):
        side.committer.probe(stored(prepared()))


def test_a_state_that_cannot_be_read_is_not_taken_for_one_that_is_forgotten(side: Side) -> None:
    side.at.described[NAME] = ErrorCode.invalid_request

    with pytest.raises(UserError, match=f"DescribeTransactions of {NAME} was refused"):
        side.committer.probe(stored(prepared()))


# ---------------------------------------------------------------- commits


def test_what_is_prepared_is_committed_by_its_own_id_and_epoch(side: Side) -> None:
    side.at.ids[NAME] = Held()

    assert side.commit(prepared()) is CommitOutcome.COMMITTED

    (request,) = [each for each in side.broker.seen if each.__api_key__ == END_TXN]
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == (NAME, 7, 3)
    assert request.committed
    assert side.at.ids[NAME] == COMMITTED
    coordinators = {(each.key_type, *each.coordinator_keys) for each in side.broker.seen if each.__api_key__ == 10}
    assert coordinators == {(1, NAME)}, "the coordinator of that transaction is asked"


def test_a_repeated_commit_ends_nothing(side: Side) -> None:
    side.at.ids[NAME] = Held()
    side.commit(prepared())

    assert side.commit(prepared()) is CommitOutcome.ALREADY

    assert side.asked(END_TXN) == [END_TXN]


def test_a_commit_whose_marker_is_there_is_not_repeated_on_what_a_zombie_has_opened(side: Side) -> None:
    """With v4 the zombie's transaction has the very id and epoch of ours."""
    side.at.ids[NAME] = Held()
    side.show_marker()

    assert side.commit(prepared(end_txn_version=4)) is CommitOutcome.ALREADY

    assert side.asked(END_TXN) == []
    assert side.at.ids[NAME] == Held()


@pytest.mark.parametrize(
    ("held", "age_ms", "error", "said"),
    [
        (EMPTY, 0, CommittableLost, "EndTxn: not asked; now Empty under producer 7 epoch 4"),
        (None, 0, CommittableLost, "now unknown"),
        (None, 6 * DAY_MS + 1_000, CommittableLost, "may have forgotten"),
        (ABORTING, 0, Retryable, "still finishing it"),
    ],
)
def test_what_is_not_prepared_and_not_committed_is_not_ended(
    side: Side, held: Held | None, age_ms: int, error: type[Exception], said: str
) -> None:
    side.at.ids.update({NAME: held} if held else {})

    with pytest.raises(error, match=said):
        side.commit(prepared(prepared_at=now_ms() - age_ms))

    assert side.asked(END_TXN) == side.fenced() == []


def refusing(
    side: Side,
    error: ErrorCode = ErrorCode.invalid_producer_epoch,
    *,
    then: Held | None = None,
    marker: str | None = None,
) -> None:
    """EndTxn is refused, because meanwhile this came of the id."""

    def refuse(request: object) -> object:
        if then is not None:
            side.at.ids[NAME] = then
        if marker is not None:
            side.show_marker(marker)
        return side.at.ended(request, error)

    side.broker.script(END_TXN, refuse)


@pytest.mark.parametrize(
    "refusal",
    [
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    ],
)
def test_no_refusal_is_a_verdict(side: Side, refusal: ErrorCode) -> None:
    side.at.ids[NAME] = Held()
    refusing(side, refusal, then=EMPTY, marker="uuid")

    assert side.commit(prepared()) is CommitOutcome.ALREADY


def test_a_refused_commit_whose_output_is_gone_is_a_loss(side: Side) -> None:
    side.at.ids[NAME] = Held()
    refusing(side, then=EMPTY)

    with pytest.raises(CommittableLost, match="EndTxn: INVALID_PRODUCER_EPOCH; now Empty") as raised:
        side.commit(prepared())
    assert "epoch 4" in str(raised.value)
    assert "60000 ms" in str(raised.value)


def test_a_refusal_that_the_coordinator_contradicts_is_asked_again(side: Side) -> None:
    side.at.ids[NAME] = Held()
    refusing(side)

    with pytest.raises(Retryable, match="EndTxn returned INVALID_PRODUCER_EPOCH, but the coordinator shows Ongoing"):
        side.commit(prepared())


def test_an_end_that_is_under_way_is_asked_again(side: Side) -> None:
    side.at.ids[NAME] = Held()
    answers = iter([ErrorCode.concurrent_transactions] * 2)
    side.broker.script(END_TXN, lambda request: side.at.ended(request, next(answers, ErrorCode.none)))

    assert side.commit(prepared()) is CommitOutcome.COMMITTED
    assert side.asked(END_TXN) == [END_TXN] * 3


# ---------------------------------------------------------------- a commit and a fence


@pytest.mark.parametrize("repeated", [False, True])
def test_with_v4_who_commits_for_another_term_fences_it_after_the_commit(made: Made, repeated: bool) -> None:
    side = made(term=2)
    side.at.ids[NAME] = Held()
    if repeated:
        side.show_marker()

    side.commit(prepared(end_txn_version=4))

    assert side.asked(END_TXN, INIT_PRODUCER_ID) == [*([] if repeated else [END_TXN]), INIT_PRODUCER_ID]
    assert side.at.ids[NAME] == FENCED


@pytest.mark.parametrize(("term", "version"), [(1, 4), (2, 5)])
def test_nobody_else_fences(made: Made, term: int, version: int) -> None:
    side = made(term)
    side.at.ids[NAME] = Held()

    assert side.commit(prepared(end_txn_version=version)) is CommitOutcome.COMMITTED

    assert side.fenced() == []


def test_what_is_lost_is_not_fenced(made: Made) -> None:
    side = made(term=2)
    side.at.ids[NAME] = EMPTY

    with pytest.raises(CommittableLost):
        side.commit(prepared(end_txn_version=4))

    assert side.fenced() == []


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (ErrorCode.producer_fenced, Fenced, "was taken over"),
        (ErrorCode.invalid_transaction_timeout, Retryable, "could not be fenced: INVALID_TRANSACTION_TIMEOUT"),
    ],
)
def test_a_fence_that_fails_is_no_fence(side: Side, answer: ErrorCode, error: type[Exception], said: str) -> None:
    side.broker.script(INIT_PRODUCER_ID, lambda request: side.at.fenced(answer))

    with pytest.raises(error, match=said):
        side.committer.abort([NAME])


def test_who_is_told_to_abort_fences_every_id(side: Side) -> None:
    names = [NAME, f"job.{OWN}.2.0.0"]
    side.committer.abort(names)

    assert side.fenced() == names


# ---------------------------------------------------------------- what is open


def of_term(term: int, identity: JobIdentity | None = OWN, slot: int = 0) -> str:
    return f"job.{identity}.{term}.0.{slot}" if identity else f"job.{term}.0.{slot}"


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_what_has_not_ended_is_staged_whoever_wrote_it(side: Side, state: str) -> None:
    begun = Held(state, started_at=now_ms() - 100_000)
    side.at.ids |= {of_term(1): begun, of_term(9, OTHER): begun, of_term(2, None): begun, "job2.1.0.0": begun}
    side.at.ids |= {of_term(3): EMPTY, of_term(4): replace(begun, started_at=-1)}

    staged = side.committer.list_staged(side.ctx)

    assert [(each.term.n, each.identity, each.name) for each in staged] == [
        (1, OWN, of_term(1)),
        (9, OTHER, of_term(9, OTHER)),
        (2, None, of_term(2, None)),
    ]
    assert {each.detail for each in staged} == {f"{state} under producer 7 epoch 3"}
    assert all(100 <= each.age < 1_000 for each in staged)


def test_what_begins_after_it_was_listed_has_no_age(side: Side) -> None:
    side.at.ids[NAME] = Held(started_at=now_ms() + DAY_MS)

    assert [each.age for each in side.committer.list_staged(side.ctx)] == [0.0]


def test_what_has_begun_at_zero_is_open(side: Side) -> None:
    side.at.ids[NAME] = Held(started_at=0)

    assert [each.name for each in side.committer.list_staged(side.ctx)] == [NAME]


def test_a_listing_that_is_older_than_what_is_then_said_is_not_believed(side: Side) -> None:
    side.at.ids[NAME] = Held()
    listed = side.at.answers[LIST_TRANSACTIONS]

    def then_ended(request: object) -> object:
        answer = listed(request)
        side.at.ids[NAME] = replace(COMMITTED, started_at=1_000)
        return answer

    side.broker.script(LIST_TRANSACTIONS, then_ended)

    assert side.committer.list_staged(side.ctx) == []


def test_what_is_forgotten_after_it_was_listed_is_not_staged(side: Side) -> None:
    side.at.ids |= {NAME: Held(), of_term(2): Held()}
    side.at.described[NAME] = ErrorCode.transactional_id_not_found

    assert [each.name for each in side.committer.list_staged(side.ctx)] == [of_term(2)]


def test_a_broker_that_lists_everything_is_asked_about_ids_of_the_job_only(side: Side) -> None:
    side.at.goes_by_patterns = False
    side.at.ids |= {NAME: Held(), "job2.1.0.0": Held(), f"x{NAME}": Held(), f"{NAME}.1": Held()}

    assert [each.name for each in side.committer.list_staged(side.ctx)] == [NAME]

    (request,) = [each for each in side.broker.seen if each.__api_key__ == DESCRIBE_TRANSACTIONS]
    assert request.transactional_ids == (NAME,)


def test_nobody_is_asked_about_no_ids(side: Side) -> None:
    assert side.committer.list_staged(side.ctx) == []
    assert side.asked(DESCRIBE_TRANSACTIONS) == []


def test_a_list_that_is_refused_is_not_taken_for_an_empty_one(side: Side) -> None:
    side.at.listing_error = ErrorCode.invalid_request

    with pytest.raises(UserError, match="ListTransactions was refused"):
        side.committer.list_staged(side.ctx)


def test_an_id_that_cannot_be_told_for_now_is_asked_again(side: Side) -> None:
    side.at.ids |= {NAME: Held(), of_term(2): Held()}
    side.at.described |= {NAME: ErrorCode.not_coordinator, of_term(2): ErrorCode.transactional_id_not_found}
    describe = side.at.answers[DESCRIBE_TRANSACTIONS]

    def loaded_the_second_time(request: object) -> object:
        answer = describe(request)
        side.at.described.clear()
        return answer

    side.broker.script(DESCRIBE_TRANSACTIONS, loaded_the_second_time)

    assert [each.name for each in side.committer.list_staged(side.ctx)] == [NAME, of_term(2)]


def test_one_id_that_nobody_may_see_is_not_left_out(side: Side) -> None:
    side.at.ids |= {NAME: Held(), of_term(2): Held()}
    side.at.described[of_term(2)] = ErrorCode.invalid_request

    with pytest.raises(UserError, match="DescribeTransactions"):
        side.committer.list_staged(side.ctx)


# ---------------------------------------------------------------- orphans


def test_orphans_are_what_earlier_terms_of_this_incarnation_could_still_write(made: Made) -> None:
    side = made(term=3)
    for term in (1, 2, 3, 4):
        side.at.ids[of_term(term)] = Held()
    side.at.ids |= {of_term(1, OTHER): Held(), of_term(1, None): Held(), of_term(1, slot=1): COMMITTED}

    aborted = side.committer.abort_leftovers(side.ctx)

    assert aborted == [
        f"{of_term(1)} (Ongoing)",
        f"{of_term(1, slot=1)} (CompleteCommit)",
        f"{of_term(2)} (Ongoing)",
    ]
    assert side.fenced() == [of_term(1), of_term(1, slot=1), of_term(2)]


def test_what_somebody_may_still_commit_is_kept(made: Made) -> None:
    side = made(term=3)
    side.at.ids |= {of_term(1): Held(), of_term(2): Held()}

    side.committer.abort_leftovers(side.ctx, [of_term(1)])

    assert side.fenced() == [of_term(2)]


def test_what_is_fenced_is_not_fenced_again(made: Made) -> None:
    side = made(term=3)
    side.at.ids |= {of_term(1): EMPTY, of_term(2): FENCED}
    side.at.ids[of_term(2, slot=1)] = Held(timeout_ms=FENCED_MS)

    assert side.committer.abort_leftovers(side.ctx) == [f"{of_term(1)} (Empty)", f"{of_term(2, slot=1)} (Ongoing)"]
    assert side.committer.abort_leftovers(side.ctx) == []


@pytest.mark.parametrize(
    ("identity", "own"),
    [
        (OWN, [of_term(1)]),
        (None, [of_term(1, None)]),
    ],
)
def test_output_is_its_own_if_it_has_its_identity(made: Made, identity: JobIdentity | None, own: list[str]) -> None:
    side = made(3, identity)
    side.at.ids |= {of_term(1): Held(), of_term(1, OTHER): Held(), of_term(1, None): Held()}

    side.committer.abort_leftovers(side.ctx)

    assert sorted(side.fenced()) == sorted(own)


def test_who_is_closed_holds_no_connection(side: Side) -> None:
    side.committer.register(side.ctx)

    side.committer.close()

    assert side.broker.links
    eventually(lambda: all(link.fileno() < 0 for link in side.broker.links), "the broker has seen their end")


# ---------------------------------------------------------------- incarnations of one name


def incarnations(side: Side) -> dict[JobIdentity | None, IncarnationSign]:
    return {incarnation.identity: incarnation for incarnation in side.committer.list_incarnations(side.ctx)}


def mark(identity: JobIdentity) -> str:
    return f"job.{identity}"


def test_an_incarnation_is_known_by_its_ids_and_by_its_registration(side: Side) -> None:
    side.at.ids |= {mark(OWN): Held("Empty", timeout_ms=HELD_MS, started_at=-1)}
    ended = replace(COMMITTED, started_at=1_000)
    side.at.ids |= {of_term(2, OTHER): EMPTY, of_term(5, OTHER): ended, of_term(1, None): EMPTY}

    found = incarnations(side)

    assert found.keys() == {OWN, OTHER, None}
    assert (found[OWN].detail, found[OWN].term, found[OWN].state) == ("its registration", None, IncarnationState.ENDED)
    assert (found[OTHER].term, found[OTHER].state) == (Term(5), IncarnationState.ENDED)
    assert found[OTHER].detail == "2 transactional ids, 0 of them with an open transaction"
    assert {incarnation.place for incarnation in found.values()} == {f"kafka://{side.broker.address}"}
    assert {incarnation.age for incarnation in found.values()} == {None}


def test_an_incarnation_with_something_open_is_open_since_the_newest_of_it(side: Side) -> None:
    side.at.ids |= {of_term(1): Held(started_at=now_ms() - 500_000), of_term(2): EMPTY}
    side.at.ids |= {of_term(1, slot=1): Held(started_at=now_ms() - 100_000), mark(OWN): FENCED}

    (incarnation,) = side.committer.list_incarnations(side.ctx)

    assert incarnation.state is IncarnationState.OPEN
    assert incarnation.age is not None and 100 <= incarnation.age < 400
    assert incarnation.detail == "3 transactional ids, 2 of them with an open transaction"


def test_an_incarnation_whose_registration_was_taken_away_is_over(side: Side) -> None:
    side.at.ids |= {mark(OWN): FENCED, of_term(1): EMPTY, mark(OTHER): Held("Empty", timeout_ms=HELD_MS, started_at=-1)}

    found = incarnations(side)

    assert (found[OWN].state, found[OTHER].state) == (IncarnationState.OVER, IncarnationState.ENDED)


def test_what_begins_while_it_is_looked_at_has_no_age(side: Side) -> None:
    side.at.ids[NAME] = Held(started_at=now_ms() + DAY_MS)

    assert incarnations(side)[OWN].age == 0.0


def test_other_names_are_no_incarnations(side: Side) -> None:
    side.at.ids |= {"job": EMPTY, "job.x": EMPTY, "other.1.0.0": EMPTY, f"job.{OWN}.1.0": EMPTY}

    assert incarnations(side) == {}


# ---------------------------------------------------------------- marks


def test_who_holds_leaves_a_registration_once(side: Side) -> None:
    side.committer.register(side.ctx)
    side.committer.register(side.ctx)

    assert side.at.ids[mark(OWN)].timeout_ms == HELD_MS
    assert side.fenced() == [mark(OWN)]


def test_a_registration_that_was_taken_away_ends_the_incarnation(side: Side) -> None:
    side.at.ids[mark(OWN)] = FENCED

    with pytest.raises(Fenced, match="another incarnation of job 'job' took over"):
        side.committer.register(side.ctx)
    assert side.fenced() == []


def test_a_registration_that_expired_is_not_put_over_the_fence_of_who_takes_over_now(side: Side) -> None:
    """The other one retires this incarnation between the look and the write."""
    look = side.at.answers[DESCRIBE_TRANSACTIONS]

    def look_and_lose(request: object) -> object:
        seen = look(request)
        side.at.ids[mark(OWN)] = replace(FENCED, producer_id=9)
        return seen

    side.broker.script(DESCRIBE_TRANSACTIONS, look_and_lose)

    with pytest.raises(Fenced, match="another incarnation of job 'job' took over"):
        side.committer.register(side.ctx)
    assert side.at.ids[mark(OWN)].timeout_ms == FENCED_MS


def test_two_supervisors_of_an_incarnation_may_leave_its_registration_at_once(made: Made) -> None:
    side, other = made(), made(2)
    look, left = side.at.answers[DESCRIBE_TRANSACTIONS], [other]

    def look_and_wait(request: object) -> object:
        seen = look(request)
        if left:
            left.pop().committer.register(other.ctx)
        return seen

    side.broker.script(DESCRIBE_TRANSACTIONS, look_and_wait)

    side.committer.register(side.ctx)

    assert side.at.ids[mark(OWN)].timeout_ms == HELD_MS


@pytest.mark.parametrize("error", [ErrorCode.unknown_server_error, ErrorCode.kafka_storage_error])
def test_a_broker_that_fails_is_asked_again(side: Side, error: ErrorCode) -> None:
    """Its disk, or a defect of it: nothing that the user of this job has done."""
    side.at.ids[NAME] = Held()
    look, failures = side.at.answers[DESCRIBE_TRANSACTIONS], [error, error]

    def fail(request: object) -> object:
        side.at.described = {NAME: failures.pop()} if failures else {}
        return look(request)

    side.broker.script(DESCRIBE_TRANSACTIONS, fail)

    assert side.committer.probe(stored(prepared())).status is CommitStatus.PREPARED


def test_an_incarnation_without_identity_has_no_registration(made: Made) -> None:
    side = made(1, None)

    side.committer.register(side.ctx)

    assert side.broker.seen == []


# ---------------------------------------------------------------- ending another incarnation


def test_who_succeeds_takes_the_mark_first_and_fences_until_nothing_can_write(side: Side) -> None:
    """Who looks for its registration from then on finds it gone, and begins nothing that a later look would miss."""
    side.at.ids |= {mark(OTHER): Held("Empty", timeout_ms=HELD_MS, started_at=-1), of_term(1, OTHER): Held()}
    side.at.ids |= {of_term(2, OTHER): EMPTY, of_term(1): Held(), of_term(1, None): Held()}

    assert side.committer.retire(side.ctx, OTHER) == [f"{of_term(1, OTHER)} (Ongoing)", f"{of_term(2, OTHER)} (Empty)"]

    assert side.fenced() == [mark(OTHER), of_term(1, OTHER), of_term(2, OTHER)]
    assert side.at.ids[mark(OTHER)].timeout_ms == FENCED_MS
    assert side.at.ids[of_term(1)] == side.at.ids[of_term(1, None)] == Held()


def test_output_without_an_identity_is_ended_without_a_registration(side: Side) -> None:
    side.at.ids |= {of_term(1, None): Held(), of_term(1): Held()}

    assert side.committer.retire(side.ctx, None) == [f"{of_term(1, None)} (Ongoing)"]

    assert side.fenced() == [of_term(1, None)]


def test_a_producer_that_starts_meanwhile_is_in_the_next_look(side: Side) -> None:
    side.at.ids[of_term(1, OTHER)] = Held()
    listed, later = side.at.answers[LIST_TRANSACTIONS], [of_term(2, OTHER)]

    def then_another(request: object) -> object:
        answer = listed(request)
        side.at.ids.update({later.pop(): Held()} if later else {})
        return answer

    side.broker.script(LIST_TRANSACTIONS, then_another)

    assert side.committer.retire(side.ctx, OTHER) == [
        f"{of_term(1, OTHER)} (Ongoing)",
        f"{of_term(2, OTHER)} (Ongoing)",
    ]


def test_an_incarnation_that_goes_on_all_the_same_is_said_so(side: Side) -> None:
    listed = side.at.answers[LIST_TRANSACTIONS]
    looks = 0

    def always_another(request: object) -> object:
        nonlocal looks
        looks += 1
        side.at.ids[of_term(1, OTHER, looks)] = Held()
        return listed(request)

    side.broker.script(LIST_TRANSACTIONS, always_another)

    with pytest.raises(Retryable, match=f"incarnation {OTHER} of job 'job' still runs"):
        side.committer.retire(side.ctx, OTHER)
    assert looks == 20
