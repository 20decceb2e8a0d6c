"""MemorySink: two-phase commit within one process, for tests.

Rows move from open to prepared to committed, and only the committer moves them to committed. It survives the
loss of a writer, not of the process. Rule: rows are kept in lists and never counted through a set or a dict key,
so that a duplicate stays visible.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

from kafka_eos.abc.committer import (
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
    Probe,
    StagedOutput,
)
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState, SupportsRegistration, taken_over
from kafka_eos.abc.sink import PreCommit, Sink, Writer
from kafka_eos.core.errors import CommittableLost, CorruptCheckpoint, Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch

_JobIncarnation: TypeAlias = tuple[str, JobIdentity | None]
_NEVER = Term(1 << 62)
"""No term is as new."""


@dataclass(eq=False)
class _WriterOutput:
    """The rows of one writer in one epoch."""

    writer: TaskContext
    values: list[Any] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    epoch: Epoch = field(default_factory=lambda: Epoch(0))
    """The epoch that it was prepared in."""

    @property
    def job(self) -> JobContext:
        return self.writer.job


class MemorySink(Sink[Any]):
    """A sink in memory. Its list ``committed`` has the values that a reader would see, in commit order.

    A commit includes what the writer prepared before: output of aborted epochs, which the same manifest names.
    """

    def __init__(self) -> None:
        self.committed: list[Any] = []
        self._lock = Lock()
        self._open: list[_WriterOutput] = []
        self._prepared: dict[str, _WriterOutput] = {}
        self._done: set[str] = set()
        self._newest: dict[_JobIncarnation, Epoch] = {}
        self._oldest: dict[_JobIncarnation, Term] = {}
        self._registrations: dict[_JobIncarnation, IncarnationState] = {}

    @property
    def staged(self) -> list[Any]:
        """Return the rows that are written and not yet prepared."""
        return [value for portion in self._open for value in portion.values]

    @property
    def prepared(self) -> list[Any]:
        """Return the rows that are prepared, and neither committed nor aborted."""
        return [value for portion in self._prepared.values() for value in portion.values]

    def describe(self) -> Mapping[str, Json]:
        return {"memory": True}

    def scope(self, ctx: JobContext) -> str:
        return f"memory:{id(self):x}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        return ("a MemorySink forgets everything when its process ends",)

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return MemoryWriter(self, ctx)

    def committer(self, ctx: JobContext) -> MemoryCommitter:
        return MemoryCommitter(self)

    # The moves. Each is one step under the lock, because pre-commits run on another thread.

    def begin(self, writer: TaskContext) -> _WriterOutput:
        with self._lock:
            self._refuse_old(writer.job)
            self._open.append(_WriterOutput(writer))
            return self._open[-1]

    def prepare(self, name: str, portion: _WriterOutput) -> None:
        with self._lock:
            self._refuse_old(portion.job)
            self._open.remove(portion)
            self._prepared[name] = portion

    def read_status(self, name: str) -> CommitStatus:
        if name in self._done:
            return CommitStatus.COMMITTED
        return CommitStatus.PREPARED if name in self._prepared else CommitStatus.LOST

    def commit(self, name: str) -> CommitOutcome:
        with self._lock:
            match self.read_status(name):
                case CommitStatus.COMMITTED:
                    return CommitOutcome.ALREADY
                case CommitStatus.LOST:
                    raise CommittableLost(f"{name} is not in this MemorySink")
            writer, epoch = self._prepared[name].writer, self._prepared[name].epoch
            for each in [each for each, portion in self._prepared.items() if portion.writer is writer]:
                self.committed += self._prepared.pop(each).values
                self._done.add(each)
                if each == name:
                    break
            incarnation = (writer.job.job, writer.job.identity)
            self._newest[incarnation] = max(epoch, self._newest.get(incarnation, epoch))
            return CommitOutcome.COMMITTED

    def list_staged(self, job: str) -> list[StagedOutput]:
        with self._lock:
            portions = [("open rows", portion) for portion in self._open] + list(self._prepared.items())
        now = time.monotonic()
        return [
            StagedOutput(of.job.term, name, f"{len(of.values)} rows", now - of.begun, of.job.identity)
            for name, of in portions
            if of.job.job == job
        ]

    def abort(self, job: str, identities: Collection[JobIdentity | None], term: Term) -> list[str]:
        """Drop the output of these incarnations' terms before ``term``, and fence their writers."""

        def gone(portion: _WriterOutput) -> bool:
            return portion.job.job == job and portion.job.identity in identities and portion.job.term < term

        with self._lock:
            for identity in identities:
                self._oldest[job, identity] = max(term, self._oldest.get((job, identity), term))
            names = [name for name, portion in self._prepared.items() if gone(portion)]
            for name in names:
                del self._prepared[name]
            lost = [portion for portion in self._open if gone(portion)]
            self._open = [portion for portion in self._open if portion not in lost]
            return [*names, *(f"open rows of {job}, term {portion.job.term}" for portion in lost)]

    def register(self, job: str, identity: JobIdentity | None) -> IncarnationState:
        """Register an incarnation and return its state."""
        return self._registrations.setdefault((job, identity), IncarnationState.ENDED)

    def retire(self, job: str, identity: JobIdentity | None) -> None:
        """Remove the registration of an incarnation, which fences it."""
        self._registrations[job, identity] = IncarnationState.OVER

    def list_signs(self, job: str) -> list[IncarnationSign]:
        """Return every incarnation that is registered or has open output."""
        open_ = {staged.identity: staged for staged in self.list_staged(job)}
        registered = {identity: state for (name, identity), state in self._registrations.items() if name == job}
        found = []
        for identity in {**registered, **open_}:
            committed = self._newest.get((job, identity))
            if (staged := open_.get(identity)) is not None:
                state, age = IncarnationState.OPEN, staged.age
                found.append(IncarnationSign(identity, "memory", "open rows", staged.term, state, age, committed))
            else:
                state = registered[identity]
                found.append(IncarnationSign(identity, "memory", "its registration", None, state, None, committed))
        return found

    def _refuse_old(self, job: JobContext) -> None:
        if job.term < self._oldest.get((job.job, job.identity), job.term):
            raise Fenced(f"job {job.job!r} has a newer term than {job.term}")


