"""The committer of prepared transactions, from any process: probe, commit, and abort what no manifest names.

I/O around ``transaction_status``: gather facts, derive the status, carry out the result. Only a raw EndTxn ends a
prepared transaction, in normal operation and in recovery alike.
Rule: an ambiguous response is retried or rejected, never taken for success.

After a crash the next start probes and commits again. Whether an EndTxn was carried out shows at the coordinator or by
the marker. A repeated fence changes nothing that is committed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from kafka_eos.abc.committer import (
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
    OutputOwner,
    Probe,
    StagedOutput,
)
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import (
    IncarnationSign,
    IncarnationState,
    SupportsLossCheck,
    SupportsRegistration,
    taken_over,
)
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.client.cluster import SCHEME, Cluster
from kafka_eos.connectors.kafka.job_names import TransactionalId
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.brokers import OtherCluster
from kafka_eos.connectors.kafka.rpc.transaction_status import (
    KafkaCommittable,
    TransactionDescription,
    TransactionStatus,
    derive_status,
    expires_in,
    needs_marker,
    timeout_of,
)
from kafka_eos.core.errors import CommittableLost, CorruptCheckpoint, Fenced, Retryable, TransientConfigError
from kafka_eos.core.ids import EpochId, JobIdentity

FENCED_MS: Final = 1_009
"""The transaction timeout that a fence sets on an id, in milliseconds: an Empty id that has it is already fenced."""

REGISTERED_MS: Final = 1_010
"""The transaction timeout that means that the incarnation is registered, in milliseconds."""

_LOOKS: Final = 20
"""Most listings of an incarnation's output while it is being ended, before an error reports that it still runs."""

_UNENDED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class _TransactionFacts(Struct, frozen=True):
    verdict: TransactionStatus
    seen: TransactionDescription | None
    marker_deleted: bool
    """True if the topic of the marker does not exist any more, or was recreated."""


