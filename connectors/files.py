"""FileSink: JSON lines in a directory, each epoch's rows visible exactly once.

    .open.<job>.<term>.<epoch>.<subtask>.<operator>       being written
    .staged.<job>.<term>.<epoch>.<subtask>.<operator>     prepared: complete, on disk, still hidden
    part-<epoch>-<subtask>-<job>.<operator>.jsonl         committed; readers take ``part-*.jsonl``

Names join tokens with dots, which no token contains, so a name never reads two ways. A final name has no term:
an epoch's number is used once in the life of a job, so an old term that commits too can only find the file there.
Rule: a final file appears by hard link and is never overwritten; every step that others rely on is fsynced,
the directory's entry included.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from kafka_eos import failpoints, provenance
from kafka_eos.connectors.rejecting import BadRows, RejectRow, encoded, policy
from kafka_eos.errors import (
    Bug,
    CommittableLost,
    ConfigError,
    CorruptCheckpoint,
    Fenced,
    KafkaEosError,
    RestartFromCheckpoint,
    Retryable,
)
from kafka_eos.ids import Epoch, EpochId, Term, token
from kafka_eos.interfaces import (
    Codec,
    CommitPermit,
    Committable,
    Guarantee,
    JobContext,
    Json,
    Outcome,
    PreCommit,
    Probe,
    Staged,
    Standing,
    TaskContext,
)
from kafka_eos.records import Batch, Headers
from kafka_eos.schemas import codec_for

_HIDDEN = re.compile(r"\.(open|staged)\.([^.]+)\.(\d+)\.(\d+)\.(\d+)\.([^.]+)", re.ASCII)
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
        """Try what commits need: create, sync, link, remove. Raises ConfigError if one of them fails."""
        name = f".check.{token(ctx.job, 'job name')}.{ctx.term}.{os.getpid()}"
        trial, linked = self.directory / name, self.directory / f"{name}.linked"
        try:
            _create_directory(self.directory)
            trial.touch(exist_ok=False)
            try:
                os.link(trial, linked)
                linked.unlink()
                _sync_directory(self.directory)
            finally:
                trial.unlink()
        except OSError as error:
            raise ConfigError(
                f"FileSink cannot commit in {self.directory}: {error}. The directory must be writable, "
                "and its filesystem must support hard links."
            ) from error
        kind = _filesystem(self.directory)
        if kind.split(".")[0] not in _NETWORK:
            return ()
        return (f"{self.directory} is on {kind}: exactly-once then depends on its server keeping what fsync promised.",)

    def writer(self, ctx: TaskContext) -> FileWriter:
        with _as(RestartFromCheckpoint, f"create {self.directory}"):
            _create_directory(self.directory)
        return FileWriter(self, self._codec.encode, ctx)

    def committer(self, ctx: JobContext) -> FileCommitter:
        return FileCommitter(self.directory)

    def audit_files(self, ctx: JobContext, operator: str) -> tuple[str, str]:
        """For the audit: the directory, and what the names of this sink's files match (group 1: the subtask)."""
        return str(self.directory), rf"part-\d+-(\d+)-{re.escape(ctx.job)}\.{re.escape(operator)}\.jsonl"

    @property
    def audit_marked(self) -> bool:
        """For the audit: do lines say where they come from?"""
        return self.envelope

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers]]]:
        """For the audit: the rows that the writer writes; key, value and headers of each, the value alone is set."""
        kept, lines = encoded(partial(_lines, self._codec.encode, operator), batch, operator, reject)
        return kept, [(None, line, ()) for line in lines]


# ---------------------------------------------------------------- names


