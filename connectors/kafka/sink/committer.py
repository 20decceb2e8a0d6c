"""Finishes prepared transactions from any process: probe, commit, and abort what no manifest knows.

I/O around ``transactions``: gather facts, ask the table, carry out the answer. Only a raw EndTxn ends a prepared
transaction, in the normal path and in recovery alike.

Rule: an answer that cannot be told apart is asked again or refused, never taken for success.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Staged, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life, LifeState, taken_over
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.job_names import TransactionalId
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.transaction_status import (
    Description,
    Transaction,
    Verdict,
    expires_in,
    judged,
    needs_marker,
    timeout_of,
)
from kafka_eos.core.errors import CommittableLost, Fenced, Retryable
from kafka_eos.core.ids import JobIdentity

FENCED_MS: Final = 1_009
"""Transaction timeout that a fence leaves on an id, in milliseconds: an Empty id that has it needs no fence again."""

HELD_MS: Final = 1_010
"""Transaction timeout of the mark of a life that nobody has taken away."""

_LOOKS: Final = 20
"""At output of a life that is being ended, before somebody is told that it goes on all the same."""

_UNENDED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True, slots=True)
class _Facts:
    verdict: Verdict
    seen: Description | None


class KafkaCommitter:
    """The committer of one cluster. Everything may be repeated, by any process that has the manifest."""

    def __init__(self, cluster: Cluster, ctx: JobContext, patience: float = 5.0) -> None:
        self._ctx, self._place, self._rpc = ctx, cluster.scope, KafkaRequests(cluster, patience)

    def probe(self, committable: Committable) -> Probe:
        ours = Transaction.from_payload(committable.payload)
        facts = self._look(ours)
        detail = f"{_name(ours)}: {facts.seen or 'unknown to the coordinator'}"
        match facts.verdict:
            case Verdict.PREPARED if facts.seen is not None:
                return Probe(Standing.PREPARED, detail, expires_in(facts.seen, _now_ms()), timeout_of(facts.seen))
            case Verdict.COMMITTED:
                return Probe(Standing.COMMITTED, detail)
            case Verdict.LOST:
                return Probe(Standing.LOST, f"{detail}; its marker never became visible, so it was aborted")
            case Verdict.UNKNOWN:
                return Probe(Standing.UNKNOWN, _forgotten(ours))
        raise Retryable(f"{detail}: the coordinator is still finishing it")

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        """Send EndTxn; see ``abc.Committer``.

        The coordinator is asked first, in the normal path and in recovery alike: a millisecond that tells a repeat
        from a first time, and keeps a v4 commit from ending a zombie's transaction.
        """
        ours = Transaction.from_payload(committable.payload)
        facts = self._look(ours)
        outcome = Outcome.ALREADY
        if facts.verdict is Verdict.PREPARED:
            outcome = self._end(permit, ours)
        else:
            self._refuse(permit, ours, facts)
        if ours.end_txn_version < 5 and ours.term != self._ctx.term.n:
            # v4 keeps the epoch: a zombie could open a new transaction under it, and a repeated commit would
            # then commit that one half-written. Engines build committers before they take a term: they always fence.
            self._fence(ours.transactional_id)
        return outcome

    def _end(self, permit: CommitPermit, ours: Transaction) -> Outcome:
        answer = self._rpc.end(
            ours.transactional_id, ours.producer_id, ours.producer_epoch, commit=True, version=ours.end_txn_version
        )
        if answer.error == "NONE":
            return Outcome.COMMITTED
        facts = self._look(ours)
        if facts.verdict is Verdict.COMMITTED:
            return Outcome.ALREADY
        self._refuse(permit, ours, facts, answer.error)
        raise Retryable(f"{_name(ours)}: EndTxn says {answer.error}, yet the coordinator shows {facts.seen}")

    def _refuse(self, permit: CommitPermit, ours: Transaction, facts: _Facts, answer: str = "not asked") -> None:
        """Raise what the verdict means, unless it is that ours is committed, or can be."""
        if facts.verdict is Verdict.LOST:
            raise CommittableLost(
                f"epoch {permit.epoch}: {_name(ours)} was aborted by the coordinator (EndTxn: {answer}; now "
                f"{facts.seen or 'unknown'}): its transaction timeout of {ours.timeout_ms} ms passed, or another "
                "process fenced it. Its output is gone while the epoch is decided."
            )
        if facts.verdict is Verdict.UNKNOWN:
            raise CommittableLost(f"epoch {permit.epoch}: {_forgotten(ours)}")
        if facts.verdict is Verdict.RETRY:
            raise Retryable(f"{_name(ours)}: the coordinator is still finishing it ({facts.seen})")

    def _look(self, ours: Transaction) -> _Facts:
        """State first, then marker: once the state is final the marker can no longer appear."""
        seen = self._rpc.describe(ours.transactional_id)
        marker = None
        if needs_marker(ours, seen):
            marker = self._rpc.marker(ours.marker_group, ours.marker_topic, ours.marker_partition)
        age = (_now_ms() - ours.prepared_at) / 1000
        return _Facts(judged(ours, seen, marker, age), seen)

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Every open transaction of any life of the job's name, whatever its term."""
        now = _now_ms()
        return [
            Staged(of.term, str(of), str(seen), max(0.0, (now - seen.started_at) / 1000), of.identity)
            for of, seen in self._described(names.ids_of_all(ctx.job), _UNENDED)
            if _open(seen)
        ]

    def abort_orphans(self, ctx: JobContext, kept: Collection[str] = ()) -> Sequence[str]:
        """Fence every id of this life's earlier terms that still could write: what is open under it is aborted.

        Not those in ``kept``: somebody may still have to commit what they hold.
        """
        return self._fence_all(of for of in self._own(ctx) if of[0].term < ctx.term and str(of[0]) not in kept)

    def abort(self, names: Sequence[str]) -> None:
        """Fence these ids, whatever their term: what is open under them is aborted, their producers are refused."""
        for name in names:
            self._fence(name)

    # ------------------------------------------------------------ lives of one name

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """By what the coordinators list. They forget an id some time after its last use, by default a week."""
        found: dict[JobIdentity | None, list[tuple[TransactionalId, Description]]] = {}
        over: set[JobIdentity] = set()
        listed = self._rpc.described(names.ids_and_marks(ctx.job))
        for name, seen in sorted(listed.items()):
            if (of := TransactionalId.parse(name)) is not None:
                found.setdefault(of.identity, []).append((of, seen))
            elif (marked := names.marked(name)) is not None:
                found.setdefault(marked, [])
                over |= {marked} if seen.timeout_ms == FENCED_MS else set()
        return [_life(identity, ids, identity in over, self._place) for identity, ids in found.items()]

    def hold(self, ctx: JobContext) -> None:
        """The mark is an id that has a transaction timeout of its own; another one shows that it was taken away."""
        if ctx.identity is None:
            return
        name = names.mark(ctx.job, ctx.identity)
        seen = self._rpc.describe(name)
        if seen is None:
            self._fence(name, HELD_MS)
        elif seen.timeout_ms != HELD_MS:
            raise Fenced(taken_over(ctx, self._place))

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Until a look finds nothing that could still write: a producer that starts meanwhile is in the next look."""
        if identity is not None:
            self._fence(names.mark(ctx.job, identity))
        ended: list[str] = []
        for _ in range(_LOOKS):
            more = self._fence_all(self._described(names.ids(ctx.job, identity)))
            if not more:
                return ended
            ended += more
        raise Retryable(f"life {identity or 'without identity'} of job {ctx.job!r} still runs: stop it")

    def _own(self, ctx: JobContext) -> list[tuple[TransactionalId, Description]]:
        """The ids of this life."""
        mine = [identity for identity in dict.fromkeys([ctx.identity, None]) if ctx.owns(identity)]
        return self._described("|".join(names.ids(ctx.job, identity) for identity in mine))

    def _described(self, pattern: str, states: Sequence[str] = ()) -> list[tuple[TransactionalId, Description]]:
        listed = sorted(self._rpc.described(pattern, states).items())
        return [(of, seen) for name, seen in listed if (of := TransactionalId.parse(name)) is not None]

    def _fence_all(self, ids: Iterable[tuple[TransactionalId, Description]]) -> list[str]:
        """Fence those that are not fenced yet; returns them, with the state in which they were."""
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


def _open(seen: Description) -> bool:
    """Whether a transaction is not ended; a listing may be older than what the coordinator then says of the id."""
    return seen.started_at >= 0 and seen.state in _UNENDED


def _life(
    identity: JobIdentity | None, ids: Sequence[tuple[TransactionalId, Description]], over: bool, place: str
) -> Life:
    """What the mark and the ids of one life say together."""
    since = [seen.started_at for _, seen in ids if _open(seen)]
    detail = f"{len(ids)} transactional ids, {len(since)} of them with an open transaction" if ids else "its mark"
    age = max(0.0, (_now_ms() - max(since)) / 1000) if since else None
    state = LifeState.OPEN if since else LifeState.OVER if over else LifeState.ENDED
    return Life(identity, place, detail, max((of.term for of, _ in ids), default=None), state, age)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _name(ours: Transaction) -> str:
    return f"transaction {ours.transactional_id} (producer {ours.producer_id}, epoch {ours.producer_epoch})"


def _forgotten(ours: Transaction) -> str:
    return (
        f"{_name(ours)} was prepared so long ago that the cluster may have forgotten whether it was committed "
        "(offsets.retention.minutes, transactional.id.expiration.ms); look for its records in the output topics "
        f"(header kafka_eos, term {ours.term})"
    )
