"""Deletes what of a job's durable objects may go.

``gather`` reads the facts, ``protocol.retention`` decides, ``apply`` deletes.
Rule: what is not in the plan is not deleted, and nothing out of its order. Each batch is durable before the next
begins, so a power cut leaves what a crash leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafka_eos._util import failpoints
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.protocol import retention as rules
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage


def unrecorded(epochs: Sequence[EpochId]) -> None:
    """Nobody needs to know of them any more."""


def gather(storage: CheckpointStorage, job: str, held: frozenset[str] = frozenset()) -> rules.Inventory:
    """Read the facts. CorruptCheckpoint names an object that is not what was written."""
    manifests = [paths.parse_manifest_name(name) for name in storage.list(paths.MANIFESTS)]
    terms = [paths.parse_term_name(name) for name in storage.list(paths.TERMS)]
    return rules.Inventory(
        manifests={m: manifest.load(storage, manifest.Manifest, paths.manifest_name(m), job).files for m in manifests},
        receipts=frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS)),
        bases=bases(storage, job),
        claims=frozenset(term for term, kind in terms if kind == "claim"),
        stored=frozenset(paths.parse_shared_name(name) for name in storage.list(paths.SHARED)),
        held=held,
    )


def bases(storage: CheckpointStorage, job: str) -> dict[Term, EpochId | None]:
    """What each term resumed from, as far as it is stored."""
    terms = [term for term, kind in map(paths.parse_term_name, storage.list(paths.TERMS)) if kind == "base"]
    return {t: manifest.load(storage, manifest.Base, paths.base_name(t), job).resumed_id for t in terms}


def apply(storage: JobStorage, plan: Sequence[rules.Object], ensure_owner: Callable[[], None]) -> None:
    """Delete in the order of the plan. Stopping anywhere is safe. ``ensure_owner`` is asked once a batch of files."""
    failpoints.hit("retention.before")
    for batch in rules.batches(plan, LIMITS.objects_per_delete):
        if batch.asks:
            ensure_owner()
        storage.delete_all([name(each) for each in batch.objects])
        failpoints.hit("retention.between")


def name(each: rules.Object) -> str:
    """Under which name it is stored."""
    match each:
        case rules.Manifest(epoch):
            return paths.manifest_name(epoch)
        case rules.Receipt(epoch):
            return paths.receipt_name(epoch)
        case rules.Base(term):
            return paths.base_name(term)
        case rules.Claim(term):
            return paths.claim_name(term)
        case rules.File(sha256):
            return paths.shared_name(sha256)


def retain(
    storage: JobStorage,
    job: str,
    keep: int,
    ensure_owner: Callable[[], None],
    held: frozenset[str] = frozenset(),
    record: Callable[[Sequence[EpochId]], None] = unrecorded,
) -> tuple[rules.Object, ...]:
    """Gather, plan, delete; returns what was deleted. ``ensure_owner`` raises if a newer term is claimed.

    ``record`` gets the committed epochs before their manifests are deleted: what must be known of them for ever is
    durable when it returns.

    It is asked once the files are listed: what a newer term stores is then not among them.

    The trap: an upload that finds its content stored already does not write it again. Call this while no
    upload is under way (after the receipt, before the next barrier), or pass what is ``held``. An upload of a newer
    term can be hit by the batch that is being deleted when that term is claimed, and by no later one: who owns the job
    is asked before each. That term would have to claim the job, recover, process and upload the very content of a file
    that no manifest names, all while one batch is deleted; its next recovery would name the file.
    """
    facts = gather(storage, job, held)
    ensure_owner()
    plan = rules.plan(facts, keep)
    if forgotten := rules.forgotten(facts, plan):
        record(forgotten)
        failpoints.hit("retention.recorded")
    apply(storage, plan, ensure_owner)
    return plan
