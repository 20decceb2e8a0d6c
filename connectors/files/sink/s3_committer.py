"""Commits uploads: probe, complete, and abort what no manifest knows.

A commit leaves a trace, then completes the upload under a name that must not exist. An abort leaves its own trace, then
aborts. S3 ends an upload once; so whoever has its answer knows. Where nobody has it, these tell:

    upload       object       traces                standing
    there        absent       any                   PREPARED; LOST if its parts are not those that were promised
    there        another's    any                   LOST: it can never get its name
    any          ours         any                   COMMITTED
    absent       not ours     of a commit alone     COMMITTED: readers took or replaced it
    absent       not ours     of an abort alone     LOST
    absent       not ours     both, or none         UNKNOWN: a rule of the bucket may have removed it

Rule: what is not there proves nothing by itself, for readers take objects and buckets remove uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from kafka_eos.abc.committer import CommitPermit, Committable, Outcome, Probe, Staged, Standing
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import Life, LifeState, taken_over
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import Kind, Part
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.connectors.files.s3.bucket import Bucket, Upload
from kafka_eos.connectors.files.sink.announcements import ToldFile, announcements
from kafka_eos.connectors.files.sink.commit_traces import Traces
from kafka_eos.connectors.files.sink.s3_names import UploadPromise, part_of
from kafka_eos.core.errors import Bug, CommittableLost, Fenced, Retryable
from kafka_eos.core.ids import JobIdentity


class _ObjectShelf:
    """Where the traces of a bucket are."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def create(self, name: str) -> bool:
        return self._bucket.create(name)

    def hidden(self, job: str) -> list[tuple[str, Kind, Part]]:
        parsed = [(name, found) for name in self._bucket.hidden() if (found := Part.parse(name)) is not None]
        return [(name, kind, part) for name, (kind, part) in parsed if part.job == job]

    def remove(self, name: str) -> None:
        self._bucket.delete(name)


