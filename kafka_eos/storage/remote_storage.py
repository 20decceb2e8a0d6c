"""The durable objects of one job in a store elsewhere: an object store, or a file system that pyarrow reaches.

What differs between stores is a ``Store``, which holds named bytes; what a checkpoint storage promises is made of
that here. Rule: a name appears once and whole. Nothing is ever written into an object that somebody may read.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kafka_eos._util import failpoints
from kafka_eos.abc.storage import FileRef, unheard
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Retryable
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import altered, expect, expect_size
from kafka_eos.storage.object_names import Segment, complete_lines

_ACTIVE_SEGMENTS = 2
"""The newest of a log: one is written, and who reads may have listed the other one while it was."""

_FIRST_TIME = 10**12
"""Segments that are written here are numbered by the milliseconds of their beginning; files of a directory from 1."""


class Store(Protocol):
    """Named bytes in one place. What is listed is complete; a call sees everything that ended before it began.

    What can be seen is durable, whoever wrote it, and so is a removal that was confirmed.

    Errors of the network and of the store are OSError, of rights PermissionError, of the address ConfigError.
    """

    def create(self, name: str, data: bytes) -> None:
        """All or nothing. FileExistsError if the name exists, whoever made it; OSError leaves open whether it does."""

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        """As ``create``, for a name that stands for its content: it may exist. Whatever ``chunks`` raises ends it."""

    def read(self, name: str) -> Iterator[bytes]:
        """In pieces. FileNotFoundError, at once or at the first piece, if absent."""

    def size(self, name: str) -> int | None:
        """In bytes; None if absent, or perhaps if the store does not answer."""

    def list(self, directory: str) -> Sequence[str]:
        """Plain names in a directory, in any order. Of an absent one: none.

        It need not be of one moment: names that come or go while it is made may be listed or not.
        """

    def directories(self) -> Sequence[str]:
        """Plain names of those right below, in any order."""

    def delete(self, names: Sequence[str]) -> None:
        """Each at once and whole, in any order, in as few requests as the store needs. Absent is fine."""

    def sweep(self) -> None:
        """Remove what killed writers left, which nothing lists."""


class RemoteStorage:
    """A checkpoint storage made of a ``Store``. Opening one makes no request. May be used from threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs = {name: _Segment(store, directory) for name, directory in paths.LOGS.items()}

    def tidy(self) -> None:
        """As ``JobStorage``. Proves that this store never replaces a name: some accept the demand and ignore it."""
        try:
            self._store.sweep()
            if not (self._refuses_probe() or self._refuses_probe()):
                raise ConfigError(
                    f"the checkpoint store replaces {paths.PROBE!r} though it was told not to, so it cannot decide "
                    "which of two supervisors goes on: keep checkpoints in another store; see docs/storage.md"
                )
        except PermissionError as error:
            raise ConfigError(f"no right to write checkpoints: {error}") from error
        except OSError as error:
            raise Retryable(
                f"the checkpoint store gives no answer that can be used: {error.strerror or error}. Check "
                "checkpoint_dir, and that the store runs and lets this job in, then start again"
            ) from error

    def _refuses_probe(self) -> bool:
        try:
            self._store.create(paths.PROBE, b"")
        except FileExistsError:
            return True
        return False

    def publish(self, name: str, data: bytes) -> None:
        observed = paths.is_manifest(paths.inside(name))
        if observed:
            failpoints.hit("manifest.staged")
        self._store.create(name, data)
        if observed:
            failpoints.hit("manifest.published")

    def read(self, name: str) -> bytes:
        return b"".join(self._store.read(paths.inside(name)))

    def list(self, prefix: str) -> Sequence[str]:
        return sorted(f"{prefix}/{name}" for name in self._store.list(prefix))

    def delete(self, name: str) -> None:
        self.delete_all([name])

    def delete_all(self, names: Sequence[str]) -> None:
        self._store.delete([paths.inside(name) for name in names])

    def upload(self, path: Path, name: str) -> FileRef:
        with files.opened(path) as fd:
            sha256, size = files.digest(fd)
        ref = FileRef(paths.plain_file_name(name), sha256, size)
        target = paths.shared_name(sha256)
        stored = self._store.size(target)
        if stored is None:
            self._store.put(target, _unchanged(path, ref), size)
        elif stored != size:
            raise altered(ref, f"{stored} bytes, not {size}")
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = unheard) -> None:
        with files.created(target) as out:
            expect(ref, files.write_chunks(out, files.counted(self._stored(ref), passed)))

    def check(self, ref: FileRef) -> None:
        expect(ref, files.digest_of(self._stored(ref)))

    def look(self, ref: FileRef) -> None:
        name = paths.shared_name(ref.sha256)
        size = self._store.size(name)
        if size is None and name in self.list(paths.SHARED):
            raise OSError(errno.EIO, "the store lists the object and does not tell its size", name)
        if size is None:
            raise altered(ref, "the file is missing")
        expect_size(ref, size)

    def append(self, name: str, line: str) -> None:
        self._log(name).append(line)

    def settle(self, name: str) -> None:
        """As ``JobStorage``: each line was durable when it was there."""
        self._log(name)

    def lines(self, name: str) -> Sequence[str]:
        """Those of a log that was copied from a local directory, then those written here, by start of writer."""
        try:
            copied = complete_lines(self.read(name))
        except FileNotFoundError:
            copied = []
        before, written = self._log(name).lines()
        return [*before, *copied, *written]

    def compress(self) -> None:
        for log in self._logs.values():
            log.compress()

    def _log(self, name: str) -> _Segment:
        try:
            return self._logs[name]
        except KeyError:
            raise CorruptCheckpoint(f"{name!r} is not a log") from None

    def _stored(self, ref: FileRef) -> Iterator[bytes]:
        """The pieces of a stored file, no more than one past its length."""
        name, left = paths.shared_name(ref.sha256), ref.size
        try:
            for piece in self._store.read(name):
                yield piece
                left -= len(piece)
                if left < 0:
                    return
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"{name} ({ref.name}): the file is missing") from error


