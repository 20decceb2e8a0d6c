"""Sinks with one planted bug each. ``BROKEN`` says which checks of the contract must name it, in which words."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable, StagedOutput
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.sink import PreCommit
from kafka_eos.connectors.files import FileSink, FileWriter
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.core.errors import CommittableLost
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing import MemorySink
from kafka_eos.testing.memory_sink import MemoryWriter, _WriterOutput


class CommitDoubles(MemorySink):
    """A repeated commit makes the rows visible again."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, list[Any]] = {}

    def commit(self, name: str) -> CommitOutcome:
        if name in self._kept:
            self.committed += self._kept[name]
            return CommitOutcome.ALREADY
        self._kept[name] = self.prepared
        return super().commit(name)


class CommitForgets(MemorySink):
    """A repeated commit answers COMMITTED, as if it had done something."""

    def commit(self, name: str) -> CommitOutcome:
        super().commit(name)
        return CommitOutcome.COMMITTED


class CommitSkipsLost(MemorySink):
    """A commit of lost output does nothing and says that all is well."""

    def commit(self, name: str) -> CommitOutcome:
        try:
            return super().commit(name)
        except CommittableLost:
            return CommitOutcome.ALREADY


class CommitDoesNothing(MemorySink):
    """A commit is answered, and nothing becomes visible."""

    def commit(self, name: str) -> CommitOutcome:
        before = list(self.committed)
        outcome = super().commit(name)
        self.committed[:] = before
        return outcome


class VisibleWhenWritten(MemorySink):
    """Rows are visible as soon as they are prepared."""

    def prepare(self, name: str, portion: _WriterOutput) -> None:
        super().prepare(name, portion)
        self.committed += portion.values


class ProbeGuesses(MemorySink):
    """A probe of anything answers PREPARED."""

    def read_status(self, name: str) -> CommitStatus:
        return CommitStatus.PREPARED


class KeepsOrphans(MemorySink):
    """abort_leftovers does nothing."""

    def abort(self, job: str, incarnations: Collection[JobIdentity | None], term: Term) -> list[str]:
        return []


class NeverFences(MemorySink):
    """abort_leftovers removes what is prepared, but a writer that is still alive can go on."""

    def abort(self, job: str, incarnations: Collection[JobIdentity | None], term: Term) -> list[str]:
        open_portions = list(self._open)
        names = super().abort(job, incarnations, term)
        self._open = open_portions
        self._oldest.clear()
        return names


class AbortsItself(MemorySink):
    """abort_leftovers hits the term that calls it."""

    def abort(self, job: str, incarnations: Collection[JobIdentity | None], term: Term) -> list[str]:
        return super().abort(job, incarnations, term.next())


class AbortsNamesakes(MemorySink):
    """abort_leftovers goes by the beginning of the job's name."""

    def abort(self, job: str, incarnations: Collection[JobIdentity | None], term: Term) -> list[str]:
        jobs = {of.job.job for of in self._prepared.values() if of.job.job.startswith(job)}
        return [name for each in sorted(jobs) for name in super(AbortsNamesakes, self).abort(each, incarnations, term)]


class AbortsOtherLives(MemorySink):
    """abort_leftovers goes by the job's name, whosever incarnation it is."""

    def abort(self, job: str, incarnations: Collection[JobIdentity | None], term: Term) -> list[str]:
        everybody = {of.job.identity for of in self._prepared.values()}
        return super().abort(job, {*incarnations, *everybody}, term)


class AbortsCommitted(MemorySink):
    """abort_leftovers takes back what is committed."""

    def abort(self, job: str, incarnations: Collection[JobIdentity | None], term: Term) -> list[str]:
        self.committed.clear()
        return super().abort(job, incarnations, term)


class TakesAbsenceForLoss(MemorySink):
    """A probe looks for the visible rows, and takes it for a loss if they are not there."""

    def read_status(self, name: str) -> CommitStatus:
        found = super().read_status(name)
        return CommitStatus.LOST if found is CommitStatus.COMMITTED and not self.committed else found