class MemoryWriter(Writer[Any]):
    """The writer of one subtask's rows."""

    def __init__(self, sink: MemorySink, ctx: TaskContext) -> None:
        self._sink, self._ctx = sink, ctx
        self._portion: _WriterOutput | None = None

    def write(self, batch: Batch[Any]) -> None:
        if not batch.values:
            return
        if self._portion is None:
            self._portion = self._sink.begin(self._ctx)
        self._portion.values.extend(batch.values)

    def seal(self, epoch: EpochId) -> PreCommit:
        portion, self._portion = self._portion, None
        if portion is None:
            return lambda: ()
        job = self._ctx.job
        incarnation = job.job if job.identity is None else f"{job.job}.{job.identity}"
        portion.epoch = epoch.epoch
        name = f"{incarnation}/{epoch}/{self._ctx.subtask}/{self._ctx.operator}"

        def prepare() -> Sequence[Committable]:
            self._sink.prepare(name, portion)
            return (Committable(self._sink.scope(job), {"name": name}, len(portion.values)),)

        return prepare

    def discard(self) -> None:
        self._portion = None


class MemoryCommitter(SupportsRegistration, Committer):
    """Commits or aborts what writers of the same MemorySink prepared."""

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    def probe(self, committable: Committable) -> Probe:
        name = _name(committable)
        status = self._sink.read_status(name)
        return Probe(status, f"{name} is {status.value}")

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        return self._sink.commit(_name(committable))

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        return self._sink.list_staged(ctx.job)

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        identities = {ctx.identity, *([None] if ctx.owns(None) else [])}
        return self._sink.abort(ctx.job, identities, ctx.term)

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        return self._sink.list_signs(ctx.job)

    def register(self, ctx: JobContext) -> None:
        if self._sink.register(ctx.job, ctx.identity) is IncarnationState.OVER:
            raise Fenced(taken_over(ctx, "this MemorySink"))

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        self._sink.retire(ctx.job, identity)
        return self._sink.abort(ctx.job, {identity}, _NEVER)


def _name(committable: Committable) -> str:
    name = committable.payload.get("name")
    if not isinstance(name, str):
        raise CorruptCheckpoint(f"not a committable of a MemorySink: {dict(committable.payload)!r}")
    return name
