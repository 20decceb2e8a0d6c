"""Disk operations of commits. Each either succeeds as documented or raises OSError.

Rule: links are never followed, and only the caller decides what is synced when.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

_HERE: Final = -100  # AT_FDCWD: paths are as the process sees them
_NOREPLACE: Final = 1
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def create_directory(directory: Path, mode: int = 0o755) -> None:
    """Create a directory and its parents, each entry durable: a committed file must not vanish with its directory.

    ``mode`` holds for the directory, not for its parents.
    """
    if directory.is_dir():
        return
    create_directory(directory.parent)
    directory.mkdir(mode=mode, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create_empty(path: Path) -> bool:
    """Create an empty file. Return False if the name exists."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    return True


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file that appears with all of its content or not at all; an existing file is replaced."""
    fd, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_directory(path.parent)


def rename_new(source: Path, target: Path) -> bool:
    """Rename to a name that must not exist; raise FileExistsError if it does. The file never has two names.

    Returns True if the file system itself refuses to replace a file. Returns False if it has no such rename (NFS, some
    FUSE): then the name was checked first, and a file that another program creates between check and rename is
    replaced.
    """
    try:
        _rename_noreplace(str(source), str(target))
        return True
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)
    return False


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def filesystem(path: Path) -> str:
    """Return the type of the file system that contains ``path``; empty if the system does not report it."""
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


def _system_call() -> Callable[[str, str], None]:
    """Return renameat2 of the C library, which Python does not expose."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return _missing
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def renamed(source: str, target: str) -> None:
        if function(_HERE, os.fsencode(source), _HERE, os.fsencode(target), _NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), source, None, target)

    return renamed


def _missing(source: str, target: str) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), source, None, target)


_rename_noreplace = _system_call()
