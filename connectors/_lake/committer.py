"""The committer of staged data files: all files of an epoch are one entry of the table's log.

I/O around ``commit_status``. A commit first reads the log, so it finds earlier commits. It is based on the version that
it read, so no commit can come in between. Each recovery writes its term to the log, the *fence*, as a commit of its
own.
A commit of an older term is based on a log without that fence, and is rejected.
Rule: after a conflict, a process reads the log again before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import (
    AtomicCommitter,
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    OutputOwner,
    Probe,
    StagedOutput,
)
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import (
    IncarnationSign,
    IncarnationState,
    SupportsLossCheck,
    SupportsRegistration,
    taken_over,
)
from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.commit_status import TAKEN_OVER, LogState, derive_status, is_older_than
from kafka_eos.connectors._lake.file_names import LakeCommittable, describe_key
from kafka_eos.connectors._lake.file_store import TableStore
from kafka_eos.connectors._lake.lake_table import CommitConflict, CommitMetadata, DataFile, LakeIncarnation, LakeTable
from kafka_eos.connectors._lake.row_replacement import FileReplacement, explain_mismatch, rewrite_files
from kafka_eos.connectors.files.file_names import PartId, parse_registration
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.core.errors import Bug, CommittableLost, ConfigError, Fenced, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity, Term

_TRIES: Final = 20
"""Conflicts with other writers in a row after which a commit waits as for a server that does not respond."""


class LakeCommitter(SupportsRegistration, SupportsLossCheck, AtomicCommitter):
    """The committer of one table. Thread-safe, and usable by any process that has the manifest."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._term: int | None = None
        """The term that this committer has registered; None before that."""
        self._committed: EpochId | None = None
        """The newest epoch that is known to be committed here; a log without it is an older copy."""

    def read_owner(self, committable: Committable) -> OutputOwner:
        """Return the owner by the name of the staged file; the target is the key of the rows that it replaces."""
        staged_file = LakeCommittable.read(committable.payload)
        return replace(staged_file.part.owner, target=describe_key(staged_file.key))

    def probe(self, committable: Committable) -> Probe:
        return self.probe_all([committable])[0]

    def probe_all(self, committables: Sequence[Committable]) -> Sequence[Probe]:
        staged_files = [LakeCommittable.read(each.payload) for each in committables]
        seen = {
            each: self._table.read_state(each)
            for each in {_incarnation(staged_file.part) for staged_file in staged_files}
        }
        return [self._probe_file(staged_file, seen[_incarnation(staged_file.part)]) for staged_file in staged_files]

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        staged_files = [LakeCommittable.read(each.payload) for each in committables]
        for staged_file in staged_files:
            # Output of older epochs, which may have been aborted, is part of this one.
            if permit.epoch < staged_file.part.epoch:
                raise Bug(f"a permit for epoch {permit.epoch} cannot commit {staged_file.file}")
        (incarnation,) = {_incarnation(staged_file.part) for staged_file in staged_files}
        files = [
            DataFile(staged_file.file, staged_file.size, each.records, staged_file.partition)
            for staged_file, each in zip(staged_files, committables, strict=True)
            if not staged_file.key
        ]
        outcome = self._retry_conflicts(lambda: self._commit_once(permit.epoch, incarnation, staged_files, files))
        self._committed = permit.epoch
        replacing = [staged_file for staged_file in staged_files if staged_file.key]
        self._forget([staged_file.part for staged_file in staged_files], [each.file for each in replacing])
        if replacing:
            # No process can commit another attempt at this epoch any more.
            mine = (incarnation, permit.epoch)
            self._end(lambda part: names.is_made_by_commit(part) and (_incarnation(part), part.epoch) == mine)
        return [outcome] * len(staged_files)

    def _commit_once(
        self,
        epoch: EpochId,
        incarnation: LakeIncarnation,
        staged_files: Sequence[LakeCommittable],
        files: Sequence[DataFile],
    ) -> CommitOutcome:
        seen = self._table.read_state(incarnation)
        probes = [self._probe_file(staged_file, seen) for staged_file in staged_files]
        if wrong := [each.detail for each in probes if each.status in (CommitStatus.LOST, CommitStatus.UNKNOWN)]:
            raise CommittableLost(f"epoch {epoch}: {', '.join(wrong)}")
        if all(each.status is CommitStatus.COMMITTED for each in probes):
            self._table.make_durable()
            return CommitOutcome.ALREADY
        if any(each.status is CommitStatus.COMMITTED for each in probes):
            raise CommittableLost(f"part of epoch {epoch} is in {self._table.display_name}, and part of it is not")
        if self._term is not None and (seen.fence or 0) > self._term:
            raise Fenced(self._fenced(incarnation, seen, Term(self._term)))
        for staged_file in staged_files:
            if staged_file.schema != seen.schema:
                self._expect_fit(staged_file)
        hit("lake.commit.before")
        fence = max(self._term or epoch.term.n, seen.fence or 0)
        if keyed := [staged_file for staged_file in staged_files if staged_file.key]:
            self._replace(seen, incarnation, fence, epoch, files, keyed)
        else:
            self._table.commit(seen, incarnation, CommitMetadata(fence, epoch), files)
            hit("lake.commit.after")
        return CommitOutcome.COMMITTED

    def _replace(
        self,
        seen: LogState,
        incarnation: LakeIncarnation,
        fence: int,
        epoch: EpochId,
        files: Sequence[DataFile],
        keyed: Sequence[LakeCommittable],
    ) -> None:
        """Commit the files that replace rows. Delete the new files if it is known that they never will be committed."""
        part = names.made_by_commit(incarnation.job, incarnation.identity, epoch)
        try:
            made = self._made(seen, keyed, part)
            hit("lake.replaced")
            self._table.commit(seen, incarnation, CommitMetadata(fence, epoch), [*files, *made.added], made.removed)
        except CommitConflict:
            # While the version is the same, the commit may be in flight and still succeed.
            if self._table.read_state(incarnation).version != seen.version:
                self._end(lambda of: of.operator == part(0).operator)
            raise
        hit("lake.commit.after")
        self._forget(made.parts)

    def _made(self, seen: LogState, keyed: Sequence[LakeCommittable], part: Callable[[int], PartId]) -> FileReplacement:
        """Write the files that replace rows. A lost registration of this attempt counts as a conflict.

        Another process has then committed the epoch or a newer one. The next read of the log finds its term.
        """
        try:
            return rewrite_files(self._table, seen, keyed, part)
        except Fenced as error:
            raise CommitConflict from error

    def _forget(self, parts: Sequence[PartId], read: Sequence[str] = ()) -> None:
        """Delete the files whose rows a commit has read, then the staging entries of these and of committed files."""
        with map_errors(Retryable, f"remove what is staged for {self._table.display_name}"):
            for name in read:
                self._store.delete(name)
            for part in parts:
                self._store.delete(names.build_entry_name(part))

    def _expect_fit(self, staged_file: LakeCommittable) -> None:
        with map_errors(Retryable, f"read {staged_file.file} in {self._table.display_name}"):
            why = explain_mismatch(self._table.read_spec(), self._store.columns(staged_file.file), staged_file)
        if why is not None:
            raise ConfigError(
                f"{self._table.display_name} was altered, and decided output does not fit into it any "
                f"more: {why}. The output stays staged: undo the change and restart"
            )

    def _retry_conflicts(self, act: Callable[[], CommitOutcome]) -> CommitOutcome:
        for _ in range(_TRIES):
            try:
                return act()
            except CommitConflict:
                continue
        raise Retryable(
            f"{self._table.display_name}: {_TRIES} commits in a row failed because other writers committed first"
        )

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List the staged files that no commit names."""
        with map_errors(Retryable, f"look into {self._table.display_name}"):
            now, found = time.time(), self._noted(lambda part: part.job == ctx.job)
            seen = {each: self._table.read_state(each) for each in {_incarnation(part) for part in found}}
            detail = f"staged for {self._table.display_name}"
            return [
                StagedOutput(part.epoch.term, self._there(part), detail, max(0.0, now - since), part.identity)
                for part, since in found.items()
                if not _is_committed(part, seen[_incarnation(part)])
            ]

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Remove this incarnation's data files of older terms; a writer that still has one open loses it."""
        return self._end(lambda part: part.job == ctx.job and ctx.owns(part.identity) and part.epoch.term < ctx.term)

    def _end(self, whose: Callable[[PartId], bool]) -> list[str]:
        """Remove staged files that the table does not reference. Permitted commits are finished before this call."""
        with map_errors(Retryable, f"clean up {self._table.display_name}"):
            old = self._noted(whose)
            referred = self._table.files(old) if old else frozenset()
            gone = []
            for part in old:
                if names.data(part) not in referred:
                    gone.append(self._there(part))
                    self._store.delete(names.data(part))
                    self._store.delete(names.replacing_rows(part))
                self._store.delete(names.build_entry_name(part))
            return gone

    def _there(self, part: PartId) -> str:
        """Return the name of the file with its rows; that of the staging entry if there is no such file yet."""
        possible = names.data(part), names.replacing_rows(part)
        return next((name for name in possible if self._store.size(name) is not None), names.build_entry_name(part))

    def _noted(self, whose: Callable[[PartId], bool]) -> dict[PartId, float]:
        parsed = ((names.noted(name), since) for name, since in self._store.notes().items())
        return {part: since for part, since in parsed if part is not None and whose(part)}

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List incarnations by registrations and staged files."""
        with map_errors(Retryable, f"look into {self._table.display_name}"):
            known = map(parse_registration, self._store.notes())
            registered = [of[1] for of in known if of and of[0] == ctx.job]
        newest: dict[JobIdentity | None, StagedOutput] = {}
        for item in self.list_staged(ctx):
            newest[item.identity] = max(item, newest.get(item.identity, item), key=lambda each: each.term)
        return [self._sign(ctx.job, of, newest.get(of)) for of in dict.fromkeys([*newest, *registered])]

    def _sign(self, job: str, identity: JobIdentity | None, newest: StagedOutput | None) -> IncarnationSign:
        place, seen = self._table.display_name, self._table.read_state(LakeIncarnation(job, identity))
        committed = None if seen.marker is None else seen.marker.epoch
        if newest is not None:
            open_ = IncarnationState.OPEN
            return IncarnationSign(identity, place, newest.name, newest.term, open_, committed=committed)
        fence = seen.fence
        state = IncarnationState.OVER if fence == TAKEN_OVER else IncarnationState.ENDED
        term = None if fence in (None, TAKEN_OVER) else Term(fence)
        return IncarnationSign(identity, place, "its registration", term, state, committed=committed)

    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """Return which committed output the table lacks, or None."""
        seen = self._table.read_state(LakeIncarnation(ctx.job, ctx.identity))
        staged_files = (LakeCommittable.read(each.payload) for each in committables)
        there = [staged_file.part.epoch for staged_file in staged_files if staged_file.table == seen.table]
        wrote = max(there, key=lambda epoch: (epoch.term, epoch.epoch), default=None)
        the_log = f"the {self._table.log} of {self._table.display_name}"
        if is_older_than(seen, newest, wrote):
            last = "nothing" if seen.fence is None else f"term {seen.fence} and epoch {seen.marker or 'none'} at most"
            return f"{the_log} contains {last} of this job"
        if seen.is_ahead_of(newest):
            return f"{the_log} already contains epoch {seen.marker} of this job"
        self._committed = None if seen.is_missing(wrote) else wrote
        return None

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation with a file, which others list, and with the fence in the log, which is decisive."""
        if ctx.identity is None:
            return
        incarnation = LakeIncarnation(ctx.job, ctx.identity)
        with map_errors(Retryable, f"register job {ctx.job!r} in {self._table.display_name}"):
            self._store.create(names.build_registration_name(ctx.job, ctx.identity))
        self._retry_conflicts(lambda: self._fence_older_terms(ctx, incarnation))
        self._term = ctx.term.n

    def _fence_older_terms(self, ctx: JobContext, incarnation: LakeIncarnation) -> CommitOutcome:
        seen = self._table.read_state(incarnation)
        if seen.fence == TAKEN_OVER:
            raise Fenced(taken_over(ctx, self._table.display_name))
        if (seen.fence or 0) > ctx.term.n:
            raise Fenced(self._fenced(incarnation, seen, ctx.term))
        # Fence once: in an older copy of the log, a second fence would hide what is missing.
        if ctx.term.n in (seen.fence, self._term):
            return CommitOutcome.ALREADY
        self._fence(seen, incarnation, ctx.term.n)
        return CommitOutcome.COMMITTED

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """End an incarnation. Without its fence it commits nothing any more; then its staged files are removed."""
        if identity is not None:
            self._retry_conflicts(lambda: self._ended(LakeIncarnation(ctx.job, identity)))
        return self._end(lambda part: part.job == ctx.job and part.identity == identity)

    def _ended(self, incarnation: LakeIncarnation) -> CommitOutcome:
        seen = self._table.read_state(incarnation)
        if seen.fence == TAKEN_OVER:
            return CommitOutcome.ALREADY
        self._fence(seen, incarnation, TAKEN_OVER)
        return CommitOutcome.COMMITTED

    def _fence(self, seen: LogState, incarnation: LakeIncarnation, term: int) -> None:
        self._table.commit(seen, incarnation, CommitMetadata(term, since=term if seen.fence is None else None))

    @property
    def _store(self) -> TableStore:
        return self._table.store()

    def _probe_file(self, staged_file: LakeCommittable, seen: LogState) -> Probe:
        with map_errors(Retryable, f"look for {staged_file.file} in {self._table.display_name}"):
            is_intact = self._store.size(staged_file.file) == staged_file.size
        part = staged_file.part
        same_table = staged_file.table == seen.table
        status = derive_status(part.epoch, part.identity is not None, same_table, self._committed, seen, is_intact)
        return Probe(status, self._detail(staged_file, seen, status))

    def _detail(self, staged_file: LakeCommittable, seen: LogState, status: CommitStatus) -> str:
        name, table, log = staged_file.file, self._table.display_name, self._table.log
        match status:
            case CommitStatus.PREPARED:
                return f"{name} is staged for {table}"
            case CommitStatus.COMMITTED:
                return f"{table} has the commit of epoch {seen.marker}"
            case CommitStatus.LOST:
                return f"{name} was removed or has another length, and no commit of {table} names it"
        if staged_file.table != seen.table:
            return (
                f"{table} is not the table for which {name} was written: the table was dropped or "
                f"replaced. Restore the old one with its {log}"
            )
        if seen.is_missing(self._committed):
            return (
                f"the {log} of {table} does not contain epoch {self._committed}, which this job has "
                f"committed: an older copy was restored. Restore the newest {log}"
            )
        if staged_file.part.identity is not None and not seen.has_record_of(staged_file.part.epoch):
            return (
                f"unknown whether {name} was committed: the {log} of {table} has no entry of this job "
                "from the time when the file was staged. An older copy was restored, or the entries "
                f"of jobs were removed. Restore the newest {log}"
            )
        return f"unknown whether {name} was committed: a newer term has committed epoch {seen.marker} to {table}"

    def _fenced(self, incarnation: LakeIncarnation, seen: LogState, term: Term) -> str:
        return f"term {seen.fence} of job {incarnation.job!r} writes to {self._table.display_name}; this is term {term}"


def _incarnation(part: PartId) -> LakeIncarnation:
    return LakeIncarnation(part.job, part.identity)


def _is_committed(part: PartId, seen: LogState) -> bool:
    return derive_status(part.epoch, False, True, None, seen, False) is CommitStatus.COMMITTED
