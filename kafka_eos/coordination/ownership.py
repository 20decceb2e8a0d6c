"""The identity and term of this run, whether it still owns the job, and its valid epochs.

Rule: a term is claimed before anything is read, and its base record is written before anything new is decided.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import JobContext
from kafka_eos.coordination import identity as identities
from kafka_eos.coordination import terms
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Json
from kafka_eos.protocol.recovery import RecordListing
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import store_outages as outages
from kafka_eos.storage.job_records import IdentityRecord, Manifest
from kafka_eos.storage.job_storage import JobStorage


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
            self.context = identities.build_context(self._storage, self.job, self._settings)
        return self.context

    def adopt_identity_of(self, newest: EpochId) -> None:
        """Adopt the incarnation that decided this epoch.

        It is written with the base record of this term, which makes that epoch valid for good.
        """
        self.identity = identities.from_manifest(self._read(newest))
        self.context = identities.context_of(self.identity, self.term, self._settings)

    def save_identity(self) -> None:
        """Save the identity unless it is saved already."""
        identities.save(self._storage, self.identity)

    def take_term(self, above: Term, after: Term | None = None) -> RecordListing:
        """Take a new term above ``above``; with ``after``, take the term after it or raise Fenced."""
        if after is None:
            term = terms.claim(self._storage, self.job, above, self.identity.id)
        else:
            term = terms.claim_next(self._storage, self.job, after, self.identity.id)
        self.context = identities.context_of(self.identity, term, self._settings)
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
        patience.retry(what, lambda: outages.call_store(ask))
