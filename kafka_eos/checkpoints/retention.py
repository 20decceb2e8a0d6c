"""What of a job's durable objects may go, and in which order.

``plan`` is pure: facts in, names out. ``gather`` reads the facts, ``apply`` deletes.
Rule: a file goes only after every manifest that names it, and a manifest only after the receipt of a newer
one. A crash between two deletions leaves every manifest that is still there whole, and the rest for the next round;
so does a power cut, because each batch is durable before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kafka_eos import failpoints
from kafka_eos.checkpoints import manifest, paths
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.errors import Bug
from kafka_eos.ids import EpochId, Term
from kafka_eos.interfaces import CheckpointStorage
from kafka_eos.protocol.lineage import lineage

BATCH: Final = 500
"""Names that are deleted at once, so files that are deleted after one look at who owns the job."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is stored for a job. A file is named by the SHA-256 of its content."""

    manifests: Mapping[EpochId, frozenset[str]]
    """The files that each manifest names."""
    receipts: frozenset[EpochId]
    bases: Mapping[Term, EpochId | None]
    claims: frozenset[Term]
    stored: frozenset[str]


def plan(facts: Inventory, keep: int, in_flight: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Names to delete, in this order, so that the ``keep`` newest epochs with a receipt stay restorable.

    Every decided epoch newer than them stays too. Nothing goes as long as no epoch has a receipt.
    ``in_flight`` are files of a checkpoint that is under way: no manifest names them yet.
    """
    if keep < 1:
        raise Bug(f"retention must keep at least one epoch, not {keep}")
    counted = lineage(facts.manifests, facts.bases)[::-1]
    finished = [i for i, epoch in enumerate(counted) if epoch in facts.receipts]
    if not finished:
        return ()
    retained = frozenset(counted[: finished[0] + keep])
    newest_term = max(facts.bases)
    # A newer term may be on its way in: it has a claim, and no base yet.
    dropped = sorted(m for m in facts.manifests if m not in retained and m.term <= newest_term)
    kept = facts.manifests.keys() - frozenset(dropped)
    needed = in_flight.union(*(facts.manifests[m] for m in kept))
    return (
        *(paths.manifest_name(m) for m in dropped),
        *(paths.receipt_name(r) for r in sorted(facts.receipts) if r not in kept),
        *_old_terms(facts, min(m.term for m in retained), newest_term),
        *(paths.shared_name(sha256) for sha256 in sorted(facts.stored - needed)),
    )


def _old_terms(facts: Inventory, first: Term, newest: Term) -> list[str]:
    """Bases that no retained manifest needs to be found, and claims that fence nothing any more."""
    bases = [paths.base_name(term) for term in sorted(facts.bases) if term < first]
    claims = [paths.claim_name(term) for term in sorted(facts.claims) if term < min(first, newest)]
    return bases + claims


def gather(storage: CheckpointStorage, job: str) -> Inventory:
    """Read the facts. CorruptCheckpoint names an object that is not what was written."""
    manifests = [paths.parse_manifest_name(name) for name in storage.list(paths.MANIFESTS)]
    terms = [paths.parse_term_name(name) for name in storage.list(paths.TERMS)]
    return Inventory(
        manifests={m: manifest.load(storage, manifest.Manifest, paths.manifest_name(m), job).files for m in manifests},
        receipts=frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS)),
        bases=bases(storage, job),
        claims=frozenset(term for term, kind in terms if kind == "claim"),
        stored=frozenset(paths.parse_shared_name(name) for name in storage.list(paths.SHARED)),
    )


def bases(storage: CheckpointStorage, job: str) -> dict[Term, EpochId | None]:
    """What each term resumed from, as far as it is stored."""
    terms = [term for term, kind in map(paths.parse_term_name, storage.list(paths.TERMS)) if kind == "base"]
    return {t: manifest.load(storage, manifest.Base, paths.base_name(t), job).resumed_id for t in terms}


def apply(storage: JobStorage, names: Sequence[str], ensure_owner: Callable[[], None]) -> None:
    """Delete in the order of ``plan``. Stopping anywhere is safe. ``ensure_owner`` is asked once a batch of files."""
    failpoints.hit("retention.before")
    for batch in batches(names):
        if batch[0].startswith(f"{paths.SHARED}/"):
            ensure_owner()
        storage.delete_all(batch)
        failpoints.hit("retention.between")


def batches(names: Sequence[str]) -> list[tuple[str, ...]]:
    """``names`` in their order, cut so that each batch holds objects of one kind and at most ``BATCH`` of them."""
    found: list[tuple[str, ...]] = []
    for _, kind in groupby(names, key=lambda name: name.partition("/")[0]):
        some = tuple(kind)
        found += [some[at : at + BATCH] for at in range(0, len(some), BATCH)]
    return found


def retain(
    storage: JobStorage,
    job: str,
    keep: int,
    ensure_owner: Callable[[], None],
    in_flight: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Gather, plan, delete; returns the deleted names. ``ensure_owner`` raises if a newer term is claimed.

    It is asked once the files are listed: what a newer term stores is then not among them.

    The trap: an upload that finds its content stored already does not write it again. Call this while no
    upload is under way (after the receipt, before the next barrier), or pass what is in flight. An upload of a newer
    term can be hit by the batch that is being deleted when that term is claimed, and by no later one: who owns the job
    is asked before each. That term would have to claim the job, recover, process and upload the very content of a file
    that no manifest names, all while one batch is deleted; its next recovery would name the file.
    """
    facts = gather(storage, job)
    ensure_owner()
    names = plan(facts, keep, in_flight)
    apply(storage, names, ensure_owner)
    return names
