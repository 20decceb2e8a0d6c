"""Terms: fencing tokens stored in the checkpoint storage.

A term is *claimed* (create-exclusive) before anything is read, and gets a *base* record once recovery knows which
decided epoch it continues. A base record is written once, by whichever process is first. A newer term closes earlier
terms without one (``close_older_terms``), so that a sleeping supervisor cannot write another history when it resumes.
Together with the check after each publication this is a handshake with two outcomes:
- The old term's manifest is published before the new claim is listed, and the new term continues from it.
- The old term sees the claim right after publishing, and commits nothing.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Collection
from contextlib import suppress

from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.protocol.lineage import terms_without_base
from kafka_eos.protocol.recovery import RecordListing, decided_epochs, find_missing_records
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage


def claim(storage: CheckpointStorage, job: str, above: Term, identity: JobIdentity | None = None) -> Term:
    """Claim the next term for good; it is also higher than ``above``."""
    term = max([above, *_terms(storage, "claim")]).next()
    while True:
        try:
            _publish_claim(storage, job, term, identity)
        except FileExistsError:
            term = term.next()
        else:
            return term


def claim_next(storage: CheckpointStorage, job: str, mine: Term, identity: JobIdentity | None = None) -> Term:
    """Claim the term after ``mine``. Raise Fenced if another process has claimed it.

    A process that was replaced therefore never replaces its successor, however long it was paused.
    """
    ensure_newest(storage, mine)
    try:
        _publish_claim(storage, job, mine.next(), identity)
    except FileExistsError:
        raise Fenced(f"term {mine} was replaced by term {mine.next()}: another supervisor took over this job") from None
    return mine.next()


def _publish_claim(storage: CheckpointStorage, job: str, term: Term, identity: JobIdentity | None) -> None:
    written_by = None if identity is None else identity.text
    claimed = records.TermClaim(
        job=job, term=term.n, host=socket.gethostname(), pid=os.getpid(), at=now_ms(), identity=written_by
    )
    records.publish(storage, claimed)


def write_base(storage: JobStorage, job: str, term: Term, base: EpochId | None, reason: str) -> None:
    """Record which decided epoch ``term`` continues. From here on, later manifests of older terms are void.

    Raises Fenced if a newer term has closed this one; FileExistsError if the record exists without a newer term.
    """
    try:
        _publish_base(storage, job, term, base, reason)
    except FileExistsError:
        ensure_newest(storage, term)
        raise


def close_older_terms(storage: JobStorage, job: str, mine: Term) -> RecordListing:
    """Close older terms without a base record; return the record listing.

    A term is closed by writing its base record, which names the newest valid epoch. Terms are closed in order. If
    another process was faster, the valid epochs are computed again, so that all processes agree. Nothing is closed if
    records were removed: see ``find_missing``.
    """
    while True:
        facts = list_records(storage, job)
        newest, open_ = _newest(facts.claims, mine), terms_without_base(facts.claims, facts.bases, mine)
        if not open_ or newest > mine or find_missing(facts):
            return facts
        history = decided_epochs(facts)
        with suppress(FileExistsError):
            _publish_base(storage, job, open_[0], history[-1] if history else None, f"closed by term {mine}")


def ensure_newest(storage: CheckpointStorage, term: Term) -> None:
    """Raise Fenced if a newer term is claimed."""
    newest = newest_claimed(storage, term)
    if newest > term:
        raise Fenced(f"term {term} was replaced by term {newest}: another supervisor took over this job")


def newest_claimed(storage: CheckpointStorage, term: Term) -> Term:
    """Return the newest claimed term.

    Raises OSError if it is older than ``term``, which this process claimed. The newest claim is never deleted, so a
    store without it is a different one: for example, a directory that is not mounted.
    """
    return _newest(_terms(storage, "claim"), term)


def _newest(claims: Collection[Term], mine: Term) -> Term:
    """Return the newest of the listed claims. Raise OSError if it is older than ``mine``."""
    newest = max(claims, default=Term(0))
    if newest < mine:
        raise FileNotFoundError(errno.ENOENT, "the store does not contain what this job wrote", paths.claim_name(mine))
    return newest


def list_records(storage: JobStorage, job: str) -> RecordListing:
    """List claims, bases, manifests and receipts. Only base records are read.

    A newer term may write meanwhile. So a record is listed before the records that must exist before it; otherwise a
    new record would look like one whose predecessor was removed.
    """
    receipts = frozenset(map(paths.parse_receipt_name, storage.list(paths.RECEIPTS)))
    manifests = frozenset(map(paths.parse_manifest_name, storage.list(paths.MANIFESTS)))
    bases = {term: _base(storage, job, term) for term in _terms(storage, "base")}
    return RecordListing(frozenset(_terms(storage, "claim")), bases, manifests, receipts)


def gather_from_outside(storage: JobStorage, job: str) -> RecordListing:
    """List the records of a job that may be running, for a read-only process.

    If the job deletes a record meanwhile, the listing is repeated once.
    """
    try:
        return list_records(storage, job)
    except FileNotFoundError:
        return list_records(storage, job)


def find_missing(facts: RecordListing) -> list[str]:
    """Return the names of records that must have been removed."""
    bases, manifests = find_missing_records(facts)
    return [*map(paths.base_name, bases), *map(paths.manifest_name, manifests)]


def now_ms() -> int:
    """Return the milliseconds since the Unix epoch, for display; no decision depends on it."""
    return time.time_ns() // 1_000_000


def _publish_base(storage: JobStorage, job: str, term: Term, base: EpochId | None, reason: str) -> None:
    resumed = None if base is None else (base.epoch.n, base.term.n)
    records.publish(storage, records.TermBase(job=job, term=term.n, resumed=resumed, reason=reason, at=now_ms()))


def _base(storage: JobStorage, job: str, term: Term) -> EpochId | None:
    return records.load(storage, records.TermBase, paths.base_name(term), job).resumed_id


def _terms(storage: CheckpointStorage, kind: str) -> list[Term]:
    parsed = map(paths.parse_term_name, storage.list(paths.TERMS))
    return [term for term, which in parsed if which == kind]
