"""Which life of its name a job is: what its manifests say, and ``identity.json`` shows.

Each start of a directory that has decided nothing takes an identity of its own, and the one that decides epoch 0 gives
it to the directory for good. So whoever is refused, or was replaced, can end its own life and nobody else's.
Rule: the file is written when something is decided, by whoever is sure that it counts.
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
from kafka_eos.storage.job_records import Claim, Identity, Manifest


def find(storage: CheckpointStorage, job: str) -> Identity | None:
    """None if the directory has none yet. Raises CorruptCheckpoint if it is not what was written."""
    try:
        return records.load(storage, Identity, paths.IDENTITY, job)
    except FileNotFoundError:
        return None


def new(job: str) -> Identity:
    """One that nobody has had. Nothing is written."""
    return Identity(job=job, identity=str(JobIdentity.new()), at=now_ms())


def of(manifest: Manifest) -> Identity:
    """Of the directory whose newest epoch this is."""
    return Identity(job=manifest.job, identity=manifest.identity, at=now_ms())


def keep(storage: CheckpointStorage, identity: Identity) -> Identity:
    """Write it for good, unless somebody has been faster; what is written."""
    with suppress(FileExistsError):
        records.publish(storage, identity)
    return records.load(storage, Identity, paths.IDENTITY, identity.job)


def earlier(storage: CheckpointStorage, job: str, terms: Iterable[Term]) -> frozenset[JobIdentity]:
    """Of the starts of this directory that had these terms."""
    claims = (records.load(storage, Claim, paths.claim_name(term), job) for term in terms)
    return frozenset(JobIdentity(claim.identity) for claim in claims if claim.identity is not None)


def newest(storage: CheckpointStorage, job: str) -> Manifest | None:
    """Of the newest epoch that the job has decided; None if it has decided none."""
    found = max(map(paths.parse_manifest_name, storage.list(paths.MANIFESTS)), default=None)
    return None if found is None else records.load(storage, Manifest, paths.manifest_name(found), job)


def context(storage: CheckpointStorage, job: str, settings: Mapping[str, Json]) -> JobContext:
    """The job's context before it has a term."""
    found = find(storage, job)
    if found is not None:
        return context_of(found, Term(0), settings)
    manifest = newest(storage, job)
    return JobContext(job, Term(0), settings, None if manifest is None else JobIdentity(manifest.identity))


def context_of(identity: Identity, term: Term, settings: Mapping[str, Json]) -> JobContext:
    return JobContext(identity.job, term, settings, identity.id)
