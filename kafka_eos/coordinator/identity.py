"""Which life of its name a job is: read from its directory, or made there at its first start.

Rule: the identity is created exclusively, and never changes once something was decided under it. A directory that is
older than identities gets one at its next start, with the durable note that output without an identity is its own:
nobody else may touch that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.manifest import Identity
from kafka_eos.coordinator.term import now_ms
from kafka_eos.ids import JobIdentity, Term
from kafka_eos.interfaces import CheckpointStorage, JobContext, Json


def find(storage: CheckpointStorage, job: str) -> Identity | None:
    """None if the directory has none yet. Raises CorruptCheckpoint if it is not what was written."""
    try:
        return records.load(storage, Identity, paths.IDENTITY, job)
    except FileNotFoundError:
        return None


def establish(storage: CheckpointStorage, job: str) -> Identity:
    """The directory's identity; made now if there is none, by whoever is first."""
    if (found := find(storage, job)) is not None:
        return found
    with suppress(FileExistsError):  # another supervisor starts the same job at this moment
        records.publish(storage, _first(storage, job))
    return records.load(storage, Identity, paths.IDENTITY, job)


def forget(storage: CheckpointStorage) -> None:
    """The next start makes another identity. Only while nothing was decided under this one."""
    storage.delete(paths.IDENTITY)


def context(storage: CheckpointStorage, job: str, settings: Mapping[str, Json]) -> JobContext:
    """The job's context before it has a term; of a directory without identity, as its next start will make it."""
    found = find(storage, job)
    if found is None:
        return JobContext(job, Term(0), settings, None, owns_nameless=_decided(storage))
    return context_of(found, Term(0), settings)


def context_of(identity: Identity, term: Term, settings: Mapping[str, Json]) -> JobContext:
    return JobContext(identity.job, term, settings, identity.id, identity.nameless)


def _first(storage: CheckpointStorage, job: str) -> Identity:
    return Identity(job=job, identity=str(JobIdentity.new()), nameless=_decided(storage), at=now_ms())


def _decided(storage: CheckpointStorage) -> bool:
    """Whether the directory has decided something, so that it may have output; before epoch 0 there is none."""
    return bool(storage.list(paths.MANIFESTS))
