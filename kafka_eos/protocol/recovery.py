"""Decide where a restarted job resumes.

Pure: reads nothing, waits for nothing. The caller gathers Facts and carries out the answer.
Rule: a decided epoch of the job's ``lineage`` without a receipt is finished, never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.abc.committer import Probe, Standing
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.commit import Decision, Revoke, Stop, authorize, undecidable
from kafka_eos.protocol.lineage import lineage


@dataclass(frozen=True, slots=True)
class Facts:
    """What the storage holds, by name alone: nothing has been opened yet."""

    claims: frozenset[Term]
    bases: Mapping[Term, EpochId | None]
    manifests: frozenset[EpochId]
    receipts: frozenset[EpochId]


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer term is claimed: stop."""

    by: Term


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing was ever decided: begin at the start positions."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The newest decided epoch is committed: restore it."""

    newest: EpochId


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The newest decided epoch has no receipt: finish it, or revoke it in favour of ``previous``."""

    newest: EpochId
    previous: EpochId | None


Resumption = Superseded | Fresh | Settled | Unfinished


def resolve(facts: Facts, mine: Term) -> Resumption:
    """Where term ``mine``, already claimed, takes up the job."""
    newest_claim = max(facts.claims)
    if newest_claim > mine:
        return Superseded(newest_claim)
    history = decided(facts)
    if not history:
        return Fresh()
    newest = history[-1]
    if newest in facts.receipts:
        return Settled(newest)
    return Unfinished(newest, history[-2] if len(history) > 1 else None)


def decided(facts: Facts) -> tuple[EpochId, ...]:
    """The epochs that count, oldest first. What the newest base names is among them, even if its manifest is gone."""
    owner = max(facts.bases, default=None)
    base = None if owner is None else facts.bases[owner]
    return lineage(facts.manifests if base is None else facts.manifests | {base}, facts.bases)


def finished(facts: Facts) -> EpochId | None:
    """The newest epoch that counts and has its receipt; None if there is none, or its manifest is not there."""
    stored = facts.receipts & facts.manifests
    return next((epoch for epoch in reversed(decided(facts)) if epoch in stored), None)


def gone(facts: Facts) -> tuple[tuple[Term, ...], tuple[EpochId, ...]]:
    """Terms whose base record, and epochs whose manifest, must have been there but are not.

    A term publishes nothing before its base, and its receipts follow its manifests; what retention drops is older
    than what it leaves. Older terms prove nothing: one that woke up late may write after its base was dropped.
    """
    owner = max(facts.bases, default=Term(0))
    bases = {epoch.term for epoch in facts.manifests | facts.receipts if epoch.term > owner}
    kept = max((m.epoch.n for m in facts.manifests if m.term == owner), default=-1)
    lost = {r for r in facts.receipts - facts.manifests if r.term == owner and r.epoch.n > kept}
    return tuple(sorted(bases)), tuple(sorted(lost))


def next_epoch(facts: Facts) -> Epoch:
    """A number that no manifest of this job has ever had, whether it counts or not."""
    return Epoch(max((m.epoch.n for m in facts.manifests), default=-1) + 1)


def settle(unfinished: Unfinished, probes: Sequence[Probe], damage: Sequence[str], margin: float) -> Decision:
    """Finish, revoke or stop, given probes of all committables and which state files are missing or cut off.

    Damaged state is worth no commit: its outputs would be visible while the state behind them is gone. Going
    back is allowed only as long as it is certain that nothing of the epoch is visible, and the epoch before it is
    there. Once part of it is visible the rest is committed too: a state file can be restored from a copy, a
    transaction that expires cannot.
    """
    decision: Decision
    if not damage or any(p.standing is Standing.COMMITTED for p in probes):
        decision = authorize(unfinished.newest, probes, margin)
    elif doubt := undecidable(probes):
        decision = Stop(unfinished.newest, f"{', '.join(damage)}; and {doubt}")
    else:
        decision = Revoke(unfinished.newest, ", ".join(damage))
    if isinstance(decision, Revoke) and unfinished.previous is None:
        return Stop(decision.epoch, f"{decision.reason}; and no earlier epoch is stored")
    return decision
