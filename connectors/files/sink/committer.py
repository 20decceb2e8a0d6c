"""Commits staged files: probe, publish, and undo what no manifest knows. I/O around ``standings``.

A commit makes a trace, syncs it, renames the staged file to its final name, and syncs that. Readers may take the
final file away at once; the trace stays until a later epoch proves the receipt of this one.
Rule: only a rename ends a staged file, a commit's or an abort's, so that exactly one of both happens.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Staged, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life, LifeState, taken_over
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import Kind, Part, Promise
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.connectors.files.sink.announcements import ToldFile, announcements
from kafka_eos.connectors.files.sink.commit_status import Content, Listing, judged
from kafka_eos.connectors.files.sink.commit_traces import Traces
from kafka_eos.core.errors import Bug, CommittableLost, Fenced, Retryable
from kafka_eos.core.ids import JobIdentity


class FileCommitter:
    """The committer of one directory, which holds all that decides. May be used from threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checked: dict[str, tuple[int, ...]] = {}
        self._traces = Traces(_DiskShelf(directory))

    def probe(self, committable: Committable) -> Probe:
        with mapped(Retryable, f"look into {self._directory}"):
            return self._look(Promise.read(committable.payload))

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        promise = Promise.read(committable.payload)
        if permit.epoch < promise.part.epoch:  # an older one was given up; its output is part of this epoch
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {promise.part.staged}")
        with mapped(Retryable, f"commit {promise.final}"):
            seen = self._look(promise)
            match seen.standing:
                case Standing.PREPARED:
                    self._publish(promise, permit)
                    outcome = Outcome.COMMITTED
                case Standing.COMMITTED:
                    outcome = Outcome.ALREADY
                case Standing.LOST | Standing.UNKNOWN:
                    raise CommittableLost(seen.detail)
            # Also when it was there: the process that renamed it may have died before it could sync.
            self._sync(promise.final)
            self._checked.pop(promise.part.staged, None)
            self._traces.forget(promise.part, permit.epoch)
            return outcome

    def _publish(self, promise: Promise, permit: CommitPermit) -> None:
        """Rename the staged file to its final name, after a trace that outlives it is durable."""
        part, final = promise.part, self._path(promise.final)
        disk.create_directory(final.parent)
        first = self._traces.make(part, permit.epoch)
        disk.sync_directory(self._directory)
        try:
            disk.rename_new(self._path(part.staged), final)
        except FileExistsError as error:
            raise Retryable(f"{promise.final} appeared while it was being committed") from error
        except FileNotFoundError as error:
            if first and not os.path.lexists(final):
                # The trace is ours, and it proves nothing: a newer term may have undone what was staged.
                raise CommittableLost(f"{part.staged} was ended by another process at this moment") from error
            raise Retryable(f"{promise.final} was committed by another process at this moment") from error

    def _sync(self, final: str) -> None:
        """Make a rename durable, where the name went first: two names of a file are understood, none is not.

        All directories up to the sink's own: a process that died may have made one and not synced its name.
        """
        for partition in Path(final).parents[:-1]:
            if (target := self._directory / partition).is_dir():  # readers may have taken all of a partition
                disk.sync_directory(target)
        disk.sync_directory(self._directory)

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Write the file that names the epoch's files, for readers who wait until all sinks have the epoch."""
        told = []
        for each in committables:
            promise = Promise.read(each.payload)
            if promise.announced:
                more = {"sha256": promise.sha256}
                told.append(ToldFile(promise.part, promise.final, each.records, promise.size, more))
        for name, content in announcements(permit.epoch, told):
            with mapped(Retryable, f"write {self._directory / name}"):
                disk.create_directory(self._directory / names.EPOCHS)
                disk.write_whole(self._path(name), content)

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Open and prepared files."""
        now, found = time.time(), []
        with mapped(Retryable, f"look into {self._directory}"):
            for name, kind, part in hidden(self._directory, ctx.job):
                seen = _seen(self._path(name))
                if kind not in (Kind.OPEN, Kind.STAGED) or seen is None:
                    continue
                detail = f"{seen.st_size} bytes in {self._directory}"
                found.append(Staged(part.epoch.term, name, detail, max(0.0, now - seen.st_mtime), part.identity))
        return found

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Undo this life's open and staged files of older terms; a writer that still has one open loses it."""
        return self._end(ctx.job, lambda part: ctx.owns(part.identity) and part.epoch.term < ctx.term)

    def _end(self, job: str, whose: Callable[[Part], bool]) -> list[str]:
        with mapped(Retryable, f"clean up {self._directory}"):
            old = [each for each in hidden(self._directory, job) if whose(each[2])]
            opened = [name for name, kind, _ in old if kind is Kind.OPEN]
            for name in opened:
                self._path(name).unlink(missing_ok=True)
            undone = [name for name, kind, part in old if kind is Kind.STAGED and self._undo(part)]
            if opened or undone:
                disk.sync_directory(self._directory)
            return sorted([*opened, *undone])

    def _undo(self, part: Part) -> bool:
        """Whether there was something to undo. What is left is a name; its content goes at once."""
        staged, trace = self._path(part.staged), self._path(part.hidden(Kind.ABORTED))
        try:
            os.rename(staged, trace)
        except FileNotFoundError:
            return False  # somebody who had the right to commit was faster
        self._traces.note(part, Kind.ABORTED, part.epoch)
        if (left := _seen(trace)) is not None and stat.S_ISREG(left.st_mode) and left.st_nlink == 1:
            os.truncate(trace, 0)
        return True

    # ------------------------------------------------------------ lives of one name

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """By marks, by what is staged, and by parts that readers have not taken."""
        with mapped(Retryable, f"look into {self._directory}"):
            found = sorted(os.listdir(self._directory)) if self._directory.exists() else []
        ended = [whose[1] for name in found if (whose := names.published(name)) and whose[0] == ctx.job]
        marks: dict[JobIdentity | None, bool]
        marks = {of[1]: of[2] for name in found if (of := names.marked(name)) is not None and of[0] == ctx.job}
        open_: dict[JobIdentity | None, Staged] = {}
        for item in self.staged(ctx):
            open_[item.identity] = max(item, open_.get(item.identity, item), key=lambda each: each.term)
        return [
            self._life(identity, open_.get(identity), marks.get(identity, False))
            for identity in dict.fromkeys([*open_, *marks, *ended])
        ]

    def _life(self, identity: JobIdentity | None, newest: Staged | None, over: bool) -> Life:
        place = f"file:{self._directory}"
        if newest is not None:
            return Life(identity, place, newest.name, newest.term, LifeState.OPEN, newest.age)
        return Life(identity, place, "files of it", state=LifeState.OVER if over else LifeState.ENDED)

    def hold(self, ctx: JobContext) -> None:
        """The mark is a file; another one in its place shows that it was taken away."""
        if ctx.identity is None:
            return
        with mapped(Retryable, f"look for the mark of job {ctx.job!r} in {self._directory}"):
            if os.path.lexists(self._path(names.over(ctx.job, ctx.identity))):
                raise Fenced(taken_over(ctx, str(self._directory)))
            mark = self._path(names.mark(ctx.job, ctx.identity))
            if not os.path.lexists(mark):
                disk.create_directory(self._directory)
                disk.create_empty(mark)
                disk.sync_directory(self._directory)

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """What it stages after the look is found by nobody, and committed by nobody: it sees that its mark is gone."""
        if identity is not None:
            with mapped(Retryable, f"take the mark of life {identity} in {self._directory}"):
                disk.create_directory(self._directory)
                disk.create_empty(self._path(names.over(ctx.job, identity)))
                self._path(names.mark(ctx.job, identity)).unlink(missing_ok=True)
                disk.sync_directory(self._directory)
        return self._end(ctx.job, lambda part: part.identity == identity)

    def close(self) -> None:
        """Nothing is held open."""

    def _path(self, name: str) -> Path:
        return self._directory / name

    def _look(self, promise: Promise) -> Probe:
        part = promise.part
        staged, final = self._path(part.staged), self._path(promise.final)
        facts = Listing(
            staged=self._content(promise, staged, _seen(staged)),
            final=self._content(promise, final, _seen(final)),
            aborted=os.path.lexists(self._path(part.hidden(Kind.ABORTED))),
            committed=os.path.lexists(self._path(part.hidden(Kind.COMMITTED))),
        )
        standing = judged(facts)
        return Probe(standing, _detail(standing, facts, self._directory, promise))

    def _content(self, promise: Promise, path: Path, seen: os.stat_result | None) -> Content:
        if seen is None:
            return Content.ABSENT
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != promise.size:
            return Content.OTHER
        identity = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        if self._checked.get(path.name) != identity:  # it is read once, not once a look
            if disk.sha256(path) != promise.sha256:
                return Content.OTHER
            if path.name == promise.part.staged:
                self._checked[path.name] = identity
        return Content.RIGHT


