"""The decision whether prepared output belongs to this job, before anything of an epoch is probed or committed.

Pure. Any writer of the checkpoint store chooses what a manifest contains. Without this comparison a manifest
could name the transaction of another job, and this job would commit it with its own permissions.
Rule: output without an owner is the concern of its committer; see ``Committer.read_owner``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka_eos.abc.committer import OutputOwner
from kafka_eos.core.ids import EpochId, JobIdentity


def find_foreign(
    owners: Iterable[OutputOwner], job: str, identity: JobIdentity | None, newest: EpochId
) -> tuple[str, ...]:
    """Return descriptions of output that is not of this incarnation of the job, or is newer than its manifest.

    ``newest``: the epoch and term of the manifest. Output of aborted epochs and of earlier terms may be part of it.
    """
    return tuple(_describe(owner) for owner in owners if not _is_own(owner, job, identity, newest))


def _is_own(owner: OutputOwner, job: str, identity: JobIdentity | None, newest: EpochId) -> bool:
    if (owner.job, owner.identity) != (job, identity) or owner.term > newest.term:
        return False
    return owner.epoch is None or owner.epoch <= newest.epoch


def _describe(owner: OutputOwner) -> str:
    incarnation = "without an identity" if owner.identity is None else f"incarnation {owner.identity}"
    epoch = "" if owner.epoch is None else f", epoch {owner.epoch}"
    return f"{owner.name} (job {owner.job!r}, {incarnation}, term {owner.term}{epoch})"


def find_unplanned(
    owners: Iterable[tuple[str, OutputOwner]], targets: Mapping[str, Collection[str]]
) -> tuple[str, ...]:
    """Return descriptions of output, given with its scope, for a target that no sink of the job has there.

    ``targets``: the targets of the job's sinks by scope.
    """
    return tuple(
        f"{owner.name} in {scope}: {owner.target}"
        for scope, owner in owners
        if owner.target is not None and owner.target not in targets.get(scope, ())
    )
