"""Retention: the durable objects of a job that may be deleted, and the order of deletion.

Pure: reads nothing, deletes nothing. The caller gathers an ``Inventory`` and carries out the plan batch by batch.
Rule: a file is deleted only after every manifest that names it, and a manifest only after the receipt of a newer one is
written. So a crash between two deletions leaves every remaining manifest complete, and the rest for the next cleanup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.protocol.lineage import lineage


class Inventory(Struct, frozen=True):
    """The objects stored for a job. A file is identified by the SHA-256 of its content."""

    manifests: Mapping[EpochId, frozenset[str]]
    """The files that each manifest names."""
    receipts: frozenset[EpochId]
    bases: Mapping[Term, EpochId | None]
    claims: frozenset[Term]
    stored: frozenset[str]
    pinned: frozenset[str] = frozenset()
    """Files that must stay even if no manifest names them."""


class DeleteManifest(Struct, frozen=True):
    epoch: EpochId


class DeleteReceipt(Struct, frozen=True):
    epoch: EpochId


class DeleteBase(Struct, frozen=True):
    term: Term


class DeleteClaim(Struct, frozen=True):
    term: Term


class DeleteFile(Struct, frozen=True):
    sha256: str


Deletion = DeleteManifest | DeleteReceipt | DeleteBase | DeleteClaim | DeleteFile


class DeletionBatch(Struct, frozen=True):
    """Deletions of one kind, executed together and durable before the next batch."""

    objects: tuple[Deletion, ...]

    @property
    def needs_ownership_check(self) -> bool:
        """True if the job's ownership must be checked before deleting.

        A newer term needs no manifest, receipt, base or claim of the plan. But it may already count on a stored file.
        """
        return isinstance(self.objects[0], DeleteFile)


def plan_deletions(facts: Inventory, keep: int) -> tuple[Deletion, ...]:
    """Plan what to delete, in order, so that the ``keep`` newest committed epochs stay restorable.

    Every decided epoch newer than these stays too. Nothing is deleted as long as no epoch has a receipt.
    """
    if keep < 1:
        raise Bug(f"retention must keep at least one epoch, not {keep}")
    counted = lineage(facts.manifests, facts.bases)[::-1]
    finished = [i for i, epoch in enumerate(counted) if epoch in facts.receipts]
    if not finished:
        return ()
    retained = frozenset(counted[: finished[0] + keep])
    newest, newest_term = counted[0].epoch, max(facts.bases)
    # A newer term may be starting: it has a claim and no base yet. The highest number must not be assigned again.
    dropped = sorted(m for m in facts.manifests if m not in retained and m.term <= newest_term and m.epoch <= newest)
    kept = facts.manifests.keys() - frozenset(dropped)
    needed = facts.pinned.union(*(facts.manifests[m] for m in kept))
    return (
        *map(DeleteManifest, dropped),
        *(DeleteReceipt(r) for r in sorted(facts.receipts) if r not in kept),
        *_old_terms(facts, min(m.term for m in retained), newest_term),
        *map(DeleteFile, sorted(facts.stored - needed)),
    )


def find_forgotten_epochs(facts: Inventory, going: Sequence[Deletion]) -> list[EpochId]:
    """Return committed epochs that only the ledger will contain after these deletions.

    A valid epoch that is older than one with a receipt is committed. An epoch that is not valid never took effect.
    """
    dropped = {each.epoch for each in going if isinstance(each, DeleteManifest)}
    return [epoch for epoch in lineage(facts.manifests, facts.bases) if epoch in dropped]


def _old_terms(facts: Inventory, first: Term, newest: Term) -> list[Deletion]:
    """Return deletions of bases that no retained manifest needs, and of claims that no longer fence any process."""
    bases = [DeleteBase(term) for term in sorted(facts.bases) if term < first]
    claims = [DeleteClaim(term) for term in sorted(facts.claims) if term < min(first, newest)]
    return [*bases, *claims]


def split_batches(objects: Sequence[Deletion], limit: int) -> list[DeletionBatch]:
    """Split a plan, in its order, into batches of one kind."""
    found: list[DeletionBatch] = []
    for _, kind in groupby(objects, key=type):
        some = tuple(kind)
        found += [DeletionBatch(some[at : at + limit]) for at in range(0, len(some), limit)]
    return found
