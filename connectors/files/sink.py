"""FileSink: JSON lines in a directory, each epoch's rows visible exactly once. The sink and its writer.

Rule: every step that others rely on is fsynced, the directory's entry included. What a name means is in ``names``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from kafka_eos import failpoints, provenance
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.committer import FileCommitter, mapped
from kafka_eos.connectors.files.names import Kind, Part, Promise, files_of
from kafka_eos.connectors.rejecting import BadRows, encoded, tried
from kafka_eos.errors import ConfigError, Fenced, RestartFromCheckpoint
from kafka_eos.ids import EpochId, token
from kafka_eos.interfaces import Codec, Committable, Guarantee, JobContext, Json, PreCommit, RejectRow, TaskContext
from kafka_eos.records import Batch, Headers, RawRecord
from kafka_eos.schemas import codec_for

_TORN: Final = "its encoding contains a newline"
_BINARY: Final = ("avro", "msgpack")
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "fuse")


class FileSink:
    """Write values as JSON lines into ``directory``, one file an epoch, subtask and operator.

    ``value`` is the values' type, or a codec whose encoding holds no newline; default any value that JSON can
    hold, dead letters included. With ``envelope`` each line is ``{"provenance": "<term>.<epoch>/…", "value": …}``,
    so that the audit can prove the files too. Raises ConfigError if the codec's format does not fit into lines.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, value: type[Any] | Codec[Any] | None = None, envelope: bool = False
    ) -> None:
        self.directory = Path(os.path.abspath(os.path.expanduser(directory)))
        self.envelope = envelope
        self._codec: Codec[Any] = codec_for(Any if value is None else value)
        if self._codec.name in _BINARY or (envelope and self._codec.name != "json"):
            what = "its envelope holds JSON" if envelope else "it writes lines of text"
            raise ConfigError(f"FileSink cannot hold values in the format {self._codec.name!r}: {what}.")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def describe(self) -> Mapping[str, Json]:
        return {"directory": str(self.directory), "format": self._codec.name, "envelope": self.envelope}

    def scope(self, ctx: JobContext) -> str:
        return f"file:{self.directory}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Try what commits need: create, rename, sync, remove. Raises ConfigError if one of them fails."""
        name = f".check.{token(ctx.job, 'job name')}.{ctx.term}.{os.getpid()}"
        trial, renamed = self.directory / name, self.directory / f"{name}.renamed"
        try:
            disk.create_directory(self.directory)
            disk.create_empty(trial)
            try:
                refuses = disk.rename_new(trial, renamed)
                disk.sync_directory(self.directory)
            finally:
                trial.unlink(missing_ok=True)
                renamed.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"FileSink cannot commit in {self.directory}: {error}. The directory must be writable."
            ) from error
        kind, notices = disk.filesystem(self.directory), []
        if kind.split(".")[0] in _NETWORK:
            notices.append(
                f"{self.directory} is on {kind}: exactly-once depends on its server keeping what fsync promised."
            )
        if not refuses:
            notices.append(
                f"{self.directory} is on {kind}, which cannot rename without replacing: let no other program write "
                "files named part-* there."
            )
        return notices

    def writer(self, ctx: TaskContext) -> FileWriter:
        with mapped(RestartFromCheckpoint, f"create {self.directory}"):
            disk.create_directory(self.directory)
        return FileWriter(self, self._codec.encode, ctx)

    def committer(self, ctx: JobContext) -> FileCommitter:
        return FileCommitter(self.directory)

    def audit_files(self, ctx: JobContext, operator: str) -> tuple[str, str]:
        """For the audit: the directory, and what the names of this sink's files match (groups: epoch and subtask)."""
        return str(self.directory), files_of(ctx.job, operator)

    @property
    def audit_marked(self) -> bool:
        """For the audit: do lines say where they come from?"""
        return self.envelope

    @property
    def audit_codec(self) -> Codec[Any]:
        """For the audit: what encodes the values."""
        return self._codec

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """For the audit: the rows that the writer writes, as a Kafka sink tells them; the value alone is set."""
        kept, written = self.written(batch, operator, reject)
        return kept, [(None, line.value, (), -1) for line in written]

    def written(self, batch: Batch[Any], operator: str, reject: RejectRow) -> tuple[Batch[Any], list[RawRecord]]:
        """For tests: the rows that the writer writes, and their lines as the values of records."""
        kept, lines = encoded(lambda rows: _lines(self._codec.encode, rows.values), batch, operator, reject)
        return kept, [RawRecord(str(self.directory), -1, -1, -1, None, line, ()) for line in lines]


