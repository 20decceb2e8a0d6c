"""Heartbeats of a leader in the checkpoint store, which its standbys read.

A heartbeat is an object with a new name. A standby sees that the name has changed, and needs only its own clock. The
previous heartbeat stays until the next one is written, so that every listing contains one. The last heartbeat states
how the leader ended. A leader also touches its lock file: this shows on its own machine that it is alive while the
store accepts no writes, for example on a full disk.
Rule: heartbeats decide only how long standbys wait. A leader that cannot write them reports it once and continues.
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
from kafka_eos.protocol.standby import LeaderExit
from kafka_eos.storage import object_names as paths

_LOG: Final = logging.getLogger("kafka_eos.heartbeats")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_BEATS_PER_LEASE: Final = 5
"""The number of heartbeats per lease."""


class LeaderHeartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A heartbeat of the job's leader, as written to the checkpoint store.

    ``lock`` identifies the lock file that the leader's process holds, across machines.
    """

    host: str
    pid: int
    lock: str
    ended: Literal["stopped", "left"] | None = None
    every: float = 3.0
    """Seconds between two heartbeats."""

    @property
    def process(self) -> str:
        return f"process {self.pid} on {self.host}"


def interval(lease: float) -> float:
    """Return the seconds between two heartbeats for a lease of this many seconds."""
    return lease / _BEATS_PER_LEASE


def lock_id(path: Path) -> str:
    """Return an id of an existing lock file that differs between machines and directories.

    Machines created from one image may share a host name and inode numbers; the boot id differs.
    """
    found = path.stat()
    return f"{socket.gethostname()}:{_start_of_machine()}:{found.st_dev}:{found.st_ino}"


@cache
def _start_of_machine() -> str:
    """Return the kernel's random boot id (Linux, proc(5)); "" if there is none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def read_touch_time(path: Path) -> int:
    """Return when a lock file was last touched, in nanoseconds; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def read_heartbeats(
    storage: CheckpointStorage, damaged: Callable[[str], None] = lambda name: None
) -> Mapping[str, tuple[int, LeaderHeartbeat]]:
    """Return the newest heartbeat of each leader. Raise OSError if the store does not respond.

    A heartbeat that cannot be decoded is skipped; ``damaged`` receives its name.
    """
    newest = _newest(storage)
    found: dict[str, tuple[int, LeaderHeartbeat]] = {}
    gone: set[str] = set()
    while newest:
        writer, count = newest.popitem()
        name = paths.heartbeat_name(writer, count)
        try:
            found[writer] = count, msgspec.json.decode(storage.read(name), type=LeaderHeartbeat)
        except FileNotFoundError:
            if name not in gone:  # its writer has written a newer one meanwhile
                gone.add(name)
                newest = {each: count for each, count in _newest(storage).items() if each not in found}
        except msgspec.DecodeError:
            damaged(name)
    return found


def _newest(storage: CheckpointStorage) -> dict[str, int]:
    """Return the number of the newest heartbeat of each writer."""
    newest: dict[str, int] = {}
    for name in _names(storage):
        writer, count = paths.parse_heartbeat_name(name)
        newest[writer] = max(count, newest.get(writer, 0))
    return newest


class HeartbeatWriter:
    """The writer of one leader's heartbeats, on a thread of its own."""

    def __init__(self, storage: CheckpointStorage, lock: Path, lease: float) -> None:
        self._storage = storage
        self._lock = lock
        self._every = interval(lease)
        self._writer = secrets.token_hex(8)
        self._alive = LeaderHeartbeat(socket.gethostname(), os.getpid(), lock_id(lock), every=self._every)
        self._count = self._shown = 0
        """The number of attempted heartbeats, and of the newest one that certainly exists; 0 before the first."""
        self._over = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")

    def start(self) -> None:
        """Write the first heartbeat, delete those of earlier leaders, and start the thread."""
        self._attempt(self._alive)
        self._thread.start()

    def stop(self, how: LeaderExit) -> None:
        """Write the last heartbeat, so that no standby waits for the lease to expire."""
        self._over.set()
        self._thread.join()
        self._attempt(msgspec.structs.replace(self._alive, ended=how))

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            self._attempt(self._alive)

    def _attempt(self, heartbeat: LeaderHeartbeat) -> None:
        """Write a heartbeat and raise nothing: heartbeats are for liveness alone, and failures are logged."""
        try:
            self._touch()
            self._write(heartbeat)
        except OSError as error:
            if not self._failing:
                self._failing = True
                _LOG.warning("heartbeats cannot be written: %s. The job continues; a standby may take it over", error)
        except Exception:  # noqa: BLE001 - heartbeats must not stop the job
            self._over.set()
            _LOG.exception(
                "no more heartbeats are written, because of a bug. The job continues; a standby may take it over"
            )
        else:
            self._failing = False

    def _touch(self) -> None:
        """Touch the lock file, unless the lock now belongs to another supervisor, which writes its own heartbeats."""
        with suppress(FileNotFoundError):
            if lock_id(self._lock) == self._alive.lock:
                os.utime(self._lock)

    def _write(self, heartbeat: LeaderHeartbeat) -> None:
        self._count += 1
        self._storage.publish(paths.heartbeat_name(self._writer, self._count), msgspec.json.encode(heartbeat))
        before, self._shown = self._shown, self._count
        for name in _names(self._storage):
            writer, count = paths.parse_heartbeat_name(name)
            if count < before if writer == self._writer else not before:
                self._storage.delete(name)


def _names(storage: CheckpointStorage) -> list[str]:
    """Return the names of heartbeats. Other objects are ignored, such as files that NFS renames when deleted while
    open."""
    try:
        names = storage.list(paths.HEARTBEATS)
    except FileNotFoundError:
        return []  # no heartbeat was written yet
    return [name for name in names if paths.is_heartbeat_name(name)]
