"""File operations of the storages. Each succeeds as documented or raises OSError.

Rule: links are never followed, new files have mode 0600, and only the caller decides what is synced when.
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
"""Errors of file systems that cannot create this link; the caller copies instead."""

_serial = itertools.count()


def temporary_path(directory: Path) -> Path:
    """Return an unused temporary name in the directory."""
    return directory / f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{next(_serial)}"


@contextmanager
def create_file(path: Path) -> Iterator[int]:
    """Create a file and yield its descriptor; FileExistsError if it exists."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def create_writer(path: Path) -> Iterator[BinaryIO]:
    """Create a file and yield a binary stream to it. Raise FileExistsError if ``path`` exists."""
    with create_file(path) as fd, open(fd, "wb", closefd=False) as target:
        yield target


@contextmanager
def open_file(path: Path) -> Iterator[int]:
    """Open a regular file and yield its descriptor; links are not followed.

    Raises OSError: ELOOP for a link, EINVAL or EISDIR for other kinds.
    """
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
    """Return the SHA-256 in hex and the length in bytes of the rest of ``fd``."""
    return digest_of(chunks(fd))


def digest_of(data: Iterable[bytes]) -> tuple[str, int]:
    """Return the SHA-256 in hex and the length in bytes of the concatenated ``data``."""
    sha256, size = hashlib.sha256(), 0
    for chunk in data:
        sha256.update(chunk)
        size += len(chunk)
    return sha256.hexdigest(), size


def copy(source: int, target: int) -> tuple[str, int]:
    """Copy the rest of ``source``; return SHA-256 and length of the copied bytes."""
    return write_chunks(target, chunks(source))


def write_chunks(target: int, data: Iterable[bytes]) -> tuple[str, int]:
    """Write all of ``data``; return SHA-256 and length of the written bytes."""

    def written() -> Iterator[bytes]:
        for chunk in data:
            write_all(target, chunk)
            yield chunk

    return digest_of(written())


def is_private(fd: int) -> bool:
    """Return whether an open file belongs to this user and has mode 0600."""
    found = os.fstat(fd)
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _PRIVATE


def link(source: Path, target: Path) -> bool:
    """Give a file a second name. Return False if this file system cannot; raise FileExistsError if ``target``
    exists.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def sync(path: Path) -> None:
    """Make the content of a file durable, whichever process wrote it."""
    with open_file(path) as fd:
        os.fsync(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Create a directory of mode 0700 unless it exists. Raise NotADirectoryError if another kind of file exists."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory (links are not followed)", str(path)) from None


def with_progress(data: Iterable[bytes], passed: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the same chunks, and report the length of each once it was consumed."""
    for piece in data:
        yield piece
        passed(len(piece))


def chunks(fd: int) -> Iterator[bytes]:
    """Yield the rest of ``fd`` in chunks of at most ``Limits.copied_bytes``."""
    while chunk := os.read(fd, LIMITS.copied_bytes):
        yield chunk


def read_part(fd: int, start: int, size: int) -> bytes:
    """Return ``size`` bytes from ``start``, or fewer if the file ends before."""
    found = b""
    while len(found) < size and (more := os.pread(fd, size - len(found), start + len(found))):
        found += more
    return found
