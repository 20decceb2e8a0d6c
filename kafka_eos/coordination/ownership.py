"""Who a start is and whether it still owns the job: its identity, its term, and the epochs that count for it.

Rule: a term is claimed before anything is looked at, and its base record is there before anything new is decided.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Patience
from kafka_eos.abc.context import JobContext
from kafka_eos.coordination import identity as identities
from kafka_eos.coordination import terms
from kafka_eos.coordination.dead_letter_counts import Refusals
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Json
from kafka_eos.protocol.recovery import Facts
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import store_outages as outages
from kafka_eos.storage.job_records import Identity, Manifest
from kafka_eos.storage.job_storage import JobStorage


class Ownership:
    """Holds one term of one job, once it has taken one."""

    identity: Identity
    """The life that this start is; known once it takes part, see ``recovery``."""

    def __init__(
        self, storage: JobStorage, job: str, settings: Mapping[str, Json], refusals: Refusals | None = None
    ) -> None:
        self.job, self._storage, self._settings, self._refusals = job, storage, settings, refusals
        self.context = JobContext(job, Term(0), settings)
        self.next = Epoch(0)
        """The epoch that comes next."""

    @property
    def term(self) -> Term:
        return self.context.term

    def recognise(self) -> JobContext:
        """Who the job is: by its directory as long as no term is taken, which is what a tool needs that only looks."""
        if self.term == Term(0):
            self.context = identities.context(self._storage, self.job, self._settings)
        return self.context

    def recognise_by(self, newest: EpochId) -> None:
        """The job is the life that decided this epoch: it ended before it had written that down.

        It is written with the base record of this term, from which on that epoch counts for good.
        """
        self.identity = identities.of(self._read(newest))
        self.context = identities.context_of(self.identity, self.term, self._settings)

    def keep_identity(self) -> None:
        """Write down who the job is, unless it is written."""
        identities.keep(self._storage, self.identity)

    def take_term(self, above: Term) -> Facts:
        term = terms.claim(self._storage, self.job, above, self.identity.id)
        self.context = identities.context_of(self.identity, term, self._settings)
        hit("recovery.claimed")
        return terms.settled(self._storage, self.job, term)

    def rebase(self, base: EpochId | None, reason: str) -> None:
        """Write the epoch that the term goes on from."""
        terms.write_base(self._storage, self.job, self.term, base, reason)
        if self._refusals is not None:
            self._refusals.goes_on_from(base)
        hit("recovery.based")

    def next_epoch(self) -> EpochId:
        """A fresh id for the next checkpoint of this term."""
        epoch = EpochId(self.next, self.term)
        self.next = self.next.next()
        return epoch

    def load(self, epoch: EpochId) -> Manifest:
        """The manifest of an epoch of this life."""
        return records.expect_life(self._read(epoch), self.identity)

    def _read(self, epoch: EpochId) -> Manifest:
        try:
            return records.load(self._storage, Manifest, paths.manifest_name(epoch), self.job)
        except FileNotFoundError:
            self.ensure()  # a store that went away meanwhile looks empty
            raise CorruptCheckpoint(f"{paths.manifest_name(epoch)} is named by a term record but missing") from None

    def check(self) -> None:
        """Raise Fenced if a newer term was claimed."""
        terms.check(self._storage, self.term)

    def ensure(self) -> None:
        """As ``check``, once there is a term: whoever took over must not be taken over by us again."""
        if self.term > Term(0):
            self.check()

    def until_sure(self, patience: Patience, known: Term, after: BaseException) -> None:
        """Wait until the store, which must know of term ``known``, says who owns the job; ``after``: why it is asked.

        Raises Fenced if it is another one, Interrupted when told to stop.
        """

        def ask() -> None:
            terms.expect(self._storage, known)
            self.ensure()

        what = f"ask the checkpoint store who owns the job, after this: {after}"
        patience.until_answered(what, lambda: outages.answered(ask))
