"""Two-phase commit: whether a decided epoch is committed, revoked or stuck, and the permission to commit it.

Pure. ``docs/two-phase-commit.md`` contains the table of the results of ``authorize``, computed by calling it.
Rule: nothing is committed without a ``CommitPermit``, and only ``authorize`` creates one, for a published manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from kafka_eos.abc.committer import CommitPermit, CommitStatus, Probe
from kafka_eos.core.ids import EpochId

COMMIT_MARGIN: Final = 10.0
"""A prepared committable that expires within these seconds may expire before its siblings are committed."""


class CommitAuthorized(Struct, frozen=True):
    """Commit everything of the epoch, the most urgent first."""

    permit: CommitPermit
    order: tuple[int, ...]


class EpochRevoked(Struct, frozen=True):
    """Nothing of the epoch is committed and some of it can never be: restore the previous epoch."""

    epoch: EpochId
    reason: str


class EpochStuck(Struct, frozen=True):
    """The epoch can be neither completed nor revoked: it needs manual intervention."""

    epoch: EpochId
    reason: str


CommitDecision = CommitAuthorized | EpochRevoked | EpochStuck


def authorize(epoch: EpochId, probes: Sequence[Probe], margin: float) -> CommitDecision:
    """Decide what to do with a decided epoch after probing *all* its committables.

    ``margin`` is in seconds. A prepared committable that may expire sooner counts as lost if it has siblings, because
    it could expire between the commit of the first and of the last.
    A committable with unknown status stops the epoch, whatever the status of its siblings: to continue could lose its
    output, to roll back could make the output visible twice.
    """
    committed = [p for p in probes if p.status is CommitStatus.COMMITTED]
    lost = [p for p in probes if p.status is CommitStatus.LOST]
    if doubt := describe_unknown(probes):
        return EpochStuck(epoch, doubt)
    if lost and committed:
        return EpochStuck(epoch, f"{_details(lost)}; already committed: {_details(committed)}")
    if lost:
        return EpochRevoked(epoch, _details(lost))
    risky = [p for p in probes if p.expires_in < margin]
    if risky and not committed and len(probes) > 1:  # then all are prepared
        return EpochRevoked(epoch, f"too close to the timeout: {_details(risky)}")
    order = sorted(range(len(probes)), key=lambda i: (probes[i].expires_in, i))
    return CommitAuthorized(CommitPermit(epoch), tuple(order))


def describe_unknown(probes: Sequence[Probe]) -> str:
    """Describe committables whose status is unknown; empty if there are none."""
    unknown = [p for p in probes if p.status is CommitStatus.UNKNOWN]
    if not unknown:
        return ""
    known = (
        f"; {status.value}: {_details(found)}"
        for status in CommitStatus
        if status is not CommitStatus.UNKNOWN and (found := [p for p in probes if p.status is status])
    )
    return f"unknown whether this was committed: {_details(unknown)}{''.join(known)}"


def _details(probes: Sequence[Probe]) -> str:
    return ", ".join(p.detail for p in probes)
