"""Terms: fencing tokens kept in the checkpoint storage.

A term is *claimed* (create-exclusive) before anything is looked at, and gets a *base* record once recovery knows
which decided epoch it continues. A base record is written once, by whoever comes first: a newer term closes those
before it that have none (``settled``), so that one that sleeps cannot write another history when it wakes up.
Together with the check after each publication this is a handshake: either the old term's manifest is published before
the new claim is listed, and is continued; or the old term sees the claim right after publishing, and commits nothing.
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
from kafka_eos.protocol.lineage import unbased
from kafka_eos.protocol.recovery import Facts, decided, gone
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage


def claim(storage: CheckpointStorage, job: str, above: Term, identity: JobIdentity | None = None) -> Term:
    """Take the next term for good; it is higher than ``above`` too."""
    term = max([above, *_terms(storage, "claim")]).next()
    while True:
        try:
            records.publish(
                storage,
                records.Claim(
                    job=job,
                    term=term.n,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    at=now_ms(),
                    identity=None if identity is None else identity.text,
                ),
            )
        except FileExistsError:
            term = term.next()
        else:
            return term


def write_base(storage: JobStorage, job: str, term: Term, base: EpochId | None, reason: str) -> None:
    """Record which decided epoch ``term`` continues. From here on, older terms' later manifests do not count.

    Raises Fenced if a newer term has closed this one; FileExistsError if there is a record, and no newer term.
    """
    try:
        _publish_base(storage, job, term, base, reason)
    except FileExistsError:
        check(storage, term)
        raise


def settled(storage: JobStorage, job: str, mine: Term) -> Facts:
    """What is stored, for ``protocol.recovery``, of which no older term can make another history any more.

    A term without a base record is closed: it gets one, which names the newest epoch that counts. In order, and what
    counts is looked up again when somebody else was faster, so that all who close terms agree. Nothing is closed if
    records were removed: see ``missing``.
    """
    while True:
        facts = gather(storage, job)
        newest, open_ = _newest(facts.claims, mine), unbased(facts.claims, facts.bases, mine)
        if not open_ or newest > mine or missing(facts):
            return facts
        history = decided(facts)
        with suppress(FileExistsError):
            _publish_base(storage, job, open_[0], history[-1] if history else None, f"closed by term {mine}")


def check(storage: CheckpointStorage, term: Term) -> None:
    """Raise Fenced if a newer term is claimed; else as ``expect``."""
    newest = expect(storage, term)
    if newest > term:
        raise Fenced(f"term {term} was replaced by term {newest}: another supervisor took over this job")


def expect(storage: CheckpointStorage, term: Term) -> Term:
    """The newest term that is claimed. Raises OSError if it is older than ``term``, which was claimed here once.

    The newest claim is never deleted. A store without it is another one: a directory that is not mounted, for example.
    """
    return _newest(_terms(storage, "claim"), term)


def _newest(claims: Collection[Term], mine: Term) -> Term:
    """As ``expect``, of claims that were listed."""
    newest = max(claims, default=Term(0))
    if newest < mine:
        raise FileNotFoundError(errno.ENOENT, "the store does not hold what this job wrote", paths.claim_name(mine))
    return newest


def gather(storage: JobStorage, job: str) -> Facts:
    """What is stored, for ``protocol.recovery``. Opens base records, nothing else.

    A newer term may write meanwhile: what follows from another record is looked for before it, so that none of its
    records is taken for one whose cause was removed.
    """
    receipts = frozenset(map(paths.parse_receipt_name, storage.list(paths.RECEIPTS)))
    manifests = frozenset(map(paths.parse_manifest_name, storage.list(paths.MANIFESTS)))
    bases = {term: _base(storage, job, term) for term in _terms(storage, "base")}
    return Facts(frozenset(_terms(storage, "claim")), bases, manifests, receipts)


def gather_from_outside(storage: JobStorage, job: str) -> Facts:
    """As ``gather``, for whoever only looks. The job may run meanwhile: what it drops is looked for again, once."""
    try:
        return gather(storage, job)
    except FileNotFoundError:
        return gather(storage, job)


def missing(facts: Facts) -> list[str]:
    """Names of records that must have been removed: without them nobody can tell where the job is."""
    bases, manifests = gone(facts)
    return [*map(paths.base_name, bases), *map(paths.manifest_name, manifests)]


def now_ms() -> int:
    """Milliseconds since the Unix epoch, for records that people read; no decision rests on it."""
    return time.time_ns() // 1_000_000


def _publish_base(storage: JobStorage, job: str, term: Term, base: EpochId | None, reason: str) -> None:
    resumed = None if base is None else (base.epoch.n, base.term.n)
    records.publish(storage, records.Base(job=job, term=term.n, resumed=resumed, reason=reason, at=now_ms()))


def _base(storage: JobStorage, job: str, term: Term) -> EpochId | None:
    return records.load(storage, records.Base, paths.base_name(term), job).resumed_id


def _terms(storage: CheckpointStorage, kind: str) -> list[Term]:
    parsed = map(paths.parse_term_name, storage.list(paths.TERMS))
    return [term for term, which in parsed if which == kind]