@dataclass(frozen=True, slots=True)
class _Part:
    """One writer's output of one epoch; the only place that forms and reads names."""

    job: str
    epoch: EpochId
    subtask: int
    operator: str

    @property
    def open(self) -> str:
        return f".open.{self.job}.{self.epoch.term}.{self.epoch.epoch}.{self.subtask}.{self.operator}"

    @property
    def staged(self) -> str:
        return f".staged.{self.job}.{self.epoch.term}.{self.epoch.epoch}.{self.subtask}.{self.operator}"

    @property
    def final(self) -> str:
        return f"part-{self.epoch.epoch.n:012d}-{self.subtask:04d}-{self.job}.{self.operator}.jsonl"

    @staticmethod
    def hidden(name: str) -> _Part | None:
        """The part that a hidden file belongs to; None if the name is none of ours."""
        match = _HIDDEN.fullmatch(name)
        if match is None:
            return None
        _, job, term, number, subtask, operator = match.groups()
        return _Part(job, EpochId(Epoch(int(number)), Term(int(term))), int(subtask), operator)


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a committable's payload says. Reading it proves that both names stay inside the directory."""

    part: _Part
    size: int
    sha256: str

    def payload(self) -> dict[str, Json]:
        return {"staged": self.part.staged, "final": self.part.final, "size": self.size, "sha256": self.sha256}

    @staticmethod
    def read(payload: Mapping[str, Json]) -> _Promise:
        part = _Part.hidden(str(payload.get("staged")))
        size, sha256 = payload.get("size"), payload.get("sha256")
        if part is None or not isinstance(size, int) or not isinstance(sha256, str):
            raise CorruptCheckpoint(f"not a committable of a FileSink: {dict(payload)!r}")
        promise = _Promise(part, size, sha256)
        if promise.payload() != dict(payload):
            raise CorruptCheckpoint(f"not a committable of a FileSink: {dict(payload)!r}")
        return promise


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
        self._part = partial(_Part, token(ctx.job.job, "job name"), subtask=ctx.owner, operator=ctx.operator)
        self._epoch, self._reject = ctx.first_epoch, policy(ctx)
        self._segment: _Segment | None = None

    def write(self, batch: Batch[Any]) -> None:
        kept, data = encoded(self._data, batch, self._operator, self._reject)
        if not kept.values:
            return
        with _as(RestartFromCheckpoint, f"stage rows in {self._directory}"):
            if self._segment is None:
                self._segment = _Segment(self._directory / self._part(EpochId(self._epoch, self._term)).open)
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

    def _prepare(self, segment: _Segment, part: _Part) -> Sequence[Committable]:
        with _as(RestartFromCheckpoint, f"prepare {part.staged}"):
            failpoints.hit("sink.flush.before")
            segment.finish()
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            try:
                os.rename(segment.path, self._directory / part.staged)
            except FileNotFoundError as error:
                raise Fenced(f"{segment.path} is gone: a newer term of job {part.job!r} removed it") from error
            _sync_directory(self._directory)
            failpoints.hit("sink.prepare.after")
        promise = _Promise(part, segment.size, segment.digest.hexdigest())
        return (Committable(self._scope, promise.payload(), segment.records),)

    def _data(self, batch: Batch[Any]) -> bytes:
        """One line a value. Raises BadRows for all values that cannot be a line."""
        lines = _lines(self._encode, self._operator, batch)
        if self._envelope:
            texts = provenance.column(batch, self._term, self._epoch)
            lines = [b'{"provenance":"%b","value":%b}' % (t.encode(), v) for t, v in zip(texts, lines, strict=True)]
        lines.append(b"")
        return b"\n".join(lines)


def _lines(encode: Callable[[Any], bytes], operator: str, batch: Batch[Any]) -> list[bytes]:
    """The encoded values. Raises BadRows for all of them that cannot be a line."""
    try:
        lines = list(map(encode, batch.values))
    except Exception as error:  # whatever a codec raises belongs to its value
        raise BadRows(_bad(encode, operator, batch)) from error
    if any(b"\n" in line for line in lines):
        raise BadRows(_bad(encode, operator, batch))
    return lines


def _bad(encode: Callable[[Any], bytes], operator: str, batch: Batch[Any]) -> dict[int, Exception]:
    """Why, for each value that cannot be a line."""
    errors: dict[int, Exception] = {}
    for index, value in enumerate(batch.values):
        try:
            if b"\n" in encode(value):
                errors[index] = ValueError("its encoding contains a newline")
        except Exception as error:  # noqa: BLE001 - whatever a codec raises belongs to its value
            errors[index] = error
    if not errors:
        raise Bug(f"{operator}: a batch was refused, but each of its values can be a line")
    return errors


# ---------------------------------------------------------------- committer