class KafkaCommitter(SupportsRegistration, SupportsLossCheck, Committer):
    """The committer of one cluster. Each call may be repeated, by any process that has the manifest."""

    def __init__(self, cluster: Cluster, ctx: JobContext, patience: float = 5.0) -> None:
        self._ctx = ctx
        self._cluster, self._patience = cluster, patience
        self._place = cluster.scope
        self._rpc = KafkaRequests(cluster, patience)

    def has_prepared(self, committable: Committable) -> bool:
        """Return whether the committable is on this cluster, under any bootstrap servers. See ``Committer``.

        The first broker may belong to another cluster for a moment, so brokers of the right one are sought for a while.
        """
        if not committable.scope.startswith(SCHEME):
            return False
        wanted = KafkaCommittable.from_payload(committable.payload).cluster_id
        if wanted == "":  # its brokers reported no id, which identifies no cluster
            return False
        with KafkaRequests(self._cluster, self._patience) as rpc:  # what is found must not bind this committer
            try:
                rpc.expect_cluster(wanted)
            except OtherCluster:
                return False
        return True

    def read_owner(self, committable: Committable) -> OutputOwner:
        """Return the owner by the transactional id. The marker must be of the same owner, see ``Committer``."""
        prepared = KafkaCommittable.from_payload(committable.payload)
        of = TransactionalId.parse(prepared.transactional_id)
        if of is None or of.term.n != prepared.term or not names.is_marker_group(prepared.marker_group, of):
            raise CorruptCheckpoint(
                f"{_name(prepared)} with the marker group {prepared.marker_group!r} was not prepared by a job: another "
                "program has written to the checkpoints"
            )
        return OutputOwner(f"transaction {of}", of.job, of.identity, of.term)

    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """Raise TransientConfigError if the bootstrap servers lead to another cluster than before.

        See ``SupportsLossCheck``. Whether a cluster has lost records that it had acknowledged is not visible.
        """
        for committable in committables:
            self._parse(committable)
        return None

    def _parse(self, committable: Committable) -> KafkaCommittable:
        """Return the payload, and use brokers of its cluster only: another one would not know its transaction.

        Raise TransientConfigError if only another cluster is reached.
        """
        prepared = KafkaCommittable.from_payload(committable.payload)
        try:
            self._rpc.expect_cluster(prepared.cluster_id)
        except OtherCluster as other:
            raise TransientConfigError(
                f"{self._place} connects to the Kafka cluster {other.cluster_id}, but the output of "
                f"this job is on the cluster {prepared.cluster_id} ({_name(prepared)}). Set "
                "bootstrap_servers to brokers of that cluster. To continue on this cluster instead, "
                "start from a savepoint in another directory: --checkpoint-dir, --from and "
                "--take-over"
            ) from other
        return prepared

    def probe(self, committable: Committable) -> Probe:
        prepared = self._parse(committable)
        facts = self._probe_transaction(prepared)
        detail = f"{_name(prepared)}: {facts.seen or 'unknown to the coordinator'}"
        match facts.verdict:
            case TransactionStatus.PREPARED if facts.seen is not None:
                return Probe(
                    CommitStatus.PREPARED, detail, self._expires_in(prepared, facts.seen), timeout_of(facts.seen)
                )
            case TransactionStatus.COMMITTED:
                return Probe(CommitStatus.COMMITTED, detail)
            case TransactionStatus.LOST:
                return Probe(CommitStatus.LOST, f"{detail}; its marker never became visible, so it was aborted")
            case TransactionStatus.UNKNOWN:
                return Probe(CommitStatus.UNKNOWN, _forgotten(prepared, facts.marker_deleted))
        raise Retryable(f"{detail}: the coordinator is still finishing it")

    def _expires_in(self, prepared: KafkaCommittable, seen: TransactionDescription) -> float:
        """Return the seconds until the coordinator aborts an open transaction, by the cluster's clock if it is known.

        This machine's clock may be wrong. If it is ahead, every epoch would be revoked; if it is behind, an epoch would
        be committed while its last transactions expire. If only this clock is known, the time since the preparation is
        added to the start of the transaction, which was not later.
        """
        if (latest := self._rpc.latest_time()) is not None:
            return expires_in(seen, int(latest * 1000))
        now = _now_ms()
        return expires_in(seen, max(now, seen.started_at + now - prepared.prepared_at))

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        """Send EndTxn; see ``Committer``.

        The coordinator is queried first, in normal operation and in recovery alike. That takes a millisecond, detects a
        repeated commit, and prevents a v4 commit from ending a zombie's transaction.
        """
        prepared = self._parse(committable)
        facts = self._probe_transaction(prepared)
        outcome = CommitOutcome.ALREADY
        if facts.verdict is TransactionStatus.PREPARED:
            outcome = self._end(permit, prepared)
        else:
            self._raise_unless_committable(permit, prepared, facts)
        if prepared.end_txn_version < 5 and prepared.term != self._ctx.term.n:
            # v4 keeps the epoch: a zombie could open a new transaction under it, and a repeated commit would
            # then commit that one half-written. Engines build committers before they take a term: they always fence.
            self._fence(prepared.transactional_id)
        return outcome

    def _end(self, permit: CommitPermit, prepared: KafkaCommittable) -> CommitOutcome:
        answer = self._rpc.end(
            prepared.transactional_id,
            prepared.producer_id,
            prepared.producer_epoch,
            commit=True,
            version=prepared.end_txn_version,
        )
        if answer == "NONE":
            return CommitOutcome.COMMITTED
        facts = self._probe_transaction(prepared)
        if facts.verdict is TransactionStatus.COMMITTED:
            return CommitOutcome.ALREADY
        self._raise_unless_committable(permit, prepared, facts, answer)
        raise Retryable(f"{_name(prepared)}: EndTxn returned {answer}, but the coordinator shows {facts.seen}")

    def _raise_unless_committable(
        self, permit: CommitPermit, prepared: KafkaCommittable, facts: _TransactionFacts, answer: str = "not asked"
    ) -> None:
        """Raise the error of a lost, unknown or pending transaction."""
        if facts.verdict is TransactionStatus.LOST:
            raise CommittableLost(
                f"epoch {permit.epoch}: {_name(prepared)} was aborted by the coordinator (EndTxn: "
                f"{answer}; now {facts.seen or 'unknown'}): its transaction timeout of "
                f"{prepared.timeout_ms} ms passed, or another process fenced it. The epoch is "
                "decided, but this part of its output is lost."
            )
        if facts.verdict is TransactionStatus.UNKNOWN:
            raise CommittableLost(f"epoch {permit.epoch}: {_forgotten(prepared, facts.marker_deleted)}")
        if facts.verdict is TransactionStatus.RETRY:
            raise Retryable(f"{_name(prepared)}: the coordinator is still finishing it ({facts.seen})")

    def _probe_transaction(self, prepared: KafkaCommittable) -> _TransactionFacts:
        """Return the status. The transaction counts as lost only after both coordinators have proved that they are
        current."""
        facts = self._read_transaction(prepared, current=False)
        if facts.verdict is TransactionStatus.UNPROVEN:
            return self._read_transaction(prepared, current=True)
        return facts

    def _read_transaction(self, prepared: KafkaCommittable, *, current: bool) -> _TransactionFacts:
        """Read the coordinator's state, then the marker, and derive the status."""
        seen = self._rpc.describe(prepared.transactional_id, current=current)
        marker, deleted = None, False
        if needs_marker(prepared, seen):
            # With v4 a zombie's transaction looks like ours; only a current group coordinator can tell them apart.
            marker, deleted = self._read_marker(prepared, current or prepared.end_txn_version < 5)
        age = self._find_age(prepared) if current else 0.0
        return _TransactionFacts(derive_status(prepared, seen, marker, age, current, deleted), seen, deleted)

    def _find_age(self, prepared: KafkaCommittable) -> float:
        """Return the seconds since a transaction was prepared, by this machine's clock or the cluster's: the one that
        is behind does not count."""
        return max(time.time(), self._rpc.latest_time() or 0.0) - prepared.prepared_at / 1000

    def _read_marker(self, prepared: KafkaCommittable, current: bool) -> tuple[str | None, bool]:
        """Return the marker, and whether the marker of this transaction may have been deleted with its topic.

        Without the topic no coordinator can prove that it is current. A recreated topic has another id.
        """
        topic = prepared.marker_topic
        try:
            marker = self._rpc.marker(prepared.marker_group, topic, prepared.marker_partition, current=current)
        except Retryable:
            if self._rpc.topic(topic) is None:
                return None, True
            raise
        if marker == prepared.uuid or not current:
            return marker, False
        return marker, self._rpc.topic_ids([topic])[topic] != {prepared.marker_topic_id}

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """Return every open transaction of any incarnation of the job's name, in any term."""
        now = _now_ms()
        return [
            StagedOutput(of.term, str(of), str(seen), max(0.0, (now - seen.started_at) / 1000), of.identity)
            for of, seen in self._described(names.ids_of_all(ctx.job), _UNENDED)
            if _open(seen)
        ]

    def abort_leftovers(self, ctx: JobContext, kept: Collection[str] = ()) -> Sequence[str]:
        """Fence every id of this incarnation's earlier terms that could still write, which aborts its open transaction.

        Ids in ``kept`` are not fenced: their transactions may still have to be committed.
        """
        own = self._described(names.ids(ctx.job, ctx.identity))
        return self._fence_all(of for of in own if of[0].term < ctx.term and str(of[0]) not in kept)

    def abort(self, names: Sequence[str]) -> None:
        """Fence these ids, whatever their term: their open transactions are aborted, their producers rejected."""
        for name in names:
            self._fence(name)

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List incarnations by the coordinators' ids. Coordinators forget an unused id, after a week by default."""
        found: dict[JobIdentity | None, list[tuple[TransactionalId, TransactionDescription]]] = {}
        over: set[JobIdentity] = set()
        listed = self._rpc.described(names.ids_and_marks(ctx.job))
        for name, seen in sorted(listed.items()):
            if (of := TransactionalId.parse(name)) is not None:
                found.setdefault(of.identity, []).append((of, seen))
            elif (registered := names.parse_registration_id(name)) is not None:
                found.setdefault(registered, [])
                over |= {registered} if seen.timeout_ms == FENCED_MS else set()
        return [_build_sign(identity, ids, identity in over, self._place) for identity, ids in found.items()]

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation with an id that has a special transaction timeout; another timeout means that it was
        retired."""
        if ctx.identity is None:
            return
        name = names.registration_id(ctx.job, ctx.identity)
        seen = self._rpc.describe(name)
        if seen is None:  # never registered, or not used for a week
            error = self._rpc.create(name, REGISTERED_MS)
            if error == "NONE":
                return
            # Another process has created it meanwhile: a supervisor of this incarnation, or one that retires it.
            seen = self._rpc.describe(name)
            if seen is None:
                raise Retryable(f"{name} could not be registered: {error}")
        if seen.timeout_ms != REGISTERED_MS:
            raise Fenced(taken_over(ctx, self._place))

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Fence an incarnation's ids until a listing finds none that could write: a later producer is in the next
        listing."""
        if identity is not None:
            self._fence(names.registration_id(ctx.job, identity))
        ended: list[str] = []
        for _ in range(_LOOKS):
            more = self._fence_all(self._described(names.ids(ctx.job, identity)))
            if not more:
                return ended
            ended += more
        raise Retryable(f"incarnation {identity or 'without identity'} of job {ctx.job!r} still runs: stop it")

    def _described(
        self, pattern: str, states: Sequence[str] = ()
    ) -> list[tuple[TransactionalId, TransactionDescription]]:
        listed = sorted(self._rpc.described(pattern, states).items())
        return [(of, seen) for name, seen in listed if (of := TransactionalId.parse(name)) is not None]

    def _fence_all(self, ids: Iterable[tuple[TransactionalId, TransactionDescription]]) -> list[str]:
        """Fence the ids that are not fenced yet; return them, with their previous states."""
        done = []
        for of, seen in ids:
            if (seen.state, seen.timeout_ms) != ("Empty", FENCED_MS):
                self._fence(str(of))
                done.append(f"{of} ({seen.state})")
        return done

    def _fence(self, transactional_id: str, timeout_ms: int = FENCED_MS) -> None:
        error = self._rpc.fence(transactional_id, timeout_ms)
        if error == "PRODUCER_FENCED":
            raise Fenced(f"{transactional_id} was taken over while this process fenced it")
        if error != "NONE":
            raise Retryable(f"{transactional_id} could not be fenced: {error}")

    def close(self) -> None:
        self._rpc.close()


