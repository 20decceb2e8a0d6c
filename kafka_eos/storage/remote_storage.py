"""The durable objects of one job in a remote store: an object store, or a file system that pyarrow reaches.

The differences between stores are in ``BlobStore``, which holds named bytes; this module builds a checkpoint storage on
it. Rule: a name appears once and complete. An object that a reader may have opened is never written again.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kafka_eos._util import failpoints
from kafka_eos.abc.storage import FileRef, ignore_progress
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Retryable
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import damaged_file_error, ensure_matches, ensure_size
from kafka_eos.storage.object_names import LogSegment, complete_lines

_ACTIVE_SEGMENTS = 2
"""The newest segments of a log: one is being written, and a reader may have listed the other while it was."""

_FIRST_TIME = 10**12
"""Segments written here are numbered by their start in milliseconds; segments of a local directory from 1."""


class BlobStore(Protocol):
    """A store of named blobs: create-exclusive, read, list, delete.

    Listings are complete; a call sees the effects of every call that ended before it began.
    A visible object is durable, whichever process wrote it, and so is a confirmed deletion.
    Errors of the network and of the store are OSError, of permissions PermissionError, of the address ConfigError.
    """

    def create(self, name: str, data: bytes) -> None:
        """Create an object, all or nothing. Raise FileExistsError if the name exists.

        After an OSError it is unknown whether the object exists.
        """

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        """Create an object whose name is derived from its content, so it may exist. Errors of ``chunks`` propagate."""

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content in pieces. Raise FileNotFoundError, at once or at the first piece, if absent."""

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start``, or fewer if the object ends before. Raise FileNotFoundError if absent.

        It may raise OSError if the object ends before ``start``.
        """

    def size(self, name: str) -> int | None:
        """Return the size in bytes; None if absent, or possibly if the store does not respond."""

    def list(self, directory: str) -> Sequence[str]:
        """Return the plain names in a directory, in any order; none if the directory does not exist.

        The listing need not be a snapshot: names that are created or deleted meanwhile may be in it or not.
        """

    def directories(self) -> Sequence[str]:
        """Return the plain names of the top-level directories, in any order."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, each atomically, in any order, in as few requests as possible. Absent ones are ignored."""

    def remove_debris(self) -> None:
        """Remove temporary objects of killed writers."""


