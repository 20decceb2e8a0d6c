"""Whether a job failed because a disk is full, and whether there is room again.

A job that fails for that can do nothing about it, and each try would only fail again: it waits until there is room, as
it waits for a store that is away.

Rule: whether there is room is found out by taking some, and never read from a figure: a quota has none.
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


class NoRoom(Retryable):
    """Nothing more can be written into a directory. Says which, and what to do."""


def is_full(error: BaseException) -> bool:
    """Does the error come of a full disk, or a quota?

    Its words tell: RocksDB, a database, and a worker in another process give no number.
    """
    return any(os.strerror(number) in str(error) for number in _FULL)


def expect_room(directories: Iterable[Path]) -> None:
    """NoRoom if a megabyte cannot be written below one of them. What else is wrong with one, the next attempt finds."""
    for directory in directories:
        place = next(each for each in (directory, *directory.parents) if each.is_dir())
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                os.posix_fallocate(file.fileno(), 0, _SOME)
        except OSError as error:
            if error.errno in _FULL:
                raise NoRoom(_advice(directory, place, error)) from error


def _advice(directory: Path, place: Path, error: OSError) -> str:
    disk = shutil.disk_usage(place)
    return (
        f"there is no room for {directory}: {error.strerror}, {disk.free / 1e6:,.0f} of {disk.total / 1e6:,.0f} MB of "
        "its disk are free. Make room there and the job goes on by itself, or start it again with state_dir or "
        "checkpoint_dir elsewhere"
    )
