"""The committer of uploads: probe, complete, and abort uploads that no manifest names.

A commit creates a marker, then completes the upload under a name that must not exist. An abort creates its own marker,
then aborts. S3 ends an upload once, so the process that receives the response knows the outcome. Without a response,
the status follows from these:

    upload     object            markers            status
    present    absent            any                PREPARED; LOST if its parts are not the prepared ones
    present    of another one    any                LOST: it can never get its name
    any        of this upload    any                COMMITTED
    absent     not of this one   of a commit only   COMMITTED: readers removed or replaced it
    absent     not of this one   of an abort only   LOST
    absent     not of this one   both, or none      UNKNOWN: a rule of the bucket may have removed it

Rule: absence proves nothing by itself, because readers remove objects and buckets remove uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

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
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import PartId, PartState
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.s3.bucket import Bucket, OpenUpload
from kafka_eos.connectors.files.sink.announcements import EpochFileEntry, build_epoch_files
from kafka_eos.connectors.files.sink.commit_markers import CommitMarkers
from kafka_eos.connectors.files.sink.s3_names import UploadCommittable, part_of
from kafka_eos.core.errors import Bug, CommittableLost, Fenced, Retryable
from kafka_eos.core.ids import JobIdentity


class _BucketMarkerStore:
    """Markers as empty objects of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def create(self, name: str) -> bool:
        return self._bucket.create(name)

    def hidden(self, job: str) -> list[tuple[str, PartState, PartId]]:
        parsed = [(name, found) for name in self._bucket.hidden() if (found := PartId.parse(name)) is not None]
        return [(name, kind, part) for name, (kind, part) in parsed if part.job == job]

    def remove(self, name: str) -> None:
        self._bucket.delete(name)


