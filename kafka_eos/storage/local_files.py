"""File operations that storage is made of. Each either happens as said or raises OSError.

Rule: links are never followed, new files are 0600, and only the caller decides what is synced when.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kafka_eos.core.limits import LIMITS

TEMPORARY = ".tmp-"
_PRIVATE = 0o600
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)
"""The file system cannot link here; a copy does the same."""

_serial = itertools.count()


def temporary(directory: Path) -> Path:
    """A name in ``directory`` that no other process, thread or call uses, and that listings skip."""
    return directory / f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{next(_serial)}"


@contextmanager
def created(path: Path) -> Iterator[int]:
    """A descriptor of a new file. FileExistsError if ``path`` exists."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def writer(path: Path) -> Iterator[BinaryIO]:
    """A new file to write piece by piece. FileExistsError if ``path`` exists."""
    with created(path) as fd, open(fd, "wb", closefd=False) as target:
        yield target


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor to read a regular file. OSError with ELOOP for a link, EISDIR … for anything else."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int) -> bytes:
    return b"".join(chunks(fd))


def digest(fd: int) -> tuple[str, int]:
    """SHA-256 in hex and the length in bytes of what follows in ``fd``."""
    return digest_of(chunks(fd))


def digest_of(data: Iterable[bytes]) -> tuple[str, int]:
    """SHA-256 in hex and the length in bytes of all of ``data`` together."""
    sha256, size = hashlib.sha256(), 0
    for chunk in data:
        sha256.update(chunk)
        size += len(chunk)
    return sha256.hexdigest(), size


def copy(source: int, target: int) -> tuple[str, int]:
    """Copy what follows in ``source``; SHA-256 and length of what was written."""
    return write_chunks(target, chunks(source))


def write_chunks(target: int, data: Iterable[bytes]) -> tuple[str, int]:
    """Write all of ``data``; SHA-256 and length of what was written."""

    def written() -> Iterator[bytes]:
        for chunk in data:
            write_all(target, chunk)
            yield chunk

    return digest_of(written())


def is_private(fd: int) -> bool:
    """Is an open file this user's, and closed to everybody else?"""
    found = os.fstat(fd)
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _PRIVATE


def link(source: Path, target: Path) -> bool:
    """Give a file a second name. False if this file system cannot; FileExistsError if ``target`` exists."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def sync(path: Path) -> None:
    """Make the content of a file durable, whoever wrote it."""
    with opened(path) as fd:
        os.fsync(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory of mode 0700 unless it is there. NotADirectoryError if something else is."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory (links are not followed)", str(path)) from None


def counted(data: Iterable[bytes], passed: Callable[[int], None]) -> Iterator[bytes]:
    """The same pieces; ``passed`` hears the length of each when it has been used."""
    for piece in data:
        yield piece
        passed(len(piece))


def chunks(fd: int) -> Iterator[bytes]:
    """What follows in ``fd``, in pieces of at most ``Limits.copied_bytes``."""
    while chunk := os.read(fd, LIMITS.copied_bytes):
        yield chunk
