"""The first barrier against two supervisors of one job: an advisory lock that is released when its process ends.

The lock gives an early, clear error. Safety depends not on the lock but on terms (``coordination.terms``), which also
work where locks do not, such as on some network file systems.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kafka_eos.coordination.disk_space import is_disk_full
from kafka_eos.core.errors import ConfigError, JobLocked, Retryable
from kafka_eos.storage import object_names as paths

_LOOKED_AT = 0.5
"""Seconds for which a process that only checks the lock may hold it."""


@contextmanager
def job_lock(path: Path, job: str) -> Iterator[None]:
    """Hold the job's lock. Raise JobLocked, with the holder's pid, if another process has it."""
    taken = f"job {job!r} is already run by process {{}} (lock {path}). Stop it first (kafka-eos stop), or "
    with _held(path, taken + "give this pipeline another name: only one job of a name may write."):
        yield


@contextmanager
def state_locks(directories: Iterable[Path], job: str) -> Iterator[None]:
    """Lock the directories of a job's local state. Raise JobLocked if another job of that name uses one.

    Two jobs of one name share a directory there, and each would delete the files of the other.
    """
    with ExitStack() as held:
        for directory in directories:
            taken = f"process {{}} runs another job named {job!r} with its local state in {directory}. Give one of the "
            held.enter_context(_held(directory / paths.LOCK, taken + "two another state_dir or another name."))
        yield


@contextmanager
def _held(path: Path, taken: str) -> Iterator[None]:
    """Hold a lock. Raise JobLocked with the text ``taken``, which contains a placeholder for the holder's pid."""
    fd = _open_lock_file(path)
    try:
        if not _try_lock(fd):
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            raise JobLocked(taken.replace("{}", holder) + _how_to_end(holder))
        _write_pid(fd, path)
        yield
    finally:
        os.close(fd)


def _open_lock_file(path: Path) -> int:
    """Open the lock file, and create its directory if needed.

    Raises ConfigError if its directory is not usable; Retryable if its disk is only full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error


def _write_pid(fd: int, path: Path) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ConfigError | Retryable:
    what = f"the directory {path.parent} cannot be used: {error.strerror}"
    if is_disk_full(error):
        return Retryable(f"{what}. Free some disk space there, then start again")
    return ConfigError(
        f"{what}. Give this user permission to write there, or choose another directory: checkpoint_dir, or "
        "state_dir for local state"
    )


def _how_to_end(pid: str) -> str:
    """Return a hint for a frozen holder, which would hold its lock forever; "" for any other."""
    try:
        state = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return ""  # it has ended meanwhile, or runs on another machine
    if state not in "Tt":
        return ""
    return (
        f" Process {pid} is frozen (stopped by a signal or a debugger): resume it (kill -CONT {pid}), or kill it "
        f"(kill -9 {pid}) and start again. With --standby on both, the new one would have killed it."
    )


def find_holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock, or None."""
    text = path.read_text() if is_held(path) else ""
    return int(text) if text else None  # the file is empty while the lock is being taken


def kill_holder(path: Path, pid: int) -> bool:
    """Kill the process if it holds the lock; return whether it did.

    Only a process that has this file open is killed, because the pid may have been reused. Raises PermissionError if
    the process belongs to another user. Kills nothing on a system without ``/proc``.
    """
    if find_holder(path) != pid or not _has_open(pid, path.stat()):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


def _has_open(pid: int, file: os.stat_result) -> bool:
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return False
    for entry in opened:
        with suppress(FileNotFoundError):
            if os.path.samestat(entry.stat(), file):
                return True
    return False


def is_held(path: Path) -> bool:
    """Return whether a supervisor holds the lock now. Creates no file."""
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


def _try_lock(fd: int) -> bool:
    """Take the lock, waiting briefly for processes that only check it. Return whether it was taken."""
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
