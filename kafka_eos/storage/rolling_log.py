"""A log in a local directory: lines in one file that grows, and in files that were full before it.

    history.jsonl                             lines are appended here
    history/<number>-<token>-<lines>.jsonl    it was full: nothing is appended any more
    history/<number>-<token>-<lines>.jsonl.gz the same, compressed

Rule: a line is never in less than one place. A full file gets its new name as a whole. It is compressed only when no
process appends to it, and removed only when what it was compressed to is durable; while both are there, one counts.
What is beside them and has another name (of a desktop, of NFS) is passed over: nothing that the job does depends on it.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.object_names import COMPRESSED, Segment, complete_lines

_LEVEL: Final = 6
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class LocalLog:
    """One log of the job in the directory ``root``; ``name`` is one of ``paths.LOGS``."""

    root: Path
    name: str
    full: int = field(default_factory=lambda: LIMITS.log_segment_bytes)
    """Bytes after which a file is full."""
    keep: int | None = None
    """So many full files are kept, the newest; None: all."""

    def append(self, line: str) -> None:
        """Add a line. Whoever else appends, from whichever process, does not tear it."""
        with self._appending() as fd:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            files.write_all(fd, (b"\n" if torn else b"") + line.encode() + b"\n")

    def settle(self) -> None:
        """Make durable what was appended. A file that is full was made so before it got its new name."""
        try:
            files.sync(self._growing)
        except FileNotFoundError:
            return
        files.sync_directory(self.root)

    def compress(self) -> None:
        """Compress the full files but the newest, whose end is read often. OSError: the rest waits for another call."""
        for segment in self._segments()[:-1]:
            plain = self._directory / segment.file
            if not segment.compressed:
                with suppress(FileNotFoundError):  # another process has just done it
                    self._compress(plain, plain.with_name(f"{segment.file}{COMPRESSED}"))

    def lines(self) -> list[str]:
        """All lines, the oldest first, but those that a crash has cut off."""
        with self._files() as found:
            return [line for each in found for line in complete_lines(self._read(each))]

    def tail(self, size: int) -> list[str] | None:
        """The newest lines, of about ``size`` bytes together, the oldest first; None if there is no log."""
        newest: list[str] = []
        with self._files() as found:
            for each in reversed(found):
                data = self._read(each, size + 1)
                cut = len(data) > size  # then the first of these lines may have begun before
                newest = [*complete_lines(data)[1 if cut else 0 :], *newest]
                size -= len(data)
                if size <= 0:
                    break
            return newest if found else None

    # ------------------------------------------------------------ files

    @property
    def _growing(self) -> Path:
        return self.root / self.name

    @property
    def _directory(self) -> Path:
        return self.root / paths.LOGS[self.name]

    def _segments(self) -> list[Segment]:
        try:
            names = [f"{paths.LOGS[self.name]}/{name}" for name in os.listdir(self._directory)]
        except FileNotFoundError:
            return []
        return paths.segments(name for name in names if paths.is_segment(name))

    @contextmanager
    def _appending(self) -> Iterator[int]:
        """The file that grows. It is locked against being compressed by a lock that all who append share."""
        while True:
            fd = os.open(self._growing, _FLAGS, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.fstat(fd).st_size >= self.full and self._close(fd):
                    continue
                if os.fstat(fd).st_nlink:
                    yield fd
                    return
            finally:
                os.close(fd)

    def _close(self, fd: int) -> bool:
        """Give the full file its new name. False if another process has it locked: then it grows a little more.

        True if it has its new name, whoever gave it: ``settle`` would not make durable what is written to it then.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(fd, fcntl.LOCK_SH)
            return not _same(fd, self._growing)  # meanwhile nobody had it locked
        if not _same(fd, self._growing):
            return True
        os.fsync(fd)
        files.make_directory(self._directory)
        known = self._segments()
        number = known[-1].number + 1 if known else 1
        count = self._read(fd).count(b"\n")
        name = paths.segment_name(paths.LOGS[self.name], f"{number:013d}-{secrets.token_hex(8)}", count)
        os.rename(self._growing, self.root / name)
        for directory in (self._directory, self.root):
            files.sync_directory(directory)
        if self.keep is not None:
            for old in self._segments()[: -self.keep]:
                (self._directory / old.file).unlink(missing_ok=True)
        return True

    def _compress(self, plain: Path, target: Path) -> None:
        with files.opened(plain) as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # a process has opened it before it was full
            if not os.fstat(fd).st_nlink:
                return
            temporary = files.temporary(self._directory)
            try:
                with files.created(temporary) as out:
                    files.write_all(out, gzip.compress(files.read_all(fd), _LEVEL, mtime=0))
                    os.fsync(out)
                os.rename(temporary, target)
                files.sync_directory(self._directory)
            finally:
                temporary.unlink(missing_ok=True)
            plain.unlink()

    # ------------------------------------------------------------ reading

    @contextmanager
    def _files(self) -> Iterator[list[Segment | int]]:
        """All files, the oldest first; the one that grows is open.

        It is opened before the others are listed: if it is full meanwhile, it is met under its new name; and if it is
        even compressed by then, all are looked for anew.
        """
        while True:
            with ExitStack() as opened:
                try:
                    growing = opened.enter_context(files.opened(self._growing))
                except FileNotFoundError:
                    yield [*self._segments()]
                    return
                found: list[Segment | int] = []
                for segment in self._segments():
                    found.append(growing if _same(growing, self._directory / segment.file) else segment)
                if growing in found or _same(growing, self._growing):
                    yield found if growing in found else [*found, growing]
                    return

    def _read(self, of: Segment | int, most: int | None = None) -> bytes:
        """What a file holds; if ``most`` is given, the end of it, of so many bytes."""
        if isinstance(of, int):
            size = os.fstat(of).st_size
            start = 0 if most is None else max(0, size - most)
            return os.pread(of, size - start, start)
        path = self._directory / of.file
        if not of.compressed:
            try:
                with files.opened(path) as fd:
                    return self._read(fd, most)
            except FileNotFoundError:  # it has just been compressed
                path = path.with_name(f"{of.file}{COMPRESSED}")
        with files.opened(path) as fd:
            data = gzip.decompress(files.read_all(fd))
        return data if most is None else data[-most:]


def _same(fd: int, path: Path) -> bool:
    """Is this open file the one of that name?"""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