class UploadCommitter:
    """The committer of one prefix, which holds all that decides. May be used from threads."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._where = bucket, bucket.address.text
        self._traces = Traces(_ObjectShelf(bucket))

    def probe(self, committable: Committable) -> Probe:
        promise = UploadPromise.read(committable.payload)
        with mapped(Retryable, f"look for {promise.name} in {self._where}"):
            return self._look(promise)

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        promise = UploadPromise.read(committable.payload)
        if permit.epoch < promise.part.epoch:  # an older one was given up; its output is part of this epoch
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {promise.name}")
        with mapped(Retryable, f"commit {promise.name} in {self._where}"):
            seen = self._look(promise)
            match seen.standing:
                case Standing.PREPARED:
                    self._complete(promise, permit)
                    outcome = Outcome.COMMITTED
                case Standing.COMMITTED:
                    outcome = Outcome.ALREADY
                case Standing.LOST | Standing.UNKNOWN:
                    raise CommittableLost(seen.detail)
            self._traces.forget(promise.part, permit.epoch)
            return outcome

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Write the object that names the epoch's objects, for readers who wait until all sinks have the epoch."""
        promises = [(UploadPromise.read(each.payload), each.records) for each in committables]
        told = [ToldFile(of.part, of.name, rows, of.size, {}) for of, rows in promises if of.announced]
        for name, content in announcements(permit.epoch, told):
            with mapped(Retryable, f"write {name} in {self._where}"):
                self._bucket.put(name, content)

    def _complete(self, promise: UploadPromise, permit: CommitPermit) -> None:
        first = self._traces.make(promise.part, permit.epoch)
        try:
            self._bucket.complete(promise.name, promise.upload, promise.tags)
        except FileExistsError as error:
            raise Retryable(f"{promise.name} appeared while it was being committed") from error
        except FileNotFoundError as error:
            if first and self._bucket.mark(promise.name) != promise.mark:
                # The trace is ours, and it proves nothing where a newer term has aborted the upload.
                if self._bucket.mark(promise.part.hidden(Kind.ABORTED)) is not None:
                    self._bucket.delete(promise.part.hidden(Kind.COMMITTED))
                raise CommittableLost(f"{promise.name} was ended by another process at this moment") from error
            raise Retryable(f"{promise.name} was committed by another process at this moment") from error

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Uploads that have not ended."""
        with mapped(Retryable, f"look into {self._where}"):
            found = self._uploads(ctx.job)
        return [
            Staged(part.epoch.term, upload.name, f"upload {upload.id} in {self._where}", upload.age, part.identity)
            for upload, part in found
        ]

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Abort this life's uploads of older terms; a writer that still has one open loses it."""
        return self._end(ctx.job, lambda part: ctx.owns(part.identity) and part.epoch.term < ctx.term)

    def _end(self, job: str, whose: Callable[[Part], bool]) -> list[str]:
        with mapped(Retryable, f"clean up {self._where}"):
            old = [(upload, part) for upload, part in self._uploads(job) if whose(part)]
            return sorted(upload.name for upload, part in old if self._undo(upload, part))

    def _undo(self, upload: Upload, part: Part) -> bool:
        """Whether there was something to undo. Its trace comes first: who dies behind it has ended nothing yet."""
        first = self._bucket.create(part.hidden(Kind.ABORTED))
        self._traces.note(part, Kind.ABORTED, part.epoch)
        try:
            self._bucket.abort(upload.name, upload.id)
        except FileNotFoundError:  # somebody was faster: who had the right to commit, or to undo
            if first and self._bucket.mark(upload.name) is not None:
                self._bucket.delete(part.hidden(Kind.ABORTED))
            return False
        # A commit that died before it completed has left a trace, which proves nothing any more.
        self._bucket.delete(part.hidden(Kind.COMMITTED))
        return True

    def _uploads(self, job: str) -> list[tuple[Upload, Part]]:
        parsed = [(upload, part_of(upload.name)) for upload in self._bucket.uploads()]
        return [(upload, part) for upload, part in parsed if part is not None and part.job == job]

    # ------------------------------------------------------------ lives of one name

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """By marks, and by uploads that have not ended."""
        with mapped(Retryable, f"look into {self._where}"):
            found = self._bucket.hidden()
        marks: dict[JobIdentity | None, bool]
        marks = {of[1]: of[2] for name in found if (of := names.marked(name)) is not None and of[0] == ctx.job}
        open_: dict[JobIdentity | None, Staged] = {}
        for item in self.staged(ctx):
            open_[item.identity] = max(item, open_.get(item.identity, item), key=lambda each: each.term)
        return [self._life(of, open_.get(of), marks.get(of, False)) for of in dict.fromkeys([*open_, *marks])]

    def _life(self, identity: JobIdentity | None, newest: Staged | None, over: bool) -> Life:
        if newest is not None:
            return Life(identity, self._where, newest.name, newest.term, LifeState.OPEN, newest.age)
        return Life(identity, self._where, "its mark", state=LifeState.OVER if over else LifeState.ENDED)

    def hold(self, ctx: JobContext) -> None:
        """The mark is an object; another one beside it shows that it was taken away."""
        if ctx.identity is None:
            return
        with mapped(Retryable, f"look for the mark of job {ctx.job!r} in {self._where}"):
            if self._bucket.mark(names.over(ctx.job, ctx.identity)) is not None:
                raise Fenced(taken_over(ctx, self._where))
            if self._bucket.mark(names.mark(ctx.job, ctx.identity)) is None:
                self._bucket.create(names.mark(ctx.job, ctx.identity))

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """What it stages after the look is found by nobody, and committed by nobody: it sees that its mark is gone."""
        if identity is not None:
            with mapped(Retryable, f"take the mark of life {identity} in {self._where}"):
                self._bucket.create(names.over(ctx.job, identity))
                self._bucket.delete(names.mark(ctx.job, identity))
        return self._end(ctx.job, lambda part: part.identity == identity)

    def close(self) -> None:
        """Nothing is held open."""

    # ------------------------------------------------------------ looking

    def _look(self, promise: UploadPromise) -> Probe:
        """The upload is looked for first: what a commit ends meanwhile is an object then."""
        where, parts = f"{promise.name} in {self._where}", None
        with suppress(FileNotFoundError):
            parts = self._bucket.sent(promise.name, promise.upload)
        mark = self._bucket.mark(promise.name)
        if mark == promise.mark:
            return Probe(Standing.COMMITTED, f"{where} is there")
        if parts is not None:
            return self._open(promise, parts, mark)
        committed = self._bucket.mark(promise.part.hidden(Kind.COMMITTED)) is not None
        aborted = self._bucket.mark(promise.part.hidden(Kind.ABORTED)) is not None
        if committed and not aborted:
            return Probe(Standing.COMMITTED, f"{where} was there and has been taken")
        if aborted and not committed:
            return Probe(Standing.LOST, f"the upload of {where} was aborted")
        return Probe(Standing.UNKNOWN, self._unknown(promise, where))

    def _open(self, promise: UploadPromise, parts: Sequence[tuple[str, int]], mark: str | None) -> Probe:
        where = f"{promise.name} in {self._where}"
        if mark is not None:
            return Probe(Standing.LOST, f"{where} is there and is not what upload {promise.upload} promised: move it")
        if tuple(tag for tag, _ in parts) != promise.tags or sum(size for _, size in parts) != promise.size:
            return Probe(Standing.LOST, f"upload {promise.upload} of {where} has not the parts that were promised")
        return Probe(Standing.PREPARED, f"upload {promise.upload} of {where} is there")

    def _unknown(self, promise: UploadPromise, where: str) -> str:
        prefix = f"s3://{self._bucket.address.bucket}/{self._bucket.address.prefix}"
        return (
            f"{where} is not there, nor its upload, and traces do not tell why: a lifecycle rule of the bucket may "
            "have removed the upload before it was committed. If readers have got its rows, make the empty object "
            f"{prefix}/{promise.part.hidden(Kind.COMMITTED)}; if nobody has, {prefix}/"
            f"{promise.part.hidden(Kind.ABORTED)}; and remove the other one if it is there"
        )