class _DiskShelf:
    """Where the traces of a directory are."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> bool:
        return disk.create_empty(self._directory / name)

    def hidden(self, job: str) -> list[tuple[str, Kind, Part]]:
        return hidden(self._directory, job)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


def hidden(directory: Path, job: str) -> list[tuple[str, Kind, Part]]:
    """A job's hidden files, by name. FileNotFoundError is none: a directory that is not there holds nothing."""
    listed = sorted(os.listdir(directory)) if directory.exists() else []
    parsed = [(name, found) for name in listed if (found := Part.parse(name)) is not None]
    return [(name, kind, part) for name, (kind, part) in parsed if part.job == job]


def _seen(path: Path) -> os.stat_result | None:
    """What is there; None if nothing is. Links are not followed."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _detail(standing: Standing, facts: Listing, directory: Path, promise: Promise) -> str:
    """What a person needs to know about a promise."""
    part = promise.part
    staged, final = directory / part.staged, directory / promise.final
    match standing:
        case Standing.PREPARED:
            return f"{staged} is there"
        case Standing.COMMITTED:
            return f"{final} is there" if facts.final is Content.RIGHT else f"{final} was there and has been taken"
        case Standing.LOST if facts.final is Content.OTHER and facts.staged is not Content.ABSENT:
            return (
                f"{final} exists and is not what {staged.name} promised: most likely the directory holds parts of an "
                f"earlier life of job {part.job!r}; move them away or use another directory"
            )
        case Standing.LOST if facts.aborted:
            return f"{staged} was aborted"
        case Standing.LOST:
            return f"{staged} is damaged: its length or its checksum is not the one that was promised"
    found = "is not what was promised" if facts.final is Content.OTHER else "is not there"
    return (
        f"{final} {found}, {staged.name} is not there either, and there is no trace of a commit (if readers have got "
        f"its rows: touch {directory / part.hidden(Kind.COMMITTED)}; if nobody has: touch "
        f"{directory / part.hidden(Kind.ABORTED)})"
    )
