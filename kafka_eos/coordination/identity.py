"""The incarnation of a job: written in its manifests, and in ``identity.json``.

Each start in a directory without decided epochs takes a new identity. The start that decides epoch 0 gives its identity
to the directory for good. So a start that was refused or replaced can end its own incarnation without ending another.
Rule: the file is written when an epoch is decided, by a process that knows that the decision is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.coordination.terms import now_ms
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import IdentityRecord, Manifest, TermClaim


def load(storage: CheckpointStorage, job: str) -> IdentityRecord | None:
    """Return the identity of the directory; None if it has none yet.

    Raises CorruptCheckpoint if the record is damaged.
    """
    try:
        return records.load(storage, IdentityRecord, paths.IDENTITY, job)
    except FileNotFoundError:
        return None


def new(job: str) -> IdentityRecord:
    """Return a new, unique identity. Nothing is written."""
    return IdentityRecord(job=job, identity=str(JobIdentity.new()), at=now_ms())


def from_manifest(manifest: Manifest) -> IdentityRecord:
    """Return the identity that the newest manifest names."""
    return IdentityRecord(job=manifest.job, identity=manifest.identity, at=now_ms())


def save(storage: CheckpointStorage, identity: IdentityRecord) -> IdentityRecord:
    """Save the identity unless another process was faster; return the saved one."""
    with suppress(FileExistsError):
        records.publish(storage, identity)
    return records.load(storage, IdentityRecord, paths.IDENTITY, identity.job)


def of_terms(storage: CheckpointStorage, job: str, terms: Iterable[Term]) -> frozenset[JobIdentity]:
    """Return the identities under which these terms were claimed."""
    claims = (records.load(storage, TermClaim, paths.claim_name(term), job) for term in terms)
    return frozenset(JobIdentity(claim.identity) for claim in claims if claim.identity is not None)


def load_newest_manifest(storage: CheckpointStorage, job: str) -> Manifest | None:
    """Return the manifest of the newest decided epoch, or None."""
    found = max(map(paths.parse_manifest_name, storage.list(paths.MANIFESTS)), default=None)
    return None if found is None else records.load(storage, Manifest, paths.manifest_name(found), job)


def build_context(storage: CheckpointStorage, job: str, settings: Mapping[str, Json]) -> JobContext:
    """Return the job's context before it has a term."""
    found = load(storage, job)
    if found is not None:
        return context_of(found, Term(0), settings)
    manifest = load_newest_manifest(storage, job)
    return JobContext(job, Term(0), settings, None if manifest is None else JobIdentity(manifest.identity))


def context_of(identity: IdentityRecord, term: Term, settings: Mapping[str, Json]) -> JobContext:
    return JobContext(identity.job, term, settings, identity.id)
