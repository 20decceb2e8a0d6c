"""Decide where a restarted job resumes.

Pure: reads nothing, waits for nothing. The caller gathers a ``RecordListing`` and carries out the decision.
Rule: a decided epoch of the job's ``lineage`` without a receipt is finished, never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kafka_eos.abc.committer import CommitStatus, Probe
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.commit import CommitDecision, EpochRevoked, EpochStuck, authorize, describe_unknown
from kafka_eos.protocol.lineage import lineage


class RecordListing(Struct, frozen=True):
    """The claims, bases, manifests and receipts in the store."""

    claims: frozenset[Term]
    bases: Mapping[Term, EpochId | None]
    manifests: frozenset[EpochId]
    receipts: frozenset[EpochId]


class TermSuperseded(Struct, frozen=True):
    """A newer term is claimed: stop."""

    by: Term


class NoDecidedEpoch(Struct, frozen=True):
    """No epoch was ever decided: begin at the start positions."""


class NewestCommitted(Struct, frozen=True):
    """The newest decided epoch is committed: restore it."""

    newest: EpochId


class NewestUncommitted(Struct, frozen=True):
    """The newest decided epoch has no receipt: complete it or revoke it."""

    newest: EpochId
    previous: EpochId | None


RecoveryDecision = TermSuperseded | NoDecidedEpoch | NewestCommitted | NewestUncommitted


def resolve(facts: RecordListing, mine: Term) -> RecoveryDecision:
    """Decide where term ``mine``, already claimed, resumes the job."""
    newest_claim = max(facts.claims)
    if newest_claim > mine:
        return TermSuperseded(newest_claim)
    history = decided_epochs(facts)
    if not history:
        return NoDecidedEpoch()
    newest = history[-1]
    if newest in facts.receipts:
        return NewestCommitted(newest)
    return NewestUncommitted(newest, history[-2] if len(history) > 1 else None)


def decided_epochs(facts: RecordListing) -> tuple[EpochId, ...]:
    """Return the valid decided epochs, oldest first.

    The epoch that the newest base names is among them, even if its manifest is missing.
    """
    owner = max(facts.bases, default=None)
    base = None if owner is None else facts.bases[owner]
    return lineage(facts.manifests if base is None else facts.manifests | {base}, facts.bases)


def newest_committed(facts: RecordListing) -> EpochId | None:
    """Return the newest valid epoch that has a receipt, or None."""
    stored = facts.receipts & facts.manifests
    return next((epoch for epoch in reversed(decided_epochs(facts)) if epoch in stored), None)


def find_missing_records(facts: RecordListing) -> tuple[tuple[Term, ...], tuple[EpochId, ...]]:
    """Return bases and manifests that must have existed and are missing.

    A term publishes nothing before its base, and its receipts follow its manifests. Retention deletes only records
    older than those it keeps. Records of older terms prove nothing: such a term may resume late and write after its
    base was deleted.
    """
    owner = max(facts.bases, default=Term(0))
    bases = {epoch.term for epoch in facts.manifests | facts.receipts if epoch.term > owner}
    kept = max((m.epoch.n for m in facts.manifests if m.term == owner), default=-1)
    lost = {r for r in facts.receipts - facts.manifests if r.term == owner and r.epoch.n > kept}
    return tuple(sorted(bases)), tuple(sorted(lost))


def next_epoch(facts: RecordListing) -> Epoch:
    """Return a number that no manifest of this job has ever had, valid or not."""
    return Epoch(max((m.epoch.n for m in facts.manifests), default=-1) + 1)


def decide_unfinished(
    unfinished: NewestUncommitted, probes: Sequence[Probe], damage: Sequence[str], margin: float
) -> CommitDecision:
    """Decide whether to complete or revoke the epoch without a receipt, or to stop.

    An epoch with damaged state is not committed, because its output would be visible while the state behind it is lost.
    Rolling back is allowed only if certainly nothing of the epoch is visible, and the previous epoch exists. Once part
    of the epoch is visible, the rest is committed too: a state file can be restored from a copy, an expired transaction
    cannot.
    """
    decision: CommitDecision
    if not damage or any(p.status is CommitStatus.COMMITTED for p in probes):
        decision = authorize(unfinished.newest, probes, margin)
    elif doubt := describe_unknown(probes):
        decision = EpochStuck(unfinished.newest, f"{', '.join(damage)}; and {doubt}")
    else:
        decision = EpochRevoked(unfinished.newest, ", ".join(damage))
    if isinstance(decision, EpochRevoked) and unfinished.previous is None:
        return EpochStuck(decision.epoch, f"{decision.reason}; and no earlier epoch is stored")
    return decision
