"""A file system with room for little, which can be filled up: disks that are full, without filling the machine's."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEGABYTE: Final = 1 << 20


class MayNotMount(Exception):
    """Who runs this has no right to mount a file system. Its text is what ``mount`` says."""


class SmallDisk:
    def __init__(self, where: Path) -> None:
        self.where, self._ballast = where, where / "ballast"

    def fill(self) -> None:
        """Not a byte is left."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (MEGABYTE // 16, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(where: Path, megabytes: int = 24) -> Iterator[SmallDisk]:
    """One in memory, at ``where``, which is made. Raises MayNotMount."""
    where.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", where],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        where.rmdir()
        raise MayNotMount(mounted.stderr.strip())
    try:
        yield SmallDisk(where)
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)
        where.rmdir()
