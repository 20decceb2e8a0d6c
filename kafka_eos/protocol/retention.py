"""What of a job's durable objects may go, and in which order.

Pure: reads nothing, deletes nothing. The caller gathers an Inventory, and carries out the plan batch by batch.
Rule: a file goes only after every manifest that names it, and a manifest only after the receipt of a newer one. So a
crash between two deletions leaves every manifest that is still there whole, and the rest for the next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.protocol.lineage import lineage


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is stored for a job. A file is named by the SHA-256 of its content."""

    manifests: Mapping[EpochId, frozenset[str]]
    """The files that each manifest names."""
    receipts: frozenset[EpochId]
    bases: Mapping[Term, EpochId | None]
    claims: frozenset[Term]
    stored: frozenset[str]
    held: frozenset[str] = frozenset()
    """Files that are needed though perhaps no manifest names them: of a savepoint in the making, or on their way."""


@dataclass(frozen=True, slots=True)
class Manifest:
    epoch: EpochId


@dataclass(frozen=True, slots=True)
class Receipt:
    epoch: EpochId


@dataclass(frozen=True, slots=True)
class Base:
    term: Term


@dataclass(frozen=True, slots=True)
class Claim:
    term: Term


@dataclass(frozen=True, slots=True)
class File:
    sha256: str


Object = Manifest | Receipt | Base | Claim | File


@dataclass(frozen=True, slots=True)
class Batch:
    """Objects of one kind, deleted at once and in any order; durable before the next batch begins."""

    objects: tuple[Object, ...]

    @property
    def asks(self) -> bool:
        """Must who deletes it look first whether the job is still its own?

        A newer term needs no manifest, receipt, base or claim of the plan. A file it may have found stored already.
        """
        return isinstance(self.objects[0], File)


def plan(facts: Inventory, keep: int) -> tuple[Object, ...]:
    """What to delete, in this order, so that the ``keep`` newest epochs with a receipt stay restorable.

    Every decided epoch newer than them stays too. Nothing goes as long as no epoch has a receipt.
    """
    if keep < 1:
        raise Bug(f"retention must keep at least one epoch, not {keep}")
    counted = lineage(facts.manifests, facts.bases)[::-1]
    finished = [i for i, epoch in enumerate(counted) if epoch in facts.receipts]
    if not finished:
        return ()
    retained = frozenset(counted[: finished[0] + keep])
    newest, newest_term = counted[0].epoch, max(facts.bases)
    # A newer term may be on its way in: it has a claim, and no base yet. The highest number must not be given again.
    dropped = sorted(m for m in facts.manifests if m not in retained and m.term <= newest_term and m.epoch <= newest)
    kept = facts.manifests.keys() - frozenset(dropped)
    needed = facts.held.union(*(facts.manifests[m] for m in kept))
    return (
        *map(Manifest, dropped),
        *(Receipt(r) for r in sorted(facts.receipts) if r not in kept),
        *_old_terms(facts, min(m.term for m in retained), newest_term),
        *map(File, sorted(facts.stored - needed)),
    )


def forgotten(facts: Inventory, going: Sequence[Object]) -> list[EpochId]:
    """Committed epochs of which nothing but the ledger tells once ``going`` is deleted, oldest first.

    An epoch that counts and is older than one with a receipt is committed; one that does not count never happened.
    """
    dropped = {each.epoch for each in going if isinstance(each, Manifest)}
    return [epoch for epoch in lineage(facts.manifests, facts.bases) if epoch in dropped]


def _old_terms(facts: Inventory, first: Term, newest: Term) -> list[Object]:
    """Bases that no retained manifest needs to be found, and claims that fence nothing any more."""
    bases = [Base(term) for term in sorted(facts.bases) if term < first]
    claims = [Claim(term) for term in sorted(facts.claims) if term < min(first, newest)]
    return [*bases, *claims]


def batches(objects: Sequence[Object], limit: int) -> list[Batch]:
    """A plan in its order, cut so that each batch holds objects of one kind and at most ``limit`` of them."""
    found: list[Batch] = []
    for _, kind in groupby(objects, key=type):
        some = tuple(kind)
        found += [Batch(some[at : at + limit]) for at in range(0, len(some), limit)]
    return found