class RemoteStorage:
    """A checkpoint storage built on a ``BlobStore``. Opening one makes no request. Thread-safe."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._logs = {name: _RemoteLog(store, directory) for name, directory in paths.LOGS.items()}

    def prepare_run(self) -> None:
        """Prepare as ``JobStorage`` does. Also prove that this store never replaces a name.

        Some stores accept a conditional put and ignore the condition.
        """
        try:
            self._store.remove_debris()
            if not (self._refuses_probe() or self._refuses_probe()):
                raise ConfigError(
                    f"the checkpoint store replaces {paths.PROBE!r} although it was requested not to, so "
                    "it cannot decide which of two supervisors continues: keep checkpoints in another "
                    "store; see docs/storage.md"
                )
        except PermissionError as error:
            raise ConfigError(f"no right to write checkpoints: {error}") from error
        except OSError as error:
            raise Retryable(
                f"the checkpoint store gives no usable response: {error.strerror or error}. Check "
                "checkpoint_dir, and that the store runs and accepts this job's credentials, then "
                "restart"
            ) from error

    def _refuses_probe(self) -> bool:
        try:
            self._store.create(paths.PROBE, b"")
        except FileExistsError:
            return True
        return False

    def publish(self, name: str, data: bytes) -> None:
        observed = paths.is_manifest(paths.ensure_inside(name))
        if observed:
            failpoints.hit("manifest.staged")
        self._store.create(name, data)
        if observed:
            failpoints.hit("manifest.published")

    def read(self, name: str) -> bytes:
        return b"".join(self._store.read(paths.ensure_inside(name)))

    def list(self, prefix: str) -> Sequence[str]:
        return sorted(f"{prefix}/{name}" for name in self._store.list(prefix))

    def delete(self, name: str) -> None:
        self.delete_all([name])

    def delete_all(self, names: Sequence[str]) -> None:
        self._store.delete([paths.ensure_inside(name) for name in names])

    def upload(self, path: Path, name: str) -> FileRef:
        with files.open_file(path) as fd:
            sha256, size = files.digest(fd)
        ref = FileRef(paths.ensure_plain_name(name), sha256, size)
        target = paths.shared_name(sha256)
        stored = self._store.size(target)
        if stored is None:
            self._store.put(target, _unchanged(path, ref), size)
        elif stored != size:
            raise damaged_file_error(ref, f"{stored} bytes, not {size}")
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        with files.create_file(target) as out:
            ensure_matches(ref, files.write_chunks(out, files.with_progress(self._stored(ref), passed)))

    def check_content(self, ref: FileRef) -> None:
        ensure_matches(ref, files.digest_of(self._stored(ref)))

    def check_size(self, ref: FileRef) -> None:
        name = paths.shared_name(ref.sha256)
        size = self._store.size(name)
        if size is None and name in self.list(paths.SHARED):
            raise OSError(errno.EIO, "the store lists the object without its size", name)
        if size is None:
            raise damaged_file_error(ref, "the file is missing")
        ensure_size(ref, size)

    def append(self, name: str, line: str) -> None:
        self._log(name).append(line)

    def sync_log(self, name: str) -> None:
        """Sync as ``JobStorage`` does: each line was durable once appended."""
        self._log(name)

    def lines(self, name: str) -> Sequence[str]:
        """Return the lines of a log copied from a local directory, then those written here, by start of writer."""
        try:
            copied = complete_lines(self.read(name))
        except FileNotFoundError:
            copied = []
        before, written = self._log(name).lines()
        return [*before, *copied, *written]

    def compress_logs(self) -> None:
        for log in self._logs.values():
            log.compress()

    def _log(self, name: str) -> _RemoteLog:
        try:
            return self._logs[name]
        except KeyError:
            raise CorruptCheckpoint(f"{name!r} is not a log") from None

    def _stored(self, ref: FileRef) -> Iterator[bytes]:
        """Yield the pieces of a stored file; stop after the first piece beyond its expected length."""
        name, left = paths.shared_name(ref.object.sha256), ref.size
        try:
            if ref.pack is not None:
                yield self._store.read_part(name, ref.start, ref.size)
                return
            for piece in self._store.read(name):
                yield piece
                left -= len(piece)
                if left < 0:
                    return
        except FileNotFoundError as error:
            raise damaged_file_error(ref, "the file is missing") from error


class _RemoteLog:
    """A log in a store without append: each line becomes an object, and so do the lines of several such objects.

    The name of an object says how many lines its segment has at the object's end, and its content how many of them are
    in it. So readers begin with the last object of a segment, and go back. Objects that nobody needs any more are
    deleted only when two newer segments exist: a listing need not be a snapshot, so an object must not be deleted soon
    after its successor was created. A new segment sorts after all segments that existed when it began, whatever the
    clock shows.
    """

    def __init__(self, store: BlobStore, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._lock = threading.Lock()
        self._number = 0
        """The number of the segment that is being written; 0 before the first line."""
        self._segment = ""
        self._lines: list[str] = []
        self._stored: set[int] = set()
        """How many lines the segment had at the end of each object that was written."""

    def _begin(self) -> None:
        newest = self._number or max((version.number for version in self._versions()), default=0)
        self._number = max(time.time_ns() // 1_000_000, newest + 1)
        self._segment, self._lines = f"{self._number:013d}-{secrets.token_hex(8)}", []
        self._stored.clear()

    def append(self, line: str) -> None:
        """Append a line. If that fails, the line may be stored anyway, or be stored with the next one."""
        with self._lock:
            is_full = len(self._lines) >= LIMITS.log_lines_per_segment and len(self._lines) in self._stored
            if not self._number or is_full:
                self._begin()
            self._lines.append(line)
            count = len(self._lines)
            before = next((end for end in _find_ends(count) if end in self._stored), 0)
            name = paths.segment_name(self._directory, self._segment, count)
            self._store.create(name, "".join(f"{each}\n" for each in self._lines[before:]).encode())
            self._stored.add(count)

    def compress(self) -> None:
        """Delete objects whose lines are in later ones, except of the newest two segments, which may be in use."""
        versions = [version for version in self._versions() if version.number >= _FIRST_TIME]
        full = paths.longest(versions)[:-_ACTIVE_SEGMENTS]
        needed = {version.name: {*_find_ends(version.lines)} for version in full}
        gone = [each.file for each in versions if each.name in needed and each.lines not in needed[each.name]]
        if gone:
            self._store.delete([f"{self._directory}/{file}" for file in gone])

    def lines(self) -> tuple[list[str], list[str]]:
        """Return the lines of files copied from a local directory, and the lines written here."""
        found = paths.longest(self._versions())
        copied = sum(segment.number < _FIRST_TIME for segment in found)
        return self._read_all(found[:copied]), self._read_all(found[copied:])

    def _read_all(self, segments: Iterable[LogSegment]) -> list[str]:
        return [line for segment in segments for line in self._read(segment)]

    def _versions(self) -> list[LogSegment]:
        names = (f"{self._directory}/{name}" for name in self._store.list(self._directory))
        return [paths.parse_segment_name(name) for name in names if paths.is_segment(name)]

    def _read(self, segment: LogSegment) -> list[str]:
        while True:
            try:
                return self._read_parts(segment)
            except FileNotFoundError:
                found = (each for each in self._versions() if each.name == segment.name)
                longest = max(found, key=lambda each: each.lines, default=segment)
                if longest.lines <= segment.lines:
                    raise  # another program removed it
                segment = longest

    def _read_parts(self, segment: LogSegment) -> list[str]:
        lines = part = self._read_object(segment)
        while segment.number >= _FIRST_TIME and part and len(lines) < segment.lines:
            name = paths.segment_name(self._directory, segment.name, segment.lines - len(lines))
            part = self._read_object(paths.parse_segment_name(name))
            lines = [*part, *lines]
        return lines

    def _read_object(self, version: LogSegment) -> list[str]:
        data = b"".join(self._store.read(f"{self._directory}/{version.file}"))
        return complete_lines(paths.inflate_segment(version.file, data) if version.compressed else data)


def _find_ends(lines: int) -> Iterator[int]:
    """Yield the ends of the objects that a segment of so many lines may consist of, from the last one.

    An end is a number of lines. Most objects have one line, every 16th those of the 16 before it, and so on.
    """
    while lines:
        yield lines
        size = 1
        while lines % (size * LIMITS.log_lines_per_object) == 0:
            size *= LIMITS.log_lines_per_object
        lines -= size


def _unchanged(path: Path, ref: FileRef) -> Iterator[bytes]:
    """Yield the content of a file; raise CorruptCheckpoint at its end if it no longer matches ``ref``."""
    sha256, size = hashlib.sha256(), 0
    with files.open_file(path) as fd:
        for chunk in files.chunks(fd):
            sha256.update(chunk)
            size += len(chunk)
            yield chunk
    ensure_matches(ref, (sha256.hexdigest(), size))
