"""The committer of staged rows of any database: commit them, and abort what no manifest names.

A database adds its catalog of stages, and the transactions that end one.
Rule: the outcome of a commit is never guessed. If the response is lost, the catalog is read.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from kafka_eos.abc.committer import (
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
    OutputOwner,
    Probe,
    StagedOutput,
)
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationSign, SupportsLossCheck, SupportsRegistration
from kafka_eos.connectors._staged_tables.registrations import (
    OpenStage,
    Registration,
    ensure_registered,
    list_signs,
)
from kafka_eos.connectors._staged_tables.stage_names import (
    Incarnation,
    Strategy,
    TableCommittable,
    describe_missing_commits,
)
from kafka_eos.core.errors import Bug, CommittableLost
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

C = TypeVar("C")
"""The type of a connection."""
C_contra = TypeVar("C_contra", contravariant=True)


class StagingEntry(Struct, frozen=True):
    """A stage that is open or prepared. ``detail``: its state, for messages. ``age`` in seconds."""

    id: uuid.UUID
    identity: JobIdentity | None
    term: Term
    detail: str
    age: float
    strategy: Strategy = Strategy.STAGE


class StagingCatalog(Protocol[C_contra]):
    """The records of stages and incarnations in a database. Each method runs in the caller's transaction."""

    def is_there(self, connection: C_contra, /) -> bool:
        """Return whether its tables exist. Without them no other method is called except ``register``."""

    def name(self, of: uuid.UUID, strategy: Strategy, /) -> str:
        """Return the name of a stage, for messages."""

    def read_status(self, connection: C_contra, stage: TableCommittable, /) -> CommitStatus: ...

    def list_open(self, connection: C_contra, job: str, /) -> Sequence[StagingEntry]:
        """List open and prepared stages of every incarnation of a job's name, the oldest first."""

    def list_registrations(self, connection: C_contra, job: str, /) -> Sequence[Registration]: ...

    def find_newest_epoch(self, connection: C_contra, incarnation: Incarnation, /) -> Epoch | None:
        """Return the newest epoch with committed rows; None if none is recorded."""

    def register(self, connection: C_contra, incarnation: Incarnation, term: Term, /) -> Registration:
        """Register an incarnation with its newest term; return what is registered."""

    def set_taken_over(self, connection: C_contra, incarnation: Incarnation, /) -> Any: ...


