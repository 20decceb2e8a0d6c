"""The committer of staged files: probe, publish, and abort files that no manifest names. I/O around ``commit_status``.

A commit creates a marker, syncs it, renames the staged file to its final name, and syncs that. Readers may remove the
final file at once; the marker stays until a later epoch proves the receipt of this one.
Rule: only a rename ends a staged file, in a commit or an abort, so exactly one of them happens.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState, SupportsRegistration, taken_over
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import FileCommittable, PartId, PartState
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.sink.announcements import EpochFileEntry, build_epoch_files
from kafka_eos.connectors.files.sink.commit_markers import CommitMarkers
from kafka_eos.connectors.files.sink.commit_status import ContentState, DirectoryEvidence, derive_status
from kafka_eos.core.errors import Bug, CommittableLost, Fenced, Retryable
from kafka_eos.core.ids import Epoch, JobIdentity


class FileCommitter(SupportsRegistration, Committer):
    """The committer of one directory. Its state is in the directory. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checked: dict[str, tuple[int, ...]] = {}
        self._markers = CommitMarkers(_DirectoryMarkerStore(directory))

    def read_owner(self, committable: Committable) -> OutputOwner:
        """Return the owner by the name of the staged file. All names are in the directory, see ``FileCommittable``."""
        return FileCommittable.read(committable.payload).part.owner

    def probe(self, committable: Committable) -> Probe:
        with map_errors(Retryable, f"look into {self._directory}"):
            return self._probe(FileCommittable.read(committable.payload))

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        staged_file = FileCommittable.read(committable.payload)
        if permit.epoch < staged_file.part.epoch:  # aborted epochs are subsumed by this one
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {staged_file.part.staged}")
        with map_errors(Retryable, f"commit {staged_file.final_name}"):
            seen = self._probe(staged_file)
            match seen.status:
                case CommitStatus.PREPARED:
                    self._publish(staged_file, permit)
                    outcome = CommitOutcome.COMMITTED
                case CommitStatus.COMMITTED:
                    outcome = CommitOutcome.ALREADY
                case CommitStatus.LOST | CommitStatus.UNKNOWN:
                    raise CommittableLost(seen.detail)
            # Sync even if it was renamed before: the process that renamed it may have died before its sync.
            self._sync(staged_file.final_name)
            self._checked.pop(staged_file.part.staged, None)
            self._markers.forget(staged_file.part, permit.epoch)
            return outcome

    def _publish(self, staged_file: FileCommittable, permit: CommitPermit) -> None:
        """Rename the staged file to its final name, after a marker that outlives it is durable."""
        part, final = staged_file.part, self._path(staged_file.final_name)
        disk.create_directory(final.parent)
        first = self._markers.make(part, permit.epoch)
        disk.sync_directory(self._directory)
        try:
            disk.rename_new(self._path(part.staged), final)
        except FileExistsError as error:
            raise Retryable(f"{staged_file.final_name} appeared while it was being committed") from error
        except FileNotFoundError as error:
            if first and not os.path.lexists(final):
                # This process created the marker, so it proves nothing: a newer term may have aborted the staged file.
                raise CommittableLost(
                    f"{part.staged} was committed or aborted by another process at this moment"
                ) from error
            raise Retryable(f"{staged_file.final_name} was committed by another process at this moment") from error

    def _sync(self, final: str) -> None:
        """Make a rename durable, first in the final directory: two names after a crash are harmless, none is not.

        All directories up to the sink's own are synced, because a process that died may have created one without a
        sync.
        """
        for partition in Path(final).parents[:-1]:
            if (target := self._directory / partition).is_dir():  # readers may have removed a whole partition
                disk.sync_directory(target)
        disk.sync_directory(self._directory)

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Write the file that lists the epoch's files, for readers that wait until all sinks have committed
        the epoch."""
        entries = []
        for each in committables:
            staged_file = FileCommittable.read(each.payload)
            if staged_file.in_epoch_file:
                more = {"sha256": staged_file.sha256}
                entries.append(
                    EpochFileEntry(staged_file.part, staged_file.final_name, each.records, staged_file.size, more)
                )
        for name, content in build_epoch_files(permit.epoch, entries):
            with map_errors(Retryable, f"write {self._directory / name}"):
                disk.create_directory(self._directory / names.EPOCHS)
                disk.write_whole(self._path(name), content)

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List open and prepared files."""
        now, found = time.time(), []
        with map_errors(Retryable, f"look into {self._directory}"):
            for name, kind, part in hidden(self._directory, ctx.job):
                seen = _seen(self._path(name))
                if kind not in (PartState.OPEN, PartState.STAGED) or seen is None:
                    continue
                detail = f"{seen.st_size} bytes in {self._directory}"
                found.append(StagedOutput(part.epoch.term, name, detail, max(0.0, now - seen.st_mtime), part.identity))
        return found

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Abort this incarnation's open and staged files of older terms; a writer that still has one open loses it."""
        return self._end(ctx.job, lambda part: ctx.owns(part.identity) and part.epoch.term < ctx.term)

    def _end(self, job: str, whose: Callable[[PartId], bool]) -> list[str]:
        with map_errors(Retryable, f"clean up {self._directory}"):
            old = [each for each in hidden(self._directory, job) if whose(each[2])]
            opened = [name for name, kind, _ in old if kind is PartState.OPEN]
            for name in opened:
                self._path(name).unlink(missing_ok=True)
            undone = [name for name, kind, part in old if kind is PartState.STAGED and self._abort_part(part)]
            if opened or undone:
                disk.sync_directory(self._directory)
            return sorted([*opened, *undone])

    def _abort_part(self, part: PartId) -> bool:
        """Abort a staged part; return whether it was still staged. Its content is deleted, its name stays as
        a marker."""
        staged, marker = self._path(part.staged), self._path(part.build_hidden_name(PartState.ABORTED))
        try:
            os.rename(staged, marker)
        except FileNotFoundError:
            return False  # a process with a commit permit was faster
        self._markers.note(part, PartState.ABORTED, part.epoch)
        if (left := _seen(marker)) is not None and stat.S_ISREG(left.st_mode) and left.st_nlink == 1:
            os.truncate(marker, 0)
        return True

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List incarnations by registrations, staged files, and parts that readers have not removed."""
        with map_errors(Retryable, f"look into {self._directory}"):
            found = sorted(os.listdir(self._directory)) if self._directory.exists() else []
        committed: dict[JobIdentity | None, Epoch] = {}
        for whose in filter(None, map(names.parse_committed_name, found)):
            if whose[0] == ctx.job:
                committed[whose[1]] = max(whose[2], committed.get(whose[1], whose[2]))
        registered: dict[JobIdentity | None, bool]
        registered = {
            of[1]: of[2] for of in map(names.parse_registration, found) if of is not None and of[0] == ctx.job
        }
        open_: dict[JobIdentity | None, StagedOutput] = {}
        for item in self.list_staged(ctx):
            open_[item.identity] = max(item, open_.get(item.identity, item), key=lambda each: each.term)
        return [
            self._sign(identity, open_.get(identity), registered.get(identity, False), committed.get(identity))
            for identity in dict.fromkeys([*open_, *registered, *committed])
        ]

    def _sign(
        self, identity: JobIdentity | None, newest: StagedOutput | None, over: bool, committed: Epoch | None
    ) -> IncarnationSign:
        place = f"file:{self._directory}"
        if newest is not None:
            open_ = IncarnationState.OPEN
            return IncarnationSign(identity, place, newest.name, newest.term, open_, newest.age, committed)
        state = IncarnationState.OVER if over else IncarnationState.ENDED
        return IncarnationSign(identity, place, "files of it", state=state, committed=committed)

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation with a file; another file in its place shows that the incarnation was retired."""
        if ctx.identity is None:
            return
        with map_errors(Retryable, f"look up the registration of job {ctx.job!r} in {self._directory}"):
            if os.path.lexists(self._path(names.retirement_name(ctx.job, ctx.identity))):
                raise Fenced(taken_over(ctx, str(self._directory)))
            registration = self._path(names.registration_name(ctx.job, ctx.identity))
            if not os.path.lexists(registration):
                disk.create_directory(self._directory)
                disk.create_empty(registration)
                disk.sync_directory(self._directory)

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """End an incarnation. Files that it stages later are never committed: it finds that its registration
        is gone."""
        if identity is not None:
            with map_errors(Retryable, f"remove the registration of incarnation {identity} in {self._directory}"):
                disk.create_directory(self._directory)
                disk.create_empty(self._path(names.retirement_name(ctx.job, identity)))
                self._path(names.registration_name(ctx.job, identity)).unlink(missing_ok=True)
                disk.sync_directory(self._directory)
        return self._end(ctx.job, lambda part: part.identity == identity)

    def _path(self, name: str) -> Path:
        return self._directory / name

    def _probe(self, staged_file: FileCommittable) -> Probe:
        part = staged_file.part
        staged, final = self._path(part.staged), self._path(staged_file.final_name)
        facts = DirectoryEvidence(
            staged=self._content(staged_file, staged, _seen(staged)),
            final=self._content(staged_file, final, _seen(final)),
            aborted=os.path.lexists(self._path(part.build_hidden_name(PartState.ABORTED))),
            committed=os.path.lexists(self._path(part.build_hidden_name(PartState.COMMITTED))),
        )
        status = derive_status(facts)
        return Probe(status, _detail(status, facts, self._directory, staged_file))

    def _content(self, staged_file: FileCommittable, path: Path, seen: os.stat_result | None) -> ContentState:
        if seen is None:
            return ContentState.ABSENT
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != staged_file.size:
            return ContentState.OTHER
        identity = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        if self._checked.get(path.name) != identity:  # the file is read once, not on each probe
            if disk.sha256(path) != staged_file.sha256:
                return ContentState.OTHER
            if path.name == staged_file.part.staged:
                self._checked[path.name] = identity
        return ContentState.RIGHT


