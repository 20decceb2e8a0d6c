"""A log in a local directory: lines in one growing file, and in full files before it.

    history.jsonl                                 lines are appended here
    history/<number>-<token>-<lines>.jsonl        a full file: nothing is appended any more
    history/<number>-<token>-<lines>.jsonl.gz     a full file, compressed

Rule: a line is always in at least one file. A full file is renamed as a whole. It is compressed only when no process
appends to it, and removed only when its compressed copy is durable; while both exist, only one is read. Files with
other names (created by a desktop or NFS) are ignored: nothing that the job does depends on the log.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.object_names import COMPRESSED, LogSegment, complete_lines

_LEVEL: Final = 6
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalLog(Struct, frozen=True):
    """One log of the job in the directory ``root``; ``name`` is one of ``object_names.LOGS``."""

    root: Path
    name: str
    segment_bytes: int = field(default_factory=lambda: LIMITS.log_segment_bytes)
    """Bytes after which a segment is full."""
    retained_segments: int | None = None
    """Full segments to keep; None keeps all."""

    def append(self, line: str) -> None:
        """Append a line. Concurrent appends of any process do not tear it."""
        with self._appending() as fd:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            files.write_all(fd, (b"\n" if torn else b"") + line.encode() + b"\n")

    def sync(self) -> None:
        """Make all appended lines durable. A full file was synced before it was renamed."""
        try:
            files.sync(self._active_segment)
        except FileNotFoundError:
            return
        files.sync_directory(self.root)

    def compress(self) -> None:
        """Compress the full files except the newest, whose end is read often. After an OSError, another call compresses
        the rest."""
        for segment in self._segments()[:-1]:
            plain = self._directory / segment.file
            if not segment.compressed:
                with suppress(FileNotFoundError):  # another process has just done it
                    self._compress(plain, plain.with_name(f"{segment.file}{COMPRESSED}"))

    def lines(self) -> list[str]:
        """Return all lines, the oldest first, except lines cut off by a crash."""
        with self._files() as found:
            return [line for each in found for line in complete_lines(self._read(each))]

    def tail(self, size: int) -> list[str] | None:
        """Return the newest lines, about ``size`` bytes in total, the oldest first; None if the log does not exist."""
        newest: list[str] = []
        with self._files() as found:
            for each in reversed(found):
                data = self._read(each, size + 1)
                cut = len(data) > size  # the first of these lines may be incomplete
                newest = [*complete_lines(data)[1 if cut else 0 :], *newest]
                size -= len(data)
                if size <= 0:
                    break
            return newest if found else None

    # ------------------------------------------------------------ files

    @property
    def _active_segment(self) -> Path:
        return self.root / self.name

    @property
    def _directory(self) -> Path:
        return self.root / paths.LOGS[self.name]

    def _segments(self) -> list[LogSegment]:
        try:
            names = [f"{paths.LOGS[self.name]}/{name}" for name in os.listdir(self._directory)]
        except FileNotFoundError:
            return []
        return paths.newest_segments(name for name in names if paths.is_segment(name))

    @contextmanager
    def _appending(self) -> Iterator[int]:
        """Yield the growing file, locked against compression by a lock that all appending processes share."""
        while True:
            fd = os.open(self._active_segment, _FLAGS, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.fstat(fd).st_size >= self.segment_bytes and self._close(fd):
                    continue
                if os.fstat(fd).st_nlink:
                    yield fd
                    return
            finally:
                os.close(fd)

    def _close(self, fd: int) -> bool:
        """Rename the full file. Return False if another process has it locked; the file then grows a little more.

        Returns True once the file has its new name, whichever process renamed it: ``sync`` would not make later lines
        in it durable.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(fd, fcntl.LOCK_SH)
            return not _same(fd, self._active_segment)  # another process may have rotated the file meanwhile
        if not _same(fd, self._active_segment):
            return True
        os.fsync(fd)
        files.make_directory(self._directory)
        known = self._segments()
        number = known[-1].number + 1 if known else 1
        count = self._read(fd).count(b"\n")
        name = paths.segment_name(paths.LOGS[self.name], f"{number:013d}-{secrets.token_hex(8)}", count)
        os.rename(self._active_segment, self.root / name)
        for directory in (self._directory, self.root):
            files.sync_directory(directory)
        if self.retained_segments is not None:
            for old in self._segments()[: -self.retained_segments]:
                (self._directory / old.file).unlink(missing_ok=True)
        return True

    def _compress(self, plain: Path, target: Path) -> None:
        with files.open_file(plain) as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # a process opened it before it was full
            if not os.fstat(fd).st_nlink:
                return
            temporary = files.temporary_path(self._directory)
            try:
                with files.create_file(temporary) as out:
                    files.write_all(out, gzip.compress(files.read_all(fd), _LEVEL, mtime=0))
                    os.fsync(out)
                os.rename(temporary, target)
                files.sync_directory(self._directory)
            finally:
                temporary.unlink(missing_ok=True)
            plain.unlink()

    # ------------------------------------------------------------ reading

    @contextmanager
    def _files(self) -> Iterator[list[LogSegment | int]]:
        """Yield all files, the oldest first; the growing file is open.

        It is opened before the others are listed. If it becomes full meanwhile, it is found under its new name; if it
        is even compressed by then, the listing is repeated.
        """
        while True:
            with ExitStack() as opened:
                try:
                    growing = opened.enter_context(files.open_file(self._active_segment))
                except FileNotFoundError:
                    yield [*self._segments()]
                    return
                found: list[LogSegment | int] = []
                for segment in self._segments():
                    found.append(growing if _same(growing, self._directory / segment.file) else segment)
                if growing in found or _same(growing, self._active_segment):
                    yield found if growing in found else [*found, growing]
                    return

    def _read(self, of: LogSegment | int, most: int | None = None) -> bytes:
        """Return the content of a file, or its last ``most`` bytes."""
        if isinstance(of, int):
            size = os.fstat(of).st_size
            start = 0 if most is None else max(0, size - most)
            return os.pread(of, size - start, start)
        path = self._directory / of.file
        if not of.compressed:
            try:
                with files.open_file(path) as fd:
                    return self._read(fd, most)
            except FileNotFoundError:  # it has just been compressed
                path = path.with_name(f"{of.file}{COMPRESSED}")
        with files.open_file(path) as fd:
            data = paths.inflate_segment(path.name, files.read_all(fd))
        return data if most is None else data[-most:]


def _same(fd: int, path: Path) -> bool:
    """Return whether this open file still has that name."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
