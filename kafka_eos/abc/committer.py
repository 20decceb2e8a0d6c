"""Committers: prepared output (committables), the status that a probe finds, and its commit or abort.

Rule: any process can commit or abort a committable, any number of times.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json


class Spread(Struct, frozen=True):
    """The number of partitions over which a sink's records were distributed, and the partitioner that did it.

    ``partitioner`` is the client's name of the partitioner of keyed records, None if unknown. ``fewest`` and ``most``
    are the numbers of partitions; they differ if some may have been added meanwhile.
    """

    topic: str
    partitioner: str | None
    fewest: int
    most: int

    def joined(self, other: Spread) -> Spread | None:
        """Return the facts that hold for the records of both; None if they differ in more than the partition counts."""
        if (self.topic, self.partitioner) != (other.topic, other.partitioner):
            return None
        return Spread(self.topic, self.partitioner, min(self.fewest, other.fewest), max(self.most, other.most))


class Committable(Struct, frozen=True):
    """The output of one epoch: durable, invisible, and ready to be made visible by any process.

    ``scope`` names the committer (one per cluster, directory or database). ``payload`` is the committer's own record,
    stored in the manifest. ``records`` is how many records it makes visible, and ``by_sink`` how many of them belong to
    each sink, by the plan's names; empty if that is not known. ``spread`` says how sinks with partitions distributed
    the records, as far as that is known. ``provenance`` is a file of the checkpoint that stores where each record came
    from; None if the records carry it themselves, or if it is not recorded.
    """

    scope: str
    payload: Mapping[str, Json]
    records: int
    by_sink: Mapping[str, int] = field(default_factory=dict)
    spread: Mapping[str, Spread] = field(default_factory=dict)
    provenance: FileRef | None = None


class UnstoredCommittable(Committable, frozen=True):
    """A committable whose provenance file is not stored yet."""

    content: bytes = b""


class OutputOwner(Struct, frozen=True):
    """The owner of a committable's output, as its payload states it.

    ``name``    the name of the output, such as a transactional id, for messages
    ``epoch``   None if the name contains none
    ``target``  what a commit would change in the scope, such as a table with its columns and key; None if that follows
                from the scope. It is equal to ``Sink.get_committable_target`` of the sink that wrote the output
    """

    name: str
    job: str
    identity: JobIdentity | None
    term: Term
    epoch: Epoch | None = None
    target: str | None = None


class CommitStatus(enum.Enum):
    """The result of a probe: PREPARED, COMMITTED, LOST or UNKNOWN.

    A probe that has no answer *yet* raises Retryable instead of guessing.

    Note: absence proves nothing. Missing output may have been committed and then removed by its readers. LOST needs a
    fact that only an abort leaves (or damage to the output); without one, and without a marker of a commit, the status
    is UNKNOWN. UNKNOWN is final: retrying does not help, and the job stops for manual intervention.
    """

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"


class Probe(Struct, frozen=True):
    status: CommitStatus
    detail: str
    expires_in: float = float("inf")
    """Seconds until the server may undo a prepared committable by itself."""
    timeout: float = float("inf")
    """Seconds from its beginning after which the server may do so."""


class CommitPermit(Struct, frozen=True):
    """Proof that the manifest of ``epoch`` is published and that this term may commit it.

    ``protocol.commit.authorize`` creates it; committers require it and never build one.
    """

    epoch: EpochId


class CommitOutcome(enum.Enum):
    """The result of a commit: COMMITTED now, or ALREADY committed.

    LOST and UNKNOWN are not results of a commit: they raise CommittableLost.
    """

    COMMITTED = "committed"
    ALREADY = "already"


class StagedOutput(Struct, frozen=True):
    """Output that an incarnation has staged and neither committed nor aborted; age in seconds.

    ``identity`` is None if the output's name contains no identity.
    """

    term: Term
    name: str
    detail: str
    age: float
    identity: JobIdentity | None = None


class Committer(ABC):
    """Commits or aborts what writers prepared. It runs in the coordinator; every call may be repeated.

    ``probe`` and ``commit`` are called from several threads at once, each time for another committable.
    """

    @abstractmethod
    def probe(self, committable: Committable) -> Probe:
        """Determine the status of a committable. Changes nothing; raises Retryable if it is not known yet."""

    @abstractmethod
    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        """Make the committable visible. Idempotent.

        Raises Retryable if the result is not known yet, CommittableLost if the committable is LOST or UNKNOWN.
        """

    def read_owner(self, committable: Committable) -> OutputOwner | None:
        """Return whose output a committable is; None, the default, if its payload does not state it.

        Before an epoch is decided, and before a recovery probes or commits anything, the coordinator compares the
        result with the job and its sinks, and stops if they differ. A committer that keeps the default must itself
        refuse output of other jobs: any writer of the checkpoints chooses the payload.

        It reads the payload only. Raises CorruptCheckpoint if the payload is not one of this committer.
        """
        return None

    def probe_all(self, committables: Sequence[Committable]) -> Sequence[Probe]:
        """Probe all committables; return the results in the same order. Default: one after the other."""
        return [self.probe(each) for each in committables]

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit all committables; return the results in the same order. Default: one after the other."""
        return [self.commit(permit, each) for each in committables]

    def has_prepared(self, committable: Committable) -> bool:
        """Return whether a committable is in this committer's system, whatever name its scope has. Default: False.

        A system may have several names, such as a cluster with many brokers. The committable may belong to any
        connector. Raises Retryable if this cannot be determined now.
        """
        return False

    @abstractmethod
    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List staged output of all incarnations that is neither committed nor aborted."""

    @abstractmethod
    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Abort and fence what earlier terms of this incarnation staged and did not commit. Return names, for the log.

        Recovery calls it after every decided epoch is committed.

        Note: never touch output of another incarnation of this job name (``ctx.owns(its identity)`` is False).
        """

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Announce the epoch to readers: every sink has committed it. Idempotent. Default: nothing.

        ``committables`` are those of this scope. It is called before the receipt is written, and again if it is unknown
        whether that call succeeded. Raises Retryable if the result is not known yet.
        """
        return

    def count_set_aside(self, committables: Sequence[Committable]) -> Sequence[int]:
        """Return how many rows of each committed committable the receiver refused, in the same order. Default: none.

        Another process may have committed them. Raises Retryable if the number cannot be determined now.
        """
        return [0] * len(committables)

    def close(self) -> None:
        """Release what the committer holds open. Default: nothing."""
        return


class AtomicCommitter(Committer):
    """A committer that commits all of an epoch in its scope in one atomic change.

    The committables of an epoch are probed in one call and committed in one call; ``commit`` is not called.
    """

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        raise Bug(f"{type(self).__name__} commits all of epoch {permit.epoch} at once: call commit_all")

    @abstractmethod
    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit *all* that the epoch of ``permit`` has in this scope, atomically. Raises as ``Committer.commit``."""
