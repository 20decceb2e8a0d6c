"""The identity and term of this run, whether it still owns the job, and its valid epochs.

The identity is the job's incarnation: it is written in the job's manifests, and in ``identity.json``. Each start in a
directory without decided epochs takes a new one. The start that decides epoch 0 gives its identity to the directory for
good. So a start that was refused or replaced can end its own incarnation without ending another.

Rules: a term is claimed before anything is read, and its base record is written before anything new is decided.
``identity.json`` is written when an epoch is decided, by a process that knows that the decision is valid.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.coordination import terms
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.protocol.recovery import RecordListing
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import IdentityRecord, Manifest, TermClaim
from kafka_eos.storage.job_storage import JobStorage

T = TypeVar("T")

_NEEDS_PERSON: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a store that do not go away by themselves: missing permissions, a read-only file system."""


class Ownership:
    """The ownership of one job in one term, once the term is taken."""

    identity: IdentityRecord
    """The incarnation of this run; set by ``recovery``."""

    def __init__(
        self,
        storage: JobStorage,
        job: str,
        settings: Mapping[str, Json],
        refusals: DeadLetterMonitor | None = None,
        dependencies: DependencyMonitor | None = None,
        home: str = "its directory",
    ) -> None:
        """Create the ownership without a term. ``home``: the location of the storage, for messages."""
        self.job = job
        self._storage = storage
        self._settings = settings
        self._refusals = refusals
        self._dependencies = dependencies or DependencyMonitor()
        self._store = f"checkpoint store {home}"
        self.context = JobContext(job, Term(0), settings)
        self.next_number = Epoch(0)
        """The number of the next epoch."""

    @property
    def term(self) -> Term:
        return self.context.term

    def load_identity(self) -> JobContext:
        """Load the job's identity if no term is taken yet."""
        if self.term == Term(0):
            record = load_identity_record(self._storage, self.job)
            found = load_newest_manifest(self._storage, self.job) if record is None else record
            identity = None if found is None else JobIdentity(found.identity)
            self.context = JobContext(self.job, Term(0), self._settings, identity)
        return self.context

    def adopt_identity_of(self, newest: EpochId) -> None:
        """Adopt the incarnation that decided this epoch.

        It is written with the base record of this term, which makes that epoch valid for good.
        """
        self.identity = IdentityRecord(job=self.job, identity=self._read(newest).identity, at=terms.now_ms())
        self.context = JobContext(self.job, self.term, self._settings, self.identity.id)

    def save_identity(self) -> None:
        """Save the identity unless it is saved already."""
        with suppress(FileExistsError):
            records.publish(self._storage, self.identity)

    def take_term(self, above: Term, after: Term | None = None) -> RecordListing:
        """Take a new term above ``above``; with ``after``, take the term after it or raise Fenced."""
        if after is None:
            term = terms.claim(self._storage, self.job, above, self.identity.id)
        else:
            term = terms.claim_next(self._storage, self.job, after, self.identity.id)
        self.context = JobContext(self.job, term, self._settings, self.identity.id)
        hit("recovery.claimed")
        return terms.close_older_terms(self._storage, self.job, term)

    def write_base(self, base: EpochId | None, reason: str) -> None:
        """Write the base record: the epoch that this term continues from."""
        terms.write_base(self._storage, self.job, self.term, base, reason)
        if self._refusals is not None:
            self._refusals.rewind_to(base)
        hit("recovery.based")

    def next_epoch(self) -> EpochId:
        """Return a new id for the next checkpoint of this term."""
        epoch = EpochId(self.next_number, self.term)
        self.next_number = self.next_number.next()
        return epoch

    def load(self, epoch: EpochId) -> Manifest:
        """Return the manifest of an epoch of this incarnation."""
        return records.ensure_same_incarnation(self._read(epoch), self.identity)

    def _read(self, epoch: EpochId) -> Manifest:
        try:
            return records.load(self._storage, Manifest, paths.manifest_name(epoch), self.job)
        except FileNotFoundError:
            self.ensure_owner()  # an unmounted store looks empty
            raise CorruptCheckpoint(f"{paths.manifest_name(epoch)} is named by a term record but missing") from None

    def ensure_newest_term(self) -> None:
        """Raise Fenced if a newer term was claimed."""
        with self._dependencies.watch(self._store):
            terms.ensure_newest(self._storage, self.term)

    def ensure_owner(self) -> None:
        """Raise Fenced if a newer term was claimed. Do nothing before the first claim."""
        if self.term > Term(0):
            self.ensure_newest_term()

    def wait_for_answer(self, patience: Retrier, known: Term, after: BaseException) -> None:
        """Wait until the store shows which supervisor owns the job.

        Raises Fenced if it is another one, Interrupted on a stop.
        """

        def ask() -> None:
            with self._dependencies.watch(self._store):
                terms.newest_claimed(self._storage, known)
                self.ensure_owner()

        what = f"check in the checkpoint store who owns the job, after this: {after}"
        patience.retry(what, lambda: call_store(ask))


def call_store(call: Callable[[], T]) -> T:
    """Call a checkpoint store that has responded to this run before. Raise Retryable for an outage and ConfigError for
    missing permissions; all other errors propagate unchanged.

    If a directory of such a store is missing, it is not mounted now; if its disk is full, space will be freed.
    """
    try:
        return call()
    except OSError as error:
        if error.errno in _NEEDS_PERSON:
            raise ConfigError(
                f"the checkpoint store refuses this job: {error}. Restore the job's permissions"
            ) from error
        raise Retryable(f"the checkpoint store does not respond: {error}") from error


def load_identity_record(storage: CheckpointStorage, job: str) -> IdentityRecord | None:
    """Return the identity of the directory; None if it has none yet.

    Raises CorruptCheckpoint if the record is damaged.
    """
    try:
        return records.load(storage, IdentityRecord, paths.IDENTITY, job)
    except FileNotFoundError:
        return None


def new_identity_record(job: str) -> IdentityRecord:
    """Return a new, unique identity. Nothing is written."""
    return IdentityRecord(job=job, identity=str(JobIdentity.new()), at=terms.now_ms())


def list_identities(storage: CheckpointStorage, job: str, claimed: Iterable[Term]) -> frozenset[JobIdentity]:
    """Return the identities under which these terms were claimed."""
    claims = (records.load(storage, TermClaim, paths.claim_name(term), job) for term in claimed)
    return frozenset(JobIdentity(claim.identity) for claim in claims if claim.identity is not None)


def load_newest_manifest(storage: CheckpointStorage, job: str) -> Manifest | None:
    """Return the manifest of the newest decided epoch, or None."""
    found = max(map(paths.parse_manifest_name, storage.list(paths.MANIFESTS)), default=None)
    return None if found is None else records.load(storage, Manifest, paths.manifest_name(found), job)
