"""A file system with room for little, which can be filled up: disks that are full, without filling the machine's."""

from __future__ import annotations

import errno
import subprocess
import threading
import time
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
        self._goes_on, self._lock = False, threading.Lock()

    def keep_full(self) -> None:
        """As a program does that never stops writing: what others let go of is taken, until there is to be room."""
        self.fill()
        self._goes_on = True
        threading.Thread(target=self._go_on, daemon=True, name="fills a disk").start()

    def _go_on(self) -> None:
        while True:
            with self._lock:
                if not self._goes_on:
                    return
                self.fill()
            time.sleep(0.1)

    def let_be(self) -> None:
        """From here on nothing is written. Before it is unmounted: else what lies below would be filled."""
        with self._lock:
            self._goes_on = False

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
        self.let_be()
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
    disk = SmallDisk(where)
    try:
        yield disk
    finally:
        disk.let_be()
        subprocess.run(["umount", "--lazy", where], check=True)
        where.rmdir()
