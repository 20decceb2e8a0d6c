"""Signs of life in the checkpoint store: what a leader shows to those that stand by for it.

A heartbeat is an object with a new name: a standby sees that the name has changed, and needs no clock but its own. The
one before it stays until the next one, so that a list which is made meanwhile has one of them. The last one says how
the leader ended. A leader also touches its lock: that shows on its own machine that it lives while the store takes
nothing, as on a full disk.
Rule: nothing is decided by them but who waits. A leader that cannot write them says so once and goes on.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.protocol.standby import Ending
from kafka_eos.storage import object_names as paths

_LOG: Final = logging.getLogger("kafka_eos.heartbeats")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_A_LEASE: Final = 5
"""Heartbeats in the time after which a silent leader is taken for gone."""


class Heartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who leads. ``lock`` names the lock file that its process holds, on whichever machine."""

    host: str
    pid: int
    lock: str
    ended: Literal["stopped", "left"] | None = None
    every: float = 3.0
    """Seconds from one to the next."""

    @property
    def process(self) -> str:
        return f"process {self.pid} on {self.host}"


def interval(lease: float) -> float:
    """Seconds between two heartbeats, for a lease of so many seconds."""
    return lease / _A_LEASE


def lock_id(path: Path) -> str:
    """Names a lock file that exists: of two machines, or two directories, it differs.

    Machines that were made of one image may have one name, and the file the same number: the start of each differs.
    """
    found = path.stat()
    return f"{socket.gethostname()}:{_start_of_machine()}:{found.st_dev}:{found.st_ino}"


@cache
def _start_of_machine() -> str:
    """Random, from the kernel (Linux, proc(5)); nothing where there is none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def touched(path: Path) -> int:
    """When a lock was touched last, in nanoseconds of its file system's clock; 0 if it is gone."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def read(
    storage: CheckpointStorage, damaged: Callable[[str], None] = lambda name: None
) -> Mapping[str, tuple[int, Heartbeat]]:
    """The newest heartbeat of each writer, with its number. OSError if the store cannot tell.

    One that cannot be decoded is left out; ``damaged`` is told its name.
    """
    newest = _newest(storage)
    found: dict[str, tuple[int, Heartbeat]] = {}
    gone: set[str] = set()
    while newest:
        writer, count = newest.popitem()
        name = paths.heartbeat_name(writer, count)
        try:
            found[writer] = count, msgspec.json.decode(storage.read(name), type=Heartbeat)
        except FileNotFoundError:
            if name not in gone:  # its writer has gone on meanwhile
                gone.add(name)
                newest = {each: count for each, count in _newest(storage).items() if each not in found}
        except msgspec.DecodeError:
            damaged(name)
    return found


def _newest(storage: CheckpointStorage) -> dict[str, int]:
    """The number of the newest heartbeat of each writer."""
    newest: dict[str, int] = {}
    for name in _names(storage):
        writer, count = paths.parse_heartbeat_name(name)
        newest[writer] = max(count, newest.get(writer, 0))
    return newest


class Pulse:
    """Writes the heartbeats of one leader, from ``begin`` to ``end``, on a thread of its own."""

    def __init__(self, storage: CheckpointStorage, lock: Path, lease: float) -> None:
        self._storage, self._lock, self._every = storage, lock, interval(lease)
        self._writer = secrets.token_hex(8)
        self._alive = Heartbeat(socket.gethostname(), os.getpid(), lock_id(lock), every=self._every)
        self._count = self._shown = 0
        """Heartbeats that were tried, and the newest that is there for sure; 0 as long as there is none."""
        self._over = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")

    def begin(self) -> None:
        """The first one; those of earlier leaders go."""
        self._attempt(self._alive)
        self._thread.start()

    def end(self, how: Ending) -> None:
        """The last one, so that nobody has to wait for the lease to pass."""
        self._over.set()
        self._thread.join()
        self._attempt(msgspec.structs.replace(self._alive, ended=how))

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            self._attempt(self._alive)

    def _attempt(self, heartbeat: Heartbeat) -> None:
        """Raises nothing: heartbeats are for liveness alone, and what cannot be written is told."""
        try:
            self._touch()
            self._write(heartbeat)
        except OSError as error:
            if not self._failing:
                self._failing = True
                _LOG.warning("heartbeats cannot be written: %s. The job goes on; a standby may take it over", error)
        except Exception:  # noqa: BLE001 - whatever it is
            self._over.set()
            _LOG.exception("no more heartbeats are written, for a defect. The job goes on; a standby may take it over")
        else:
            self._failing = False

    def _touch(self) -> None:
        """A full disk has room for a time. Not if the lock is another supervisor's by now, who shows its own life."""
        with suppress(FileNotFoundError):
            if lock_id(self._lock) == self._alive.lock:
                os.utime(self._lock)

    def _write(self, heartbeat: Heartbeat) -> None:
        self._count += 1
        self._storage.publish(paths.heartbeat_name(self._writer, self._count), msgspec.json.encode(heartbeat))
        before, self._shown = self._shown, self._count
        for name in _names(self._storage):
            writer, count = paths.parse_heartbeat_name(name)
            if count < before if writer == self._writer else not before:
                self._storage.delete(name)


def _names(storage: CheckpointStorage) -> list[str]:
    """What else lies there says nothing of a leader, such as the name that NFS gives to what is deleted while read."""
    try:
        names = storage.list(paths.HEARTBEATS)
    except FileNotFoundError:
        return []  # nobody has written one yet
    return [name for name in names if paths.is_heartbeat_name(name)]