class PublishesAgain(MemorySink):
    """A commit of rows that are not visible makes them visible, whoever took them."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, list[Any]] = {}

    def commit(self, name: str) -> CommitOutcome:
        self._kept.setdefault(name, self.prepared)
        outcome = super().commit(name)
        if not self.committed:
            self.committed += self._kept[name]
        return outcome


class HidesStaged(MemorySink):
    """staged tells of nothing."""

    def list_staged(self, job: str) -> list[StagedOutput]:
        return []


class TellsOfOthers(MemorySink):
    """staged goes by nothing at all."""

    def list_staged(self, job: str) -> list[StagedOutput]:
        return [staged for p in self._prepared.values() for staged in MemorySink.list_staged(self, p.job.job)]


class SharesNames(MemorySink):
    """Two writers of one epoch use the same name: the later one replaces the earlier."""

    def prepare(self, name: str, portion: _WriterOutput) -> None:
        super().prepare("/".join(name.split("/")[:3]), portion)

    def read_status(self, name: str) -> CommitStatus:
        return super().read_status("/".join(name.split("/")[:3]))

    def commit(self, name: str) -> CommitOutcome:
        return super().commit("/".join(name.split("/")[:3]))


class _OtherWriter(MemorySink):
    """A MemorySink with a writer of its own."""

    Writer: type[MemoryWriter]

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return self.Writer(self, ctx)


class CommitsEmptyEpochs(_OtherWriter):
    """An empty epoch has a committable."""

    class Writer(MemoryWriter):
        def seal(self, epoch: EpochId) -> PreCommit:
            if self._portion is None:
                self._portion = self._sink.begin(self._ctx)
            return super().seal(epoch)


class MixesEpochs(_OtherWriter):
    """Rows written between seal and pre-commit end up in the sealed epoch."""

    class Writer(MemoryWriter):
        def seal(self, epoch: EpochId) -> PreCommit:
            portion = self._portion
            prepare = super().seal(epoch)
            self._portion = portion

            def mixed() -> Sequence[Committable]:
                self._portion = None
                return prepare()

            return mixed


class FreesAll(_OtherWriter):
    """A commit notice drops all that is prepared."""

    class Writer(MemoryWriter):
        def notify_committed(self, epoch: EpochId) -> None:
            self._sink._prepared.clear()


class FreesOldest(_OtherWriter):
    """Each commit notice drops the oldest output that is prepared, also one that comes again."""

    class Writer(MemoryWriter):
        def notify_committed(self, epoch: EpochId) -> None:
            for name in list(self._sink._prepared)[:1]:
                del self._sink._prepared[name]


class CommitsInAnyOrder(MemorySink):
    """Rows are visible in the order of commits, whatever was written before."""

    def commit(self, name: str) -> CommitOutcome:
        others = {each: of for each, of in self._prepared.items() if each != name}
        self._prepared = {each: of for each, of in self._prepared.items() if each == name}
        try:
            return super().commit(name)
        finally:
            self._prepared |= others


class CommitDropsOthers(MemorySink):
    """A commit is the end of all that is prepared."""

    def commit(self, name: str) -> CommitOutcome:
        self._prepared = {each: of for each, of in self._prepared.items() if each == name}
        return super().commit(name)


class DiscardUndoes(_OtherWriter):
    """discard throws away what is prepared."""

    class Writer(MemoryWriter):
        def discard(self) -> None:
            self._sink._prepared.clear()
            super().discard()


class LosesRows(_OtherWriter):
    """Of two batches only the last is kept."""

    class Writer(MemoryWriter):
        def write(self, batch: Batch[Any]) -> None:
            if self._portion is not None:
                self._portion.values.clear()
            super().write(batch)


class TurnsRows(_OtherWriter):
    """A batch is written back to front."""

    class Writer(MemoryWriter):
        def write(self, batch: Batch[Any]) -> None:
            super().write(Batch(batch.values[::-1], batch.origin_rows, batch.origin))


class NotJson(_OtherWriter):
    """The committable holds an object that no manifest can store."""

    class Writer(MemoryWriter):
        def seal(self, epoch: EpochId) -> PreCommit:
            prepare = super().seal(epoch)
            return lambda: [Committable(c.scope, {"name": object()}, c.records) for c in prepare()]  # type: ignore[dict-item]


class OnlyInMemory(MemorySink):
    """Output is prepared in the memory of a process, and nobody else can commit it."""


class NeverFlushes(FileSink):
    """The file has its staged name before its bytes have left the process."""

    def writer(self, ctx: TaskContext) -> FileWriter:
        writer = super().writer(ctx)
        writer.seal = _unflushed(writer.seal, self.directory)  # type: ignore[method-assign]
        return writer


def _unflushed(seal: Callable[[EpochId], PreCommit], directory: Path) -> Callable[[EpochId], PreCommit]:
    def sealed(epoch: EpochId) -> PreCommit:
        prepare = seal(epoch)

        def unflushed() -> Sequence[Committable]:
            committables = prepare()
            for each in committables:
                os.truncate(directory / str(each.payload["staged"]), 0)  # what a lost buffer leaves
            return committables

        return unflushed

    return sealed


class PrefixOrphans(FileSink):
    """abort_leftovers of files by the beginning of their names."""

    def committer(self, ctx: JobContext) -> Any:
        return _PrefixCommitter(self.directory)


class _PrefixCommitter(FileCommitter):
    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        starts = (f".staged.{ctx.job}", f".open.{ctx.job}")
        names = [name for name in os.listdir(self._directory) if name.startswith(starts)]
        for name in names:
            os.unlink(self._directory / name)
        return names


BROKEN: dict[type[Any], dict[str, str]] = {
    CommitDoubles: {"commit-again": "visible twice"},
    CommitForgets: {"commit-again": "must return ALREADY"},
    CommitSkipsLost: {"abort-leftovers": "must raise CommittableLost", "zombie": "must raise CommittableLost"},
    CommitDoesNothing: {"happy-path": "rows are missing"},
    VisibleWhenWritten: {"invisible-before-commit": "must not be", "happy-path": "must not be"},
    ProbeGuesses: {"probe": "must return CommitStatus.COMMITTED", "abort-leftovers": "must return CommitStatus.LOST"},
    KeepsOrphans: {
        "abort-leftovers": "must return its name",
        "zombie": "CommitStatus.LOST or CommitStatus.UNKNOWN, not",
    },
    NeverFences: {"zombie": "must not be committable"},
    AbortsItself: {"abort-spares-own-term": "must return CommitStatus.PREPARED"},
    AbortsOtherLives: {"abort-spares-other-incarnations": "abort_leftovers affected incarnation"},
    AbortsNamesakes: {"abort-spares-other-jobs": "abort_leftovers hit job"},
    AbortsCommitted: {"abort-leftovers": "rows are missing"},
    TakesAbsenceForLoss: {"visible-output-removed": "must return COMMITTED, or UNKNOWN if the outcome is unknown"},
    PublishesAgain: {"visible-output-removed": "rows are visible that must not be, or are visible twice"},
    HidesStaged: {"staged": "must list something"},
    TellsOfOthers: {"staged": "another job"},
    SharesNames: {"siblings": "must return COMMITTED"},
    CommitsEmptyEpochs: {"empty-epoch": "must give no committable"},
    MixesEpochs: {"late-notice": "must not be"},
    FreesAll: {"late-notice": "must be committable", "schedules": "must be committable"},
    FreesOldest: {"late-notice": "must be committable"},
    CommitsInAnyOrder: {"aborted-epochs": "wrong order"},
    CommitDropsOthers: {"recovery": "must be committable"},
    DiscardUndoes: {"discard-keeps-prepared": "must be committable"},
    LosesRows: {"happy-path": "must count 5 records"},
    TurnsRows: {"happy-path": "wrong order"},
    NotJson: {"happy-path": "must be JSON"},
    OnlyInMemory: {"writer-killed": "CommitStatus.PREPARED"},
    NeverFlushes: {"happy-path": "must be committable", "writer-killed": "must return CommitStatus.PREPARED"},
    PrefixOrphans: {"abort-spares-other-jobs": "abort_leftovers hit job"},
}
"""What each check says about each bug."""

_built: dict[str, Any] = {}


def build(kind: str, name: str) -> Any:
    """The broken sink ``kind``; the same object for the same name. Sinks of files get ``name`` as directory."""
    cls = next(each for each in BROKEN if each.__name__ == kind)
    if issubclass(cls, FileSink):
        return cls(name, value=dict)
    return _built.setdefault(name, cls())