class UploadCommitter(SupportsRegistration, Committer):
    """The committer of one bucket prefix. Its state is in the bucket. Thread-safe."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._where = bucket, bucket.address.text
        self._markers = CommitMarkers(_BucketMarkerStore(bucket))

    def read_owner(self, committable: Committable) -> OutputOwner:
        """Return the owner by the name of the upload. It is below the prefix, see ``UploadCommittable``."""
        return UploadCommittable.read(committable.payload).part.owner

    def probe(self, committable: Committable) -> Probe:
        staged_file = UploadCommittable.read(committable.payload)
        with map_errors(Retryable, f"look for {staged_file.name} in {self._where}"):
            return self._look(staged_file)

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        staged_file = UploadCommittable.read(committable.payload)
        if permit.epoch < staged_file.part.epoch:  # aborted epochs are subsumed by this one
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {staged_file.name}")
        with map_errors(Retryable, f"commit {staged_file.name} in {self._where}"):
            seen = self._look(staged_file)
            match seen.status:
                case CommitStatus.PREPARED:
                    self._complete(staged_file, permit)
                    outcome = CommitOutcome.COMMITTED
                case CommitStatus.COMMITTED:
                    outcome = CommitOutcome.ALREADY
                case CommitStatus.LOST | CommitStatus.UNKNOWN:
                    raise CommittableLost(seen.detail)
            self._markers.forget(staged_file.part, permit.epoch)
            return outcome

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Write the object that lists the epoch's objects, for readers that wait until all sinks have committed the
        epoch."""
        staged_files = [(UploadCommittable.read(each.payload), each.records) for each in committables]
        entries = [EpochFileEntry(of.part, of.name, rows, of.size, {}) for of, rows in staged_files if of.announced]
        for name, content in build_epoch_files(permit.epoch, entries):
            with map_errors(Retryable, f"write {name} in {self._where}"):
                self._bucket.put(name, content)

    def _complete(self, staged_file: UploadCommittable, permit: CommitPermit) -> None:
        first = self._markers.make(staged_file.part, permit.epoch)
        try:
            self._bucket.complete(staged_file.name, staged_file.upload, staged_file.tags)
        except FileExistsError as error:
            raise Retryable(f"{staged_file.name} appeared while it was being committed") from error
        except FileNotFoundError as error:
            if first and self._bucket.read_upload_tag(staged_file.name) != staged_file.upload_tag:
                # This process created the marker, so it proves nothing: a newer term may have aborted the upload.
                if self._bucket.read_upload_tag(staged_file.part.build_hidden_name(PartState.ABORTED)) is not None:
                    self._bucket.delete(staged_file.part.build_hidden_name(PartState.COMMITTED))
                raise CommittableLost(
                    f"{staged_file.name} was committed or aborted by another process at this moment"
                ) from error
            raise Retryable(f"{staged_file.name} was committed by another process at this moment") from error

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        """List the open uploads."""
        with map_errors(Retryable, f"look into {self._where}"):
            found = self._uploads(ctx.job)
        return [
            StagedOutput(
                part.epoch.term, upload.name, f"upload {upload.id} in {self._where}", upload.age, part.identity
            )
            for upload, part in found
        ]

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        """Abort this incarnation's uploads of older terms; a writer that still has one open loses it."""
        return self._end(ctx.job, lambda part: ctx.owns(part.identity) and part.epoch.term < ctx.term)

    def _end(self, job: str, whose: Callable[[PartId], bool]) -> list[str]:
        with map_errors(Retryable, f"clean up {self._where}"):
            old = [(upload, part) for upload, part in self._uploads(job) if whose(part)]
            return sorted(upload.name for upload, part in old if self._undo(upload, part))

    def _undo(self, upload: OpenUpload, part: PartId) -> bool:
        """Abort an upload; return whether it was open. The marker comes first: a crash after it has ended
        nothing yet."""
        first = self._bucket.create(part.build_hidden_name(PartState.ABORTED))
        self._markers.note(part, PartState.ABORTED, part.epoch)
        try:
            self._bucket.abort(upload.name, upload.id)
        except FileNotFoundError:  # another process was faster, with a commit or an abort
            if first and self._bucket.read_upload_tag(upload.name) is not None:
                self._bucket.delete(part.build_hidden_name(PartState.ABORTED))
            return False
        # A commit that crashed before completing has left a marker, which is no longer valid.
        self._bucket.delete(part.build_hidden_name(PartState.COMMITTED))
        return True

    def _uploads(self, job: str) -> list[tuple[OpenUpload, PartId]]:
        parsed = [(upload, part_of(upload.name)) for upload in self._bucket.uploads()]
        return [(upload, part) for upload, part in parsed if part is not None and part.job == job]

    # ------------------------------------------------------------ incarnations

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """List incarnations by registrations and open uploads."""
        with map_errors(Retryable, f"look into {self._where}"):
            found = self._bucket.hidden()
        registered: dict[JobIdentity | None, bool]
        registered = {
            of[1]: of[2] for of in map(names.parse_registration, found) if of is not None and of[0] == ctx.job
        }
        open_: dict[JobIdentity | None, StagedOutput] = {}
        for item in self.list_staged(ctx):
            open_[item.identity] = max(item, open_.get(item.identity, item), key=lambda each: each.term)
        return [self._sign(of, open_.get(of), registered.get(of, False)) for of in dict.fromkeys([*open_, *registered])]

    def _sign(self, identity: JobIdentity | None, newest: StagedOutput | None, over: bool) -> IncarnationSign:
        if newest is not None:
            return IncarnationSign(identity, self._where, newest.name, newest.term, IncarnationState.OPEN, newest.age)
        return IncarnationSign(
            identity, self._where, "its registration", state=IncarnationState.OVER if over else IncarnationState.ENDED
        )

    def register(self, ctx: JobContext) -> None:
        """Register the incarnation with an object; another object next to it shows that the incarnation was retired."""
        if ctx.identity is None:
            return
        with map_errors(Retryable, f"look up the registration of job {ctx.job!r} in {self._where}"):
            if self._bucket.read_upload_tag(names.retirement_name(ctx.job, ctx.identity)) is not None:
                raise Fenced(taken_over(ctx, self._where))
            if self._bucket.read_upload_tag(names.registration_name(ctx.job, ctx.identity)) is None:
                self._bucket.create(names.registration_name(ctx.job, ctx.identity))

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """End an incarnation. Files that it stages later are never committed: it finds that its registration
        is gone."""
        if identity is not None:
            with map_errors(Retryable, f"remove the registration of incarnation {identity} in {self._where}"):
                self._bucket.create(names.retirement_name(ctx.job, identity))
                self._bucket.delete(names.registration_name(ctx.job, identity))
        return self._end(ctx.job, lambda part: part.identity == identity)

    # ------------------------------------------------------------ probing

    def _look(self, staged_file: UploadCommittable) -> Probe:
        """Probe a committable. The upload is checked first, because a concurrent commit turns it into an object."""
        where, parts = f"{staged_file.name} in {self._where}", None
        with suppress(FileNotFoundError):
            parts = self._bucket.list_parts(staged_file.name, staged_file.upload)
        upload_tag = self._bucket.read_upload_tag(staged_file.name)
        if upload_tag == staged_file.upload_tag:
            return Probe(CommitStatus.COMMITTED, f"{where} exists")
        if parts is not None:
            return self._open(staged_file, parts, upload_tag)
        committed = self._bucket.read_upload_tag(staged_file.part.build_hidden_name(PartState.COMMITTED)) is not None
        aborted = self._bucket.read_upload_tag(staged_file.part.build_hidden_name(PartState.ABORTED)) is not None
        if committed and not aborted:
            return Probe(CommitStatus.COMMITTED, f"{where} was committed and then moved away by a reader")
        if aborted and not committed:
            return Probe(CommitStatus.LOST, f"the upload of {where} was aborted")
        return Probe(CommitStatus.UNKNOWN, self._unknown(staged_file, where))

    def _open(self, staged_file: UploadCommittable, parts: Sequence[tuple[str, int]], upload_tag: str | None) -> Probe:
        where = f"{staged_file.name} in {self._where}"
        if upload_tag is not None:
            return Probe(
                CommitStatus.LOST, f"{where} exists, but is not the object of upload {staged_file.upload}: move it away"
            )
        if tuple(tag for tag, _ in parts) != staged_file.tags or sum(size for _, size in parts) != staged_file.size:
            return Probe(CommitStatus.LOST, f"upload {staged_file.upload} of {where} lacks parts that were prepared")
        return Probe(CommitStatus.PREPARED, f"upload {staged_file.upload} of {where} exists")

    def _unknown(self, staged_file: UploadCommittable, where: str) -> str:
        prefix = f"s3://{self._bucket.address.bucket}/{self._bucket.address.prefix}"
        return (
            f"neither {where} nor its upload exists, and no marker shows why: a lifecycle rule of "
            "the bucket may have removed the upload before it was committed. If readers have "
            "received its rows, create the empty object "
            f"{prefix}/{staged_file.part.build_hidden_name(PartState.COMMITTED)}; otherwise create "
            f"{prefix}/{staged_file.part.build_hidden_name(PartState.ABORTED)}; and delete the other "
            "one if it exists"
        )