class FileCommitter:
    """Links staged files to their final names; all that it knows is in the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def probe(self, committable: Committable) -> Probe:
        with _as(Retryable, f"look into {self._directory}"):
            return self._look(_Promise.read(committable.payload))

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        promise = _Promise.read(committable.payload)
        if permit.epoch < promise.part.epoch:  # an older one was given up; its output is part of this epoch
            raise Bug(f"a permit for epoch {permit.epoch} cannot commit {promise.part.staged}")
        with _as(Retryable, f"commit {promise.part.final}"):
            seen = self._look(promise)
            match seen.standing:
                case Standing.LOST:
                    raise CommittableLost(seen.detail)
                case Standing.PREPARED:
                    self._link(promise)
                    outcome = Outcome.COMMITTED
                case Standing.COMMITTED:
                    outcome = Outcome.ALREADY
            # Also when it was there: the process that linked it may have died before it could sync.
            _sync_directory(self._directory)
            (self._directory / promise.part.staged).unlink(missing_ok=True)
            return outcome

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """Open and prepared files; one that is linked to its final name already is committed."""
        with _as(Retryable, f"look into {self._directory}"):
            found = [(name, part, os.lstat(self._directory / name)) for name, part in self._hidden(ctx.job).items()]
        now = time.time()
        return [
            Staged(part.epoch.term, name, f"{each.st_size} bytes in {self._directory}", max(0.0, now - each.st_mtime))
            for name, part, each in found
            if each.st_nlink == 1
        ]

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Remove this job's open and staged files of older terms; a writer that still has one open loses it."""
        with _as(Retryable, f"clean up {self._directory}"):
            removed = [name for name, part in self._hidden(ctx.job).items() if part.epoch.term < ctx.term]
            for name in removed:
                (self._directory / name).unlink(missing_ok=True)
            if removed:
                _sync_directory(self._directory)
            return removed

    def close(self) -> None:
        """Nothing is held open."""

    def _hidden(self, job: str) -> dict[str, _Part]:
        """This job's open and staged files, by name."""
        names = sorted(os.listdir(self._directory)) if self._directory.exists() else []
        parts = {name: part for name in names if (part := _Part.hidden(name)) is not None}
        return {name: part for name, part in parts.items() if part.job == job}

    def _look(self, promise: _Promise) -> Probe:
        """The staged name first: whoever commits at this moment makes the final name before dropping the other."""
        final, staged = self._directory / promise.part.final, self._directory / promise.part.staged
        found = _size(staged)
        if (there := _size(final)) is not None:
            if there == promise.size and _sha256(final) == promise.sha256:
                return Probe(Standing.COMMITTED, f"{final} is there")
            return Probe(
                Standing.LOST,
                f"{final} exists and is not what {staged.name} promised: most likely the directory holds parts of an "
                f"earlier life of job {promise.part.job!r}; move them away or use another directory",
            )
        if found is None:
            return Probe(Standing.LOST, f"neither {staged} nor {final.name} is there")
        if found != promise.size:
            return Probe(Standing.LOST, f"{staged} has {found} bytes, not {promise.size}")
        return Probe(Standing.PREPARED, f"{staged} is there")

    def _link(self, promise: _Promise) -> None:
        staged, final = self._directory / promise.part.staged, self._directory / promise.part.final
        try:
            os.link(staged, final, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError) as error:
            # Another process commits the same at this moment; the next look decides.
            raise Retryable(f"{final} changed while it was being committed") from error


# ---------------------------------------------------------------- disk


@contextmanager
def _as(kind: type[KafkaEosError], what: str) -> Iterator[None]:
    """The one place that maps the operating system's errors to what the caller must do."""
    try:
        yield
    except OSError as error:
        raise kind(f"could not {what}: {error}") from error


def _create_directory(directory: Path) -> None:
    """Create with its parents, each entry durable: a committed file must not vanish with its directory."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        _create_directory(directory.parent)
    directory.mkdir(mode=0o755, exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None if there is none. Links are not followed."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _filesystem(path: Path) -> str:
    """Type of the filesystem that holds ``path``; empty where the system does not tell."""
    table = Path("/proc/self/mountinfo")
    if not table.exists():
        return ""
    best, kind = "", ""
    for line in table.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        mount = fields[4]
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, fields[fields.index("-") + 1]
    return kind