class _Segment:
    """A log where nothing can be appended to: every line makes the next, longer version of one object.

    Readers take the longest version of each segment. The shorter ones go only when two newer segments were begun: what
    a reader lists need not be of one moment, so a version must not go soon after the one that replaces it came.
    A segment comes after all that were there when it began, whatever the clock says.
    """

    def __init__(self, store: Store, directory: str) -> None:
        self._store, self._directory, self._lock = store, directory, threading.Lock()
        self._number = 0
        """Of the segment that is written; 0 before the first line."""
        self._segment = ""
        self._lines: list[str] = []

    def _begin(self) -> None:
        newest = self._number or max((version.number for version in self._versions()), default=0)
        self._number = max(time.time_ns() // 1_000_000, newest + 1)
        self._segment, self._lines = f"{self._number:013d}-{secrets.token_hex(8)}", []

    def append(self, line: str) -> None:
        """Add a line. If it fails, the line may be there, or come with the next one."""
        with self._lock:
            if not self._number or len(self._lines) >= LIMITS.log_lines_per_segment:
                self._begin()
            self._lines.append(line)
            name = paths.segment_name(self._directory, self._segment, len(self._lines))
            self._store.create(name, "".join(f"{each}\n" for each in self._lines).encode())

    def compress(self) -> None:
        """Delete the shorter versions of each segment, but of the newest two, which may be written and read now."""
        versions = [version for version in self._versions() if version.number >= _FIRST_TIME]
        full = paths.longest(versions)[:-_ACTIVE_SEGMENTS]
        names = {version.name for version in full}
        gone = [version.file for version in versions if version.name in names and version not in full]
        if gone:
            self._store.delete([f"{self._directory}/{file}" for file in gone])

    def lines(self) -> tuple[list[str], list[str]]:
        """Those of the full files of a local directory, and those that were written here."""
        found = paths.longest(self._versions())
        copied = sum(segment.number < _FIRST_TIME for segment in found)
        return self._read_all(found[:copied]), self._read_all(found[copied:])

    def _read_all(self, segments: Iterable[Segment]) -> list[str]:
        return [line for segment in segments for line in self._read(segment)]

    def _versions(self) -> list[Segment]:
        names = (f"{self._directory}/{name}" for name in self._store.list(self._directory))
        return [paths.parse_segment_name(name) for name in names if paths.is_segment(name)]

    def _read(self, segment: Segment) -> list[str]:
        while True:
            try:
                data = b"".join(self._store.read(f"{self._directory}/{segment.file}"))
            except FileNotFoundError:
                found = (each for each in self._versions() if each.name == segment.name)
                longest = max(found, key=lambda each: each.lines, default=segment)
                if longest.lines <= segment.lines:
                    raise  # somebody has removed it
                segment = longest
            else:
                return complete_lines(gzip.decompress(data) if segment.compressed else data)


def _unchanged(path: Path, ref: FileRef) -> Iterator[bytes]:
    """The content of a file; CorruptCheckpoint at its end if that is no longer what ``ref`` says."""
    sha256, size = hashlib.sha256(), 0
    with files.opened(path) as fd:
        for chunk in files.chunks(fd):
            sha256.update(chunk)
            size += len(chunk)
            yield chunk
    expect(ref, (sha256.hexdigest(), size))
