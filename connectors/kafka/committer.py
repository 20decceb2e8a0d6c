"""Finishes prepared transactions from any process: probe, commit, and abort what no manifest knows.

I/O around ``transactions``: gather facts, ask the table, carry out the answer. Only a raw EndTxn ends a prepared
transaction, in the normal path and in recovery alike.

Rule: an answer that cannot be told apart is asked again or refused, never taken for success.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors.kafka.rpc import Coordinators
from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.connectors.kafka.transactions import (
    Description,
    Transaction,
    Verdict,
    answered,
    expires_in,
    judged,
    needs_marker,
)
from kafka_eos.errors import CommittableLost, Fatal, Fenced, Retryable
from kafka_eos.ids import Term, token
from kafka_eos.interfaces import CommitPermit, Committable, JobContext, Outcome, Probe, Staged, Standing

FENCED_MS: Final = 1_009
"""Transaction timeout that a fence leaves on an id, in milliseconds: an Empty id that has it needs no fence again."""

_UNENDED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True, slots=True)
class _Facts:
    verdict: Verdict
    seen: Description | None


class KafkaCommitter:
    """The committer of one cluster. Everything may be repeated, by any process that has the manifest."""

    def __init__(self, cluster: Cluster, ctx: JobContext, patience: float = 5.0) -> None:
        self._ctx, self._rpc = ctx, Coordinators(cluster, patience)

    def probe(self, committable: Committable) -> Probe:
        ours = Transaction.from_payload(committable.payload)
        facts = self._look(ours)
        detail = f"{_name(ours)}: {facts.seen or 'unknown to the coordinator'}"
        match facts.verdict:
            case Verdict.PREPARED if facts.seen is not None:
                return Probe(Standing.PREPARED, detail, expires_in(facts.seen, _now_ms()))
            case Verdict.COMMITTED:
                return Probe(Standing.COMMITTED, detail)
            case Verdict.LOST:
                return Probe(Standing.LOST, f"{detail}; its marker never became visible, so it was aborted")
            case Verdict.UNKNOWABLE:
                raise Fatal(_unknowable(ours))
        raise Retryable(f"{detail}: the coordinator is still finishing it")

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        """Send EndTxn; see ``interfaces.Committer``.

        The coordinator is asked first, in the normal path and in recovery alike: a millisecond that tells a repeat
        from a first time, and keeps a v4 commit from ending a zombie's transaction.
        """
        ours = Transaction.from_payload(committable.payload)
        facts = self._look(ours)
        outcome = Outcome.ALREADY
        if facts.verdict is Verdict.PREPARED:
            outcome = self._end(permit, ours)
        elif facts.verdict is not Verdict.COMMITTED:
            self._refuse(permit, ours, facts)
        if ours.end_txn_version < 5 and ours.term != self._ctx.term.n:
            # v4 keeps the epoch: a zombie could open a new transaction under it, and a repeated commit would
            # then commit that one half-written.
            self._fence(ours.transactional_id)
        return outcome

    def _end(self, permit: CommitPermit, ours: Transaction) -> Outcome:
        answer = self._rpc.end(
            ours.transactional_id, ours.producer_id, ours.producer_epoch, commit=True, version=ours.end_txn_version
        )
        match answered(answer.error):
            case Verdict.COMMITTED:
                return Outcome.COMMITTED
            case Verdict.RETRY:
                raise Retryable(f"{_name(ours)}: {answer.error}")
        facts = self._look(ours)
        if facts.verdict is Verdict.COMMITTED:
            return Outcome.ALREADY
        self._refuse(permit, ours, facts, answer.error)
        raise Retryable(f"{_name(ours)}: EndTxn says {answer.error}, yet the coordinator shows {facts.seen}")

    def _refuse(self, permit: CommitPermit, ours: Transaction, facts: _Facts, answer: str = "not asked") -> None:
        """Raise what the verdict means, if it is final."""
        if facts.verdict is Verdict.LOST:
            raise CommittableLost(
                f"epoch {permit.epoch}: {_name(ours)} was aborted by the coordinator (EndTxn: {answer}; now "
                f"{facts.seen or 'unknown'}): its transaction timeout of {ours.timeout_ms} ms passed, or another "
                "process fenced it. Its output is gone while the epoch is decided."
            )
        if facts.verdict is Verdict.UNKNOWABLE:
            raise Fatal(_unknowable(ours))
        if facts.verdict is Verdict.RETRY:
            raise Retryable(f"{_name(ours)}: the coordinator is still finishing it ({facts.seen})")

    def _look(self, ours: Transaction) -> _Facts:
        """State first, then marker: once the state is final the marker can no longer appear."""
        seen = self._rpc.describe(ours.transactional_id)
        marker = None
        if needs_marker(ours, seen):
            marker = self._rpc.marker(ours.marker_group, ours.marker_topic, ours.marker_partition)
        age = max(0.0, (_now_ms() - ours.prepared_at) / 1000)
        return _Facts(judged(ours, seen, marker, age), seen)

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Every open transaction of the job, whatever its term."""
        now = _now_ms()
        return [
            Staged(Term(int(name.split(".")[1])), name, str(seen), max(0.0, (now - seen.started_at) / 1000))
            for name, seen in sorted(self._rpc.described(_ids_of(ctx), _UNENDED).items())
            if seen.started_at >= 0 and seen.state not in ("Empty", "CompleteCommit", "CompleteAbort")
        ]

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Fence every id of the job's earlier terms that still could write: what is open under it is aborted."""
        done = []
        for name, seen in sorted(self._rpc.described(_ids_of(ctx)).items()):
            if int(name.split(".")[1]) < ctx.term.n and (seen.state, seen.timeout_ms) != ("Empty", FENCED_MS):
                self._fence(name)
                done.append(f"{name} ({seen.state})")
        return done

    def abort_attempt(self, ctx: JobContext, owner: int) -> Sequence[str]:
        """Fence every id of one attempt of this term."""
        start = f"{ctx.job}.{ctx.term}.{owner}."
        names = [name for name in self._rpc.described(_ids_of(ctx)) if name.startswith(start)]
        self.abort(names)
        return names

    def abort(self, names: Sequence[str]) -> None:
        """Fence these ids, whatever their term: what is open under them is aborted, their producers are refused."""
        for name in names:
            self._fence(name)

    def _fence(self, transactional_id: str) -> None:
        error = self._rpc.fence(transactional_id, FENCED_MS)
        if error == "PRODUCER_FENCED":
            raise Fenced(f"{transactional_id} was taken over while this process fenced it")
        if error != "NONE":
            raise Retryable(f"{transactional_id} could not be fenced: {error}")

    def close(self) -> None:
        self._rpc.close()


def _ids_of(ctx: JobContext) -> str:
    """Matches the job's transactional ids and no other job's: a job's name holds no dot and nothing special."""
    return rf"{token(ctx.job, 'the name of the job')}\.[0-9]+\.[0-9]+\.[0-9]+"


def _now_ms() -> int:
    return int(time.time() * 1000)


def _name(ours: Transaction) -> str:
    return f"transaction {ours.transactional_id} (producer {ours.producer_id}, epoch {ours.producer_epoch})"


def _unknowable(ours: Transaction) -> str:
    return (
        f"{_name(ours)} was prepared so long ago that the cluster may have forgotten whether it was committed "
        "(offsets.retention.minutes, transactional.id.expiration.ms). Look for its records in the output topics "
        f"(header kafka_eos, term {ours.term}) before going on."
    )
