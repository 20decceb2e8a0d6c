"""What is prepared, and how it ends: committables, what a probe sees of them, and the committer.

Rule: a committable can be ended from any process, any number of times.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json


@dataclass(frozen=True, slots=True)
class Spread:
    """How records of a sink were spread over the partitions of its topic.

    ``partitioner`` is the client's name of what chose by the key, None if nobody knows; ``fewest`` and ``most`` are how
    many partitions there were: two numbers where some may have been added meanwhile.
    """

    topic: str
    partitioner: str | None
    fewest: int
    most: int

    def joined(self, other: Spread) -> Spread | None:
        """What holds of records of both; None if the two differ in more than numbers."""
        if (self.topic, self.partitioner) != (other.topic, other.partitioner):
            return None
        return Spread(self.topic, self.partitioner, min(self.fewest, other.fewest), max(self.most, other.most))


@dataclass(frozen=True, slots=True)
class Committable:
    """A promise: output of one epoch that is durable, invisible, and can be made visible by anyone.

    ``scope`` names the committer (one a cluster, directory, database); ``payload`` is the committer's own
    record, stored in the manifest; ``records`` is how many records it makes visible, for the books, and ``by_sink``
    how many of them are of which sink, by the plan's names; empty if that is not known. ``spread`` says of sinks with
    partitions how they were divided, as far as that is known. ``provenance`` is a file of the checkpoint that says
    where each record came from; None if the records say it themselves, or nothing does.
    """

    scope: str
    payload: Mapping[str, Json]
    records: int
    by_sink: Mapping[str, int] = field(default_factory=dict)
    spread: Mapping[str, Spread] = field(default_factory=dict)
    provenance: FileRef | None = None


@dataclass(frozen=True, slots=True)
class Unstored(Committable):
    """A committable whose ``provenance`` is not stored yet: the engine stores ``content`` before it decides."""

    content: bytes = b""


class Standing(enum.Enum):
    """What a probe saw. A probe that has no answer *yet* raises Retryable instead of guessing.

    The trap: absence proves nothing. What is gone may have been committed and then taken by its readers. LOST needs
    a fact that only an abort leaves (or damage to what is there); without one, and without a trace of a commit, the
    answer is UNKNOWN. UNKNOWN is final: asking again does not help, and the job stops for a person.
    """

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Probe:
    standing: Standing
    detail: str
    expires_in: float = float("inf")
    """Seconds until the server may undo a prepared committable by itself."""
    timeout: float = float("inf")
    """Seconds from its beginning after which the server may do so."""


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that the manifest of ``epoch`` is published and that this term may finish it.

    It comes from ``protocol.commit.authorize``; committers ask for it and never build one.
    """

    epoch: EpochId


class Outcome(enum.Enum):
    """What a commit did, as far as the server tells. LOST and UNKNOWN are no outcomes: CommittableLost is raised."""

    COMMITTED = "committed"
    ALREADY = "already"


@dataclass(frozen=True, slots=True)
class Staged:
    """Output of a life of a job that is neither visible nor gone. ``age`` in seconds.

    ``identity`` is None where the output's name has none.
    """

    term: Term
    name: str
    detail: str
    age: float
    identity: JobIdentity | None = None


class Committer(Protocol):
    """Ends what writers prepared. Lives with the coordinator; everything in it may be repeated.

    ``probe`` and ``commit`` are called from several threads at once, each time for another committable.
    """

    def probe(self, committable: Committable) -> Probe: ...

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        """Make it visible. Idempotent.

        Raises Retryable if there is no answer yet, CommittableLost if it is gone or nobody can tell (UNKNOWN).
        """

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """All that any life of the job's name has staged or prepared and not ended; ``ctx.owns`` tells whose it is."""

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Undo and fence all that earlier terms (``< ctx.term``) of this life staged and that is not committed.

        The trap: another life of the same name (``ctx.owns`` is False of its identity) keeps all that it has.
        Called in recovery after everything that must be committed is. Returns names, for the log.
        """

    def close(self) -> None: ...


@runtime_checkable
class Announces(Protocol):
    """A committer that tells its readers of epochs that are committed in every sink of the job."""

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """All of the epoch is committed; these are those of this committer's scope. Idempotent.

        Called before the receipt is written, so it is called again if nobody knows whether it was. Raises Retryable if
        there is no answer yet.
        """


@runtime_checkable
class CommitsTogether(Protocol):
    """A committer that makes all that an epoch has in its scope visible in one change, as a table's log does.

    Its committables of an epoch are probed, and committed, in one call each; ``Committer.commit`` is not called.
    """

    def probe_all(self, committables: Sequence[Committable]) -> Sequence[Probe]:
        """As ``Committer.probe``, in the order of ``committables``."""

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """As ``Committer.commit``, of *all* that the epoch of ``permit`` has in this scope; all of it or nothing."""


def probed(committer: Committer, committables: Sequence[Committable]) -> Sequence[Probe]:
    """Probe committables of one scope, as its committer wants to be asked."""
    if isinstance(committer, CommitsTogether):
        return committer.probe_all(committables)
    return [committer.probe(each) for each in committables]


def committed(committer: Committer, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[Outcome]:
    """Commit all that an epoch has in one scope, as its committer wants to be asked."""
    if isinstance(committer, CommitsTogether):
        return committer.commit_all(permit, committables)
    return [committer.commit(permit, each) for each in committables]
