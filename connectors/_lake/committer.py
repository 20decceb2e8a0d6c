"""Commits staged data files: all of an epoch is one entry of the table's log. I/O around ``standings``.

A commit looks at the log first, so it finds what was done; and it is made on what it saw, so nothing comes in between.
Each recovery leaves its term in the log, the *fence*, as a commit of its own: what an older term has on its way was
made on a log without it, and is refused.
Rule: whoever is overtaken looks again before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Staged, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life, LifeState, taken_over
from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.commit_status import OVER, Seen, judged, lacking
from kafka_eos.connectors._lake.file_names import Promise
from kafka_eos.connectors._lake.file_store import Store
from kafka_eos.connectors._lake.lake_table import DataFile, LakeLife, LakeTable, Overtaken
from kafka_eos.connectors._lake.row_replacement import Replacement, misfit, replacement
from kafka_eos.connectors.files.file_names import Part
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.core.errors import Bug, CommittableLost, ConfigError, Fenced, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity, Term

_TRIES: Final = 20
"""Commits of others that one of ours may meet in a row, before it waits as for a server that does not answer."""


class LakeCommitter:
    """The committer of one table. May be used from threads, and by any process that has the manifest."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._term: int | None = None
        """The term that holds the life here; None before it says so."""
        self._committed: EpochId | None = None
        """The newest epoch that is known to be committed here: a log without it is an older copy."""

    def probe(self, committable: Committable) -> Probe:
        return self.probe_all([committable])[0]

    def probe_all(self, committables: Sequence[Committable]) -> Sequence[Probe]:
        promises = [Promise.read(each.payload) for each in committables]
        seen = {life: self._table.look(life) for life in {_life(promise.part) for promise in promises}}
        return [self._judged(promise, seen[_life(promise.part)]) for promise in promises]

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        raise Bug(f"{self._table.text} takes all of epoch {permit.epoch} in one commit: commit_all")

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[Outcome]:
        promises = [Promise.read(each.payload) for each in committables]
        for promise in promises:
            if permit.epoch < promise.part.epoch:  # an older one was given up; its output is part of this epoch
                raise Bug(f"a permit for epoch {permit.epoch} cannot commit {promise.file}")
        (life,) = {_life(promise.part) for promise in promises}
        files = [
            DataFile(promise.file, promise.size, each.records, promise.partition)
            for promise, each in zip(promises, committables, strict=True)
            if not promise.key
        ]
        outcome = self._tried(lambda: self._changed(permit.epoch, life, promises, files))
        self._committed = permit.epoch
        self._forget([promise.part for promise in promises])
        if any(promise.key for promise in promises):
            # No other attempt of this epoch can be committed any more, by whomever.
            self._end(lambda part: names.is_made_by_commit(part) and _life(part) == life and part.epoch == permit.epoch)
        return [outcome] * len(promises)

    def _changed(
        self, epoch: EpochId, life: LakeLife, promises: Sequence[Promise], files: Sequence[DataFile]
    ) -> Outcome:
        seen = self._table.look(life)
        probes = [self._judged(promise, seen) for promise in promises]
        if wrong := [each.detail for each in probes if each.standing in (Standing.LOST, Standing.UNKNOWN)]:
            raise CommittableLost(f"epoch {epoch}: {', '.join(wrong)}")
        if all(each.standing is Standing.COMMITTED for each in probes):
            self._table.settle()
            return Outcome.ALREADY
        if any(each.standing is Standing.COMMITTED for each in probes):
            raise CommittableLost(f"part of epoch {epoch} is in {self._table.text}, and part of it is not")
        if self._term is not None and (seen.fence or 0) > self._term:
            raise Fenced(self._fenced(life, seen, Term(self._term)))
        for promise in promises:
            if promise.schema != seen.schema:
                self._expect_fit(promise)
        hit("lake.commit.before")
        fence = max(self._term or epoch.term.n, seen.fence or 0)
        if keyed := [promise for promise in promises if promise.key]:
            self._replace(seen, life, fence, epoch, files, keyed)
        else:
            self._table.change(seen, life, fence, epoch, files)
            hit("lake.commit.after")
        return Outcome.COMMITTED

    def _replace(
        self,
        seen: Seen,
        life: LakeLife,
        fence: int,
        epoch: EpochId,
        files: Sequence[DataFile],
        keyed: Sequence[Promise],
    ) -> None:
        """If it is known that nothing was committed, and never will be, what was written for it goes."""
        part = names.made_by_commit(life.job, life.identity, epoch)
        try:
            made = self._made(seen, keyed, part)
            hit("lake.replaced")
            self._table.change(seen, life, fence, epoch, [*files, *made.added], made.removed)
        except Overtaken:
            if self._table.look(life).version != seen.version:  # else it may be on its way, and land yet
                self._end(lambda of: of.operator == part(0).operator)
            raise
        hit("lake.commit.after")
        self._forget(made.parts)

    def _made(self, seen: Seen, keyed: Sequence[Promise], part: Callable[[int], Part]) -> Replacement:
        """Raises Overtaken also if another process has ended this attempt: it has committed the epoch, or a newer one.

        What came in between is in the log: a newer term is found there.
        """
        try:
            return replacement(self._table, seen, keyed, part)
        except Fenced as error:
            raise Overtaken from error

    def _forget(self, parts: Sequence[Part]) -> None:
        """They are staged no more: a commit has them, or has read them."""
        with mapped(Retryable, f"remove what is staged for {self._table.text}"):
            for part in parts:
                self._store.delete(names.note(part))

    def _expect_fit(self, promise: Promise) -> None:
        with mapped(Retryable, f"read {promise.file} in {self._table.text}"):
            why = misfit(self._table.fit(), self._store.columns(promise.file), promise)
        if why is not None:
            raise ConfigError(
                f"{self._table.text} was altered, and what is decided does not fit any more: {why}. It stays staged: "
                "change the table back and start again"
            )

    def _tried(self, act: Callable[[], Outcome]) -> Outcome:
        for _ in range(_TRIES):
            try:
                return act()
            except Overtaken:
                continue
        raise Retryable(f"others commit to {self._table.text} all the time: {_TRIES} times in a row one came first")

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Files that no commit names."""
        with mapped(Retryable, f"look into {self._table.text}"):
            now, found = time.time(), self._noted(lambda part: part.job == ctx.job)
            seen = {life: self._table.look(life) for life in {_life(part) for part in found}}
            detail = f"staged for {self._table.text}"
            return [
                Staged(part.epoch.term, self._there(part), detail, max(0.0, now - since), part.identity)
                for part, since in found.items()
                if not _is_committed(part, seen[_life(part)])
            ]

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Remove this life's data files of older terms; a writer that still has one open loses it."""
        return self._end(lambda part: part.job == ctx.job and ctx.owns(part.identity) and part.epoch.term < ctx.term)

    def _end(self, whose: Callable[[Part], bool]) -> list[str]:
        """Whoever may commit has done it before: what it committed, the table refers to."""
        with mapped(Retryable, f"clean up {self._table.text}"):
            old = self._noted(whose)
            referred = self._table.files(min(old.values())) if old else frozenset()
            gone = []
            for part in old:
                if names.data(part) not in referred:
                    gone.append(self._there(part))
                    self._store.delete(names.data(part))
                self._store.delete(names.note(part))
            return gone

    def _there(self, part: Part) -> str:
        """Where its rows are: in the note, if they replace others, or if no data file was made yet."""
        data = names.data(part)
        return names.note(part) if self._store.size(data) is None else data

    def _noted(self, whose: Callable[[Part], bool]) -> dict[Part, float]:
        parsed = ((names.noted(name), since) for name, since in self._store.notes().items())
        return {part: since for part, since in parsed if part is not None and whose(part)}

    # ------------------------------------------------------------ lives of one name

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """By marks, and by what is staged."""
        with mapped(Retryable, f"look into {self._table.text}"):
            marks = [of[1] for name in self._store.notes() if (of := names.marked(name)) and of[0] == ctx.job]
        newest: dict[JobIdentity | None, Staged] = {}
        for item in self.staged(ctx):
            newest[item.identity] = max(item, newest.get(item.identity, item), key=lambda each: each.term)
        return [self._sign(ctx.job, of, newest.get(of)) for of in dict.fromkeys([*newest, *marks])]

    def _sign(self, job: str, identity: JobIdentity | None, newest: Staged | None) -> Life:
        if newest is not None:
            return Life(identity, self._table.text, newest.name, newest.term, LifeState.OPEN)
        fence = self._table.look(LakeLife(job, identity)).fence
        state = LifeState.OVER if fence == OVER else LifeState.ENDED
        return Life(identity, self._table.text, "its mark", None if fence in (None, OVER) else Term(fence), state)

    def lacks(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        """See ``abc.Remembers``."""
        seen = self._table.look(LakeLife(ctx.job, ctx.identity))
        promises = (Promise.read(each.payload) for each in committables)
        there = [promise.part.epoch for promise in promises if promise.table == seen.table]
        wrote = max(there, key=lambda epoch: (epoch.term, epoch.epoch), default=None)
        the_log = f"the {self._table.log} of {self._table.text}"
        if lacking(seen, newest, wrote):
            last = "nothing" if seen.fence is None else f"term {seen.fence} and epoch {seen.marker or 'none'} at most"
            return f"{the_log} has {last} of this job"
        if seen.is_ahead_of(newest):
            return f"{the_log} has epoch {seen.marker} of this job already"
        self._committed = None if seen.lacks(wrote) else wrote
        return None

    def hold(self, ctx: JobContext) -> None:
        """The mark is a file for those who look for lives, and the fence in the log is what counts."""
        if ctx.identity is None:
            return
        life = LakeLife(ctx.job, ctx.identity)
        with mapped(Retryable, f"leave the mark of job {ctx.job!r} in {self._table.text}"):
            self._store.create(names.mark(ctx.job, ctx.identity))
        self._tried(lambda: self._held(ctx, life))
        self._term = ctx.term.n

    def _held(self, ctx: JobContext, life: LakeLife) -> Outcome:
        seen = self._table.look(life)
        if seen.fence == OVER:
            raise Fenced(taken_over(ctx, self._table.text))
        if (seen.fence or 0) > ctx.term.n:
            raise Fenced(self._fenced(life, seen, ctx.term))
        if ctx.term.n in (seen.fence, self._term):  # once: in an older copy its fence would hide what is missing
            return Outcome.ALREADY
        self._table.fence(seen, life, ctx.term.n)
        return Outcome.COMMITTED

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Without its fence a life commits nothing any more; what it has staged is removed after that."""
        if identity is not None:
            self._tried(lambda: self._ended(LakeLife(ctx.job, identity)))
        return self._end(lambda part: part.job == ctx.job and part.identity == identity)

    def _ended(self, life: LakeLife) -> Outcome:
        seen = self._table.look(life)
        if seen.fence == OVER:
            return Outcome.ALREADY
        self._table.fence(seen, life, OVER)
        return Outcome.COMMITTED

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _store(self) -> Store:
        return self._table.store()

    def _judged(self, promise: Promise, seen: Seen) -> Probe:
        with mapped(Retryable, f"look for {promise.file} in {self._table.text}"):
            as_promised = self._store.size(promise.file) == promise.size
        part = promise.part
        same_table = promise.table == seen.table
        standing = judged(part.epoch, part.identity is not None, same_table, self._committed, seen, as_promised)
        return Probe(standing, self._detail(promise, seen, standing))

    def _detail(self, promise: Promise, seen: Seen, standing: Standing) -> str:
        name, table, log = promise.file, self._table.text, self._table.log
        match standing:
            case Standing.PREPARED:
                return f"{name} is staged for {table}"
            case Standing.COMMITTED:
                return f"{table} has the commit of epoch {seen.marker}"
            case Standing.LOST:
                return f"{name} is not as long as it was, or not there, and no commit of {table} names it"
        if promise.table != seen.table:
            return (
                f"{table} is not the table that {name} was written for: it was dropped or replaced meanwhile. Bring "
                f"the old one back, with its {log}"
            )
        if seen.lacks(self._committed):
            return (
                f"the {log} of {table} has not epoch {self._committed} any more, which this job has committed there: "
                f"it was put back to an older copy. Bring the {log} back"
            )
        if promise.part.identity is not None and not seen.knows(promise.part.epoch):
            return (
                f"the {log} of {table} has nothing of this job from when {name} was staged, so nobody can tell whether "
                f"it has it: it was put back to an older copy, or what jobs leave there was removed. Bring the {log} "
                "back"
            )
        return f"a newer term has committed epoch {seen.marker} to {table}; what became of {name} is not known any more"

    def _fenced(self, life: LakeLife, seen: Seen, term: Term) -> str:
        return f"term {seen.fence} of job {life.job!r} writes to {self._table.text}; this is term {term}"


def _life(part: Part) -> LakeLife:
    return LakeLife(part.job, part.identity)


def _is_committed(part: Part, seen: Seen) -> bool:
    return judged(part.epoch, False, True, None, seen, False) is Standing.COMMITTED