class StagedTableCommitter(SupportsRegistration, SupportsLossCheck, Committer, Generic[C]):
    """The committer of one database. Thread-safe, and usable by any process that has the manifest."""

    def __init__(self, catalog: StagingCatalog[C], scope: str) -> None:
        self._catalog = catalog
        self._scope = scope

    # ------------------------------------------------------------ what a database adds

    @abstractmethod
    def _session(self, what: str, incarnation: Incarnation | None = None) -> AbstractContextManager[C]:
        """Yield a connection for one call, and map its errors. ``incarnation``: whose locks the call may wait for."""

    @abstractmethod
    def _apply(self, stage: TableCommittable, permit: EpochId, what: str) -> bool:
        """Make staged rows visible in one transaction, with its marker. Return False, without changes, if they are not
        prepared.

        A writer's stages of one manifest are committed in any order, and concurrently. Its older rows must not
        overwrite its newer ones, so remaining predecessors are applied first; they belong to the same manifest. All
        processes apply them in the same order, the oldest first, so there is no deadlock.
        """

    @abstractmethod
    def _abort(self, incarnation: Incarnation, entry: StagingEntry) -> bool:
        """Drop a stage; return whether it existed: a process with a commit permit may have been faster."""

    @abstractmethod
    def _describe_loss(self, stage: TableCommittable) -> str:
        """Return what became of a lost stage, as the end of a sentence."""

    @abstractmethod
    def _describe_remedy(self, stage: TableCommittable) -> str:
        """Return how a user records the outcome of a stage that the catalog does not know."""

    # ------------------------------------------------------------ committables

    def read_owner(self, committable: Committable) -> OutputOwner:
        """Return the owner and the target of the payload. The catalog finds stages of this owner only."""
        stage = TableCommittable.from_payload(committable.payload)
        incarnation, epoch = stage.incarnation, stage.epoch
        target = stage.target.describe()
        return OutputOwner(self._name(stage), incarnation.job, incarnation.identity, epoch.term, epoch.epoch, target)

    def probe(self, committable: Committable) -> Probe:
        stage = TableCommittable.from_payload(committable.payload)
        with self._session(f"look for {self._name(stage)}") as connection:
            status = CommitStatus.UNKNOWN
            if self._catalog.is_there(connection):
                status = self._catalog.read_status(connection, stage)
        return Probe(status, self._describe(stage, status))

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        stage = TableCommittable.from_payload(committable.payload)
        if permit.epoch < stage.epoch:  # an older epoch may have been aborted; its output is part of this one
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {self._name(stage)}")
        if self._apply(stage, permit.epoch, f"commit {self._name(stage)} into {stage.target}"):
            return CommitOutcome.COMMITTED
        probe = self.probe(committable)
        if probe.status is CommitStatus.COMMITTED:
            return CommitOutcome.ALREADY
        raise CommittableLost(f"epoch {permit.epoch}: {probe.detail}")

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List open and prepared stages."""
        with self._session(f"look into {self._scope}") as connection:
            entries = self._list_open(connection, ctx.job)
        return [StagedOutput(of.term, self._entry_name(of), of.detail, of.age, of.identity) for of in entries]

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Drop this incarnation's stages of older terms, including open ones."""
        return self._abort_matching(ctx.job, lambda of: ctx.owns(of.identity) and of.term < ctx.term)

    def _abort_matching(self, job: str, matches: Callable[[StagingEntry], bool]) -> list[str]:
        with self._session(f"clean up {self._scope}") as connection:
            old = [entry for entry in self._list_open(connection, job) if matches(entry)]
        return [self._entry_name(entry) for entry in old if self._abort(Incarnation(job, entry.identity), entry)]

    def _list_open(self, connection: C, job: str) -> Sequence[StagingEntry]:
        return self._catalog.list_open(connection, job) if self._catalog.is_there(connection) else ()

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List incarnations by registrations and staged output."""
        with self._session(f"look into {self._scope}") as connection:
            if not self._catalog.is_there(connection):
                return []
            registrations = self._catalog.list_registrations(connection, ctx.job)
            entries = self._catalog.list_open(connection, ctx.job)
            registered = [Incarnation(ctx.job, each.identity) for each in registrations]
            committed = {each.identity: self._catalog.find_newest_epoch(connection, each) for each in registered}
        open_ = [OpenStage(of.identity, self._entry_name(of), of.term, of.age) for of in entries]
        return list_signs(self._scope, registrations, open_, committed)

    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """Return which committed output the database lacks, or None."""
        stages = [TableCommittable.from_payload(each.payload) for each in committables]
        with self._session(f"look into {self._scope}") as connection:
            if not self._catalog.is_there(connection):
                unknown = [CommitStatus.UNKNOWN for _ in stages]
                return describe_missing_commits(self._scope, None, newest, unknown, None)
            registrations = {each.identity: each for each in self._catalog.list_registrations(connection, ctx.job)}
            statuses = [self._catalog.read_status(connection, stage) for stage in stages]
            last = self._catalog.find_newest_epoch(connection, Incarnation(ctx.job, ctx.identity))
        return describe_missing_commits(self._scope, registrations.get(ctx.identity), newest, statuses, last)

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation in a row with its newest term: writers of older terms can no longer begin output."""
        incarnation = Incarnation(ctx.job, ctx.identity)
        with self._session(f"look up the registration of job {ctx.job!r} in {self._scope}", incarnation) as connection:
            registration = self._catalog.register(connection, incarnation, ctx.term)
        ensure_registered(ctx, self._scope, registration)

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """End an incarnation: it prepares nothing without its registration. Then abort its stages."""
        incarnation = Incarnation(ctx.job, identity)
        with self._session(
            f"remove the registration of incarnation {identity} in {self._scope}", incarnation
        ) as connection:
            if not self._catalog.is_there(connection):
                return []
            self._catalog.set_taken_over(connection, incarnation)
        return self._abort_matching(ctx.job, lambda of: of.identity == identity)

    # ------------------------------------------------------------ messages

    def _entry_name(self, entry: StagingEntry) -> str:
        return self._catalog.name(entry.id, entry.strategy)

    def _name(self, stage: TableCommittable) -> str:
        return self._catalog.name(stage.id, stage.strategy)

    def _describe(self, stage: TableCommittable, status: CommitStatus) -> str:
        """Return a description of a stage's status, with a remedy if it is unknown."""
        match status:
            case CommitStatus.PREPARED:
                return f"{self._name(stage)} exists"
            case CommitStatus.COMMITTED:
                return f"{self._name(stage)} was committed into {stage.target}"
            case CommitStatus.LOST:
                return f"{self._name(stage)} was {self._describe_loss(stage)}"
        return (
            f"unknown whether {self._name(stage)} was committed to {stage.target}: "
            f"{self._scope} does not list it. Most likely an older copy of the database was "
            "restored, or this is another database. If it contains the rows of epoch "
            f"{stage.epoch}, record this{self._describe_remedy(stage)}"
        )