def _open(seen: TransactionDescription) -> bool:
    """Return whether a transaction has not ended; a listing may be older than the description of an id."""
    return seen.started_at >= 0 and seen.state in _UNENDED


def _build_sign(
    identity: JobIdentity | None, ids: Sequence[tuple[TransactionalId, TransactionDescription]], over: bool, place: str
) -> IncarnationSign:
    """Return the sign of one incarnation, from its registration and its ids."""
    since = [seen.started_at for _, seen in ids if _open(seen)]
    found = f"{len(ids)} transactional ids, {len(since)} of them with an open transaction"
    detail = found if ids else "its registration"
    age = max(0.0, (_now_ms() - max(since)) / 1000) if since else None
    state = IncarnationState.OPEN if since else IncarnationState.OVER if over else IncarnationState.ENDED
    return IncarnationSign(identity, place, detail, max((of.term for of, _ in ids), default=None), state, age)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _name(prepared: KafkaCommittable) -> str:
    return f"transaction {prepared.transactional_id} (producer {prepared.producer_id}, epoch {prepared.producer_epoch})"


def _forgotten(prepared: KafkaCommittable, deleted: bool) -> str:
    """Return the reason for which the outcome is unknown, and where to look for the output."""
    reason = (
        f"is not known to the cluster, and the topic {prepared.marker_topic}, which would show whether it was "
        "committed, was deleted or recreated"
        if deleted
        else "was prepared so long ago that the cluster may have forgotten whether it was committed "
        "(offsets.retention.minutes, transactional.id.expiration.ms)"
    )
    return (
        f"{_name(prepared)} {reason}; look for its records in the output topics "
        f"(header kafka_eos, term {prepared.term})"
    )