class _DirectoryMarkerStore:
    """Markers as empty files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> bool:
        return disk.create_empty(self._directory / name)

    def hidden(self, job: str) -> list[tuple[str, PartState, PartId]]:
        return hidden(self._directory, job)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


def hidden(directory: Path, job: str) -> list[tuple[str, PartState, PartId]]:
    """Return a job's hidden files, by name; none if the directory does not exist."""
    listed = sorted(os.listdir(directory)) if directory.exists() else []
    parsed = [(name, found) for name in listed if (found := PartId.parse(name)) is not None]
    return [(name, kind, part) for name, (kind, part) in parsed if part.job == job]


def _seen(path: Path) -> os.stat_result | None:
    """Return the status of a path; None if it does not exist. Links are not followed."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _detail(status: CommitStatus, facts: DirectoryEvidence, directory: Path, staged_file: FileCommittable) -> str:
    """Return a description of a committable's status, with a remedy if it needs one."""
    part = staged_file.part
    staged, final = directory / part.staged, directory / staged_file.final_name
    match status:
        case CommitStatus.PREPARED:
            return f"{staged} exists"
        case CommitStatus.COMMITTED:
            return (
                f"{final} exists"
                if facts.final is ContentState.RIGHT
                else f"{final} was committed and then moved away by a reader"
            )
        case CommitStatus.LOST if facts.final is ContentState.OTHER and facts.staged is not ContentState.ABSENT:
            return (
                f"{final} exists, but its content is not that of {staged.name}: most likely the "
                f"directory contains files of an earlier incarnation of job {part.job!r}; move them "
                "away or use another directory"
            )
        case CommitStatus.LOST if facts.aborted:
            return f"{staged} was aborted"
        case CommitStatus.LOST:
            return f"{staged} is damaged: its length or checksum differs from what was prepared"
    found = "differs from what was prepared" if facts.final is ContentState.OTHER else "does not exist"
    return (
        f"{final} {found}, {staged.name} does not exist either, and no marker of a commit "
        "exists (if readers have received its rows: touch "
        f"{directory / part.build_hidden_name(PartState.COMMITTED)}; otherwise: touch "
        f"{directory / part.build_hidden_name(PartState.ABORTED)})"
    )
