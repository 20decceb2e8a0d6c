"""Deletion of a job's durable objects that are no longer needed.

``take_inventory`` lists the objects, ``protocol.retention`` decides, ``delete_planned`` deletes.
Rule: only planned objects are deleted, in the order of the plan. Each batch is durable before the next begins, so a
power cut has the same effect as a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kafka_eos._util import failpoints
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.protocol import retention as rules
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage


def ignore_forgotten(epochs: Sequence[EpochId]) -> None:
    """Do nothing about epochs whose manifests are deleted."""


class ManifestFiles:
    """The stored objects that each manifest of a job names. A manifest never changes, so each is read once."""

    def __init__(self, storage: CheckpointStorage, job: str) -> None:
        self._storage, self._job = storage, job
        self._known: Mapping[EpochId, frozenset[str]] = {}

    def load(self, manifests: Iterable[EpochId]) -> Mapping[EpochId, frozenset[str]]:
        """Return the objects that these manifests name; forget all others."""
        self._known = {each: self._known[each] if each in self._known else self._read(each) for each in manifests}
        return self._known

    def _read(self, epoch: EpochId) -> frozenset[str]:
        return manifest.load(self._storage, manifest.Manifest, paths.manifest_name(epoch), self._job).files


def take_inventory(
    storage: CheckpointStorage, job: str, held: frozenset[str] = frozenset(), known: ManifestFiles | None = None
) -> rules.Inventory:
    """Read the inventory of the job for the retention plan. Manifests that are ``known`` are not read again.

    Raises CorruptCheckpoint, naming the object, if one is damaged.
    """
    manifests = [paths.parse_manifest_name(name) for name in storage.list(paths.MANIFESTS)]
    terms = [paths.parse_term_name(name) for name in storage.list(paths.TERMS)]
    return rules.Inventory(
        manifests=(known or ManifestFiles(storage, job)).load(manifests),
        receipts=frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS)),
        bases=load_bases(storage, job),
        claims=frozenset(term for term, kind in terms if kind == "claim"),
        stored=frozenset(paths.parse_shared_name(name) for name in storage.list(paths.SHARED)),
        pinned=held,
    )


def load_bases(storage: CheckpointStorage, job: str) -> dict[Term, EpochId | None]:
    """Return the epoch that each term continued from."""
    terms = [term for term, kind in map(paths.parse_term_name, storage.list(paths.TERMS)) if kind == "base"]
    return {t: manifest.load(storage, manifest.TermBase, paths.base_name(t), job).resumed_id for t in terms}


def delete_planned(storage: JobStorage, plan: Sequence[rules.Deletion], ensure_owner: Callable[[], None]) -> None:
    """Delete in the order of the plan. An interruption at any point is safe.

    ``ensure_owner`` is called before each batch of files.
    """
    failpoints.hit("retention.before")
    for batch in rules.split_batches(plan, LIMITS.objects_per_delete):
        if batch.needs_ownership_check:
            ensure_owner()
        storage.delete_all([object_name(each) for each in batch.objects])
        failpoints.hit("retention.between")


def object_name(each: rules.Deletion) -> str:
    """Return the name of the object that a deletion removes."""
    match each:
        case rules.DeleteManifest(epoch):
            return paths.manifest_name(epoch)
        case rules.DeleteReceipt(epoch):
            return paths.receipt_name(epoch)
        case rules.DeleteBase(term):
            return paths.base_name(term)
        case rules.DeleteClaim(term):
            return paths.claim_name(term)
        case rules.DeleteFile(sha256):
            return paths.shared_name(sha256)


def apply_retention(
    storage: JobStorage,
    job: str,
    keep: int,
    ensure_owner: Callable[[], None],
    held: frozenset[str] = frozenset(),
    record: Callable[[Sequence[EpochId]], None] = ignore_forgotten,
    known: ManifestFiles | None = None,
) -> tuple[rules.Deletion, ...]:
    """Take inventory, plan and delete; return what was deleted. ``ensure_owner`` raises if a newer term is claimed.

    ``record`` receives the committed epochs before their manifests are deleted, and must make durable what is kept
    about them forever.
    ``ensure_owner`` is first called after the files are listed, so the list contains no files of a newer term.

    Note: an upload that finds its content already stored does not write it again. Call this while no upload is in
    progress (after the receipt, before the next barrier), or pass the files in use as ``held``. An upload of a newer
    term can lose its file only to the batch that is being deleted when that term is claimed, because ownership is
    checked before each batch. For that, this process must be suspended between that check and the deletion. Meanwhile
    the new term must recover, process, and upload the content of a file that no manifest names, such as a state that
    has become empty again. Its next recovery would then raise CorruptCheckpoint and name the file.
    """
    facts = take_inventory(storage, job, held, known)
    ensure_owner()
    plan = rules.plan_deletions(facts, keep)
    if forgotten := rules.find_forgotten_epochs(facts, plan):
        record(forgotten)
        failpoints.hit("retention.recorded")
    delete_planned(storage, plan, ensure_owner)
    return plan