# ---------------------------------------------------------------- writer


class _Segment:
    """The open file of one epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO = open(path, "xb")  # noqa: SIM115 - lives until the epoch is prepared
        self.digest = hashlib.sha256()
        self.size = self.records = 0

    def append(self, data: bytes, records: int) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.size += len(data)
        self.records += records

    def finish(self) -> None:
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
            if os.fstat(self.file.fileno()).st_size != self.size:
                raise RestartFromCheckpoint(f"{self.path} is not as long as what was written to it")


class FileWriter:
    """Writes one hidden file an epoch; ``seal``'s part syncs it and gives it its staged name."""

    def __init__(self, sink: FileSink, encode: Callable[[Any], bytes], ctx: TaskContext) -> None:
        self._directory, self._envelope, self._scope = sink.directory, sink.envelope, sink.scope(ctx.job)
        self._encode, self._operator, self._term = encode, token(ctx.operator, "operator name"), ctx.job.term
        job = token(ctx.job.job, "job name")
        self._part = partial(Part, job, ctx.job.identity, subtask=ctx.owner, operator=ctx.operator)
        self._epoch, self._reject = ctx.first_epoch, ctx.services.reject_row
        self._segment: _Segment | None = None

    def write(self, batch: Batch[Any]) -> None:
        kept, data = encoded(self._data, batch, self._operator, self._reject)
        if not kept.values:
            return
        with mapped(RestartFromCheckpoint, f"stage rows in {self._directory}"):
            if self._segment is None:
                self._segment = _Segment(
                    self._directory / self._part(EpochId(self._epoch, self._term)).hidden(Kind.OPEN)
                )
            self._segment.append(data, len(kept.values))

    def seal(self, epoch: EpochId) -> PreCommit:
        segment, self._segment = self._segment, None
        self._epoch = epoch.epoch.next()
        if segment is None:
            return lambda: ()
        return partial(self._prepare, segment, self._part(epoch))

    def committed(self, epoch: EpochId) -> None:
        """Nothing is kept for an epoch once it is prepared."""

    def discard(self) -> None:
        if self._segment is not None:
            self._segment.file.close()
            self._segment = None

    def _prepare(self, segment: _Segment, part: Part) -> Sequence[Committable]:
        with mapped(RestartFromCheckpoint, f"prepare {part.staged}"):
            failpoints.hit("sink.flush.before")
            segment.finish()
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            try:
                os.rename(segment.path, self._directory / part.staged)
            except FileNotFoundError as error:
                raise Fenced(f"{segment.path} is gone: a newer term of job {part.job!r} removed it") from error
            disk.sync_directory(self._directory)
            failpoints.hit("sink.prepare.after")
        promise = Promise(part, segment.size, segment.digest.hexdigest())
        return (Committable(self._scope, promise.payload(), segment.records, {self._operator: segment.records}),)

    def _data(self, batch: Batch[Any]) -> bytes:
        """One line a value. Raises BadRows for all values that cannot be a line."""
        lines = _lines(self._encode, batch.values)
        if self._envelope:
            texts = provenance.column(batch, self._term, self._epoch)
            lines = [b'{"provenance":"%b","value":%b}' % (t.encode(), v) for t, v in zip(texts, lines, strict=True)]
        lines.append(b"")
        return b"\n".join(lines)


def _lines(encode: Callable[[Any], bytes], values: Sequence[Any]) -> list[bytes]:
    """The encoded values. Raises BadRows for all that cannot be a line, up to one that may be the environment's fault.

    One pass: what failed in passing might work in a second one, and nothing would say why the batch was refused.
    """
    lines, errors = tried(encode, values)
    if errors or any(b"\n" in line for line in lines):
        those = (index for index in range(len(values)) if index not in errors)
        torn = {index: ValueError(_TORN) for index, line in zip(those, lines, strict=False) if b"\n" in line}
        raise BadRows(dict(sorted({**errors, **torn}.items())))
    return lines
