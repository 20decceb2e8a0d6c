"""Detection of failures caused by a full disk, and the check for free space.

A job that fails because of a full disk would only fail again on each retry. So it waits for free space, as it waits for
a store that does not respond.
Rule: free space is tested by allocating some, never read from a figure, because a quota has none.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import Retryable

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SOME: Final = 1 << 20


class DiskFull(Retryable):
    """A directory's disk is full. The message names the directory and the remedy."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error was caused by a full disk or an exhausted quota.

    The error's text is compared, because RocksDB, databases and workers in other processes give no error number.
    """
    return any(os.strerror(number) in str(error) for number in _FULL)


def ensure_disk_space(directories: Iterable[Path]) -> None:
    """Raise DiskFull if a megabyte cannot be allocated in one of the directories.

    Other problems of a directory are left to the next attempt.
    """
    for directory in directories:
        place = next(each for each in (directory, *directory.parents) if each.is_dir())
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                os.posix_fallocate(file.fileno(), 0, _SOME)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(_advice(directory, place, error)) from error


def _advice(directory: Path, place: Path, error: OSError) -> str:
    disk = shutil.disk_usage(place)
    return (
        f"no disk space for {directory}: {error.strerror}, {disk.free / 1000000.0:,.0f} of "
        f"{disk.total / 1000000.0:,.0f} MB of its disk are free. Free some space, and the job "
        "continues; or restart it with another state_dir or checkpoint_dir"
    )
