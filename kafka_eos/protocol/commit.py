"""Two-phase commit: what becomes of a decided epoch, and the right to commit it.

Pure. ``docs/two-phase-commit.md`` shows what ``authorize`` answers, in a table that ``authorize`` is asked for.
Rule: nothing is committed without a ``CommitPermit``, and only ``authorize`` makes one, for a published manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kafka_eos.abc.committer import CommitPermit, Probe, Standing
from kafka_eos.core.ids import EpochId

COMMIT_MARGIN: Final = 10.0
"""Seconds before its timeout at which a prepared committable is no longer trusted to outlive its siblings."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit everything of the epoch, in ``order`` (indices into the committables): most urgent first."""

    permit: CommitPermit
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Revoke:
    """Nothing of the epoch is committed and some of it never can be: go back to the epoch before it."""

    epoch: EpochId
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Part of the epoch is committed and part of it is gone, or nobody can tell. Only a person can decide."""

    epoch: EpochId
    reason: str


Decision = Commit | Revoke | Stop


def authorize(epoch: EpochId, probes: Sequence[Probe], margin: float) -> Decision:
    """Decide what to do with a decided epoch after probing *all* its committables.

    ``margin`` is in seconds: a prepared committable that may expire sooner counts as lost as long as it has
    siblings, because it could expire between the commit of the first and of the last.

    One whose standing is unknown stops the epoch, whatever its siblings are: to go on could lose its output, to go
    back could make it visible twice.
    """
    committed = [p for p in probes if p.standing is Standing.COMMITTED]
    lost = [p for p in probes if p.standing is Standing.LOST]
    if doubt := undecidable(probes):
        return Stop(epoch, doubt)
    if lost and committed:
        return Stop(epoch, f"{_details(lost)}; already committed: {_details(committed)}")
    if lost:
        return Revoke(epoch, _details(lost))
    risky = [p for p in probes if p.expires_in < margin]
    if risky and not committed and len(probes) > 1:  # then all are prepared
        return Revoke(epoch, f"too close to the timeout: {_details(risky)}")
    order = sorted(range(len(probes)), key=lambda i: (probes[i].expires_in, i))
    return Commit(CommitPermit(epoch), tuple(order))


def undecidable(probes: Sequence[Probe]) -> str:
    """What nobody can tell about an epoch with these probes, with all that is known of it; empty if all is known."""
    unknown = [p for p in probes if p.standing is Standing.UNKNOWN]
    if not unknown:
        return ""
    known = (
        f"; {standing.value}: {_details(found)}"
        for standing in Standing
        if standing is not Standing.UNKNOWN and (found := [p for p in probes if p.standing is standing])
    )
    return f"nobody can tell whether this was committed: {_details(unknown)}{''.join(known)}"


def _details(probes: Sequence[Probe]) -> str:
    return ", ".join(p.detail for p in probes)
