"""Temporary directories that do not outlive a killed process forever: the next process removes them.

Rule: a directory is locked while its process runs, and the kernel drops the lock however the process ends. Only
directories of the same user are removed: others may have the same names where everybody may write.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

_PREFIX: Final = "kafka-eos-files-"


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a new directory, which is removed at the end, or by a later process if this one is killed."""
    home = Path(tempfile.gettempdir())
    _remove_abandoned(home)
    directory, lock = _create(home)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _create(home: Path) -> tuple[Path, int]:
    """Create a directory and return it with its lock."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        with suppress(FileNotFoundError):
            lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():
                return directory, lock
            os.close(lock)  # another process has removed it before it was locked


@cache
def _remove_abandoned(home: Path) -> None:
    """Remove the directories of dead processes. Once per process is enough."""
    for path in home.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # of another user, or removed meanwhile
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
