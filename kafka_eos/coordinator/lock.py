"""The first line against two supervisors of one job: an advisory lock that dies with its process.

The lock is for a friendly refusal; safety does not rest on it but on terms (``coordinator.term``), which also
hold where locks do not work, such as some network file systems.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_eos.errors import JobLocked

_LOOKED_AT = 0.5
"""Seconds for which the lock may be held by somebody who only looks whether it is."""


@contextmanager
def job_lock(path: Path, job: str) -> Iterator[None]:
    """Hold the job's lock. Raises JobLocked, naming the holder's pid, if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(fd):
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            raise JobLocked(
                f"job {job!r} is already run by process {holder} (lock {path}). Stop it first, or give this "
                "pipeline another name or checkpoint directory."
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Whether a supervisor holds the lock now. Makes no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _locked(fd: int) -> bool:
    """Take the lock, if need be from under those who look at it."""
    until = time.monotonic() + _LOOKED_AT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        else:
            return True
