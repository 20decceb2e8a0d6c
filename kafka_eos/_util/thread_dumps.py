"""Dumps of the Python stacks of all threads of a process, even while its own code hangs.

On a signal, the interpreter writes the stacks (``faulthandler``) without running Python code, so an endless loop or a
deadlock is no obstacle. They go into a file in memory, which every process with permission to send the signal finds in
``/proc``; its name says what the process is.

Rule: only a process that handles the signal, according to the kernel, gets it; it would kill any other one. Without
``/proc`` (macOS) no process is found, so none is signaled.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from kafka_eos.core.errors import Retryable

_SIGNAL: Final[int] = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""A signal that no library or user code is known to use."""
_FILE: Final = "kafka-eos-stacks "
_LINK: Final = f"/memfd:{_FILE}"
_PROC: Final = Path("/proc")
_NAP: Final = 0.05
_STATES: Final = {
    "T": "it is stopped (SIGSTOP)",
    "t": "it is stopped by a debugger",
    "D": "it waits for the kernel, for example for a disk or network file system that does not respond",
}


class NoStacks(Retryable):
    """A process does not write its stacks. The message says why, as far as the kernel shows it."""


class DumpTarget(Struct, frozen=True):
    """A process that writes its stacks on request. ``what``: its role in a job, in words."""

    pid: int
    what: str
    file: Path


def enable_dumps(what: str) -> None:
    """Make this process write its stacks on request. ``what``: its role, in words; only the first call counts."""
    if hasattr(os, "memfd_create") and find_target(os.getpid()) is None:
        file = os.memfd_create(f"{_FILE}{what}", os.MFD_CLOEXEC)
        faulthandler.register(_SIGNAL, file, all_threads=True)


def find_target(pid: int) -> DumpTarget | None:
    """Return the process if it can write its stacks."""
    with suppress(OSError):
        if not _handles_signal(pid):
            return None
        for file in (_PROC / str(pid) / "fd").iterdir():
            link = os.readlink(file)
            if link.startswith(_LINK):
                return DumpTarget(pid, link.removeprefix(_LINK).removesuffix(" (deleted)"), file)
    return None


def child_pids(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started."""
    for status in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                yield int(status.parent.name)


def read_stacks(place: DumpTarget, send: Callable[[int], object] | None = None, within: float = 2.0) -> str:
    """Return the stacks of all threads of a process. Waits at most ``within`` seconds for them.

    ``send`` delivers the signal; by default ``os.kill``. Raises NoStacks if the process writes nothing.
    """
    try:
        with place.file.open("rb") as written:
            written.seek(0, os.SEEK_END)
            (send or _signal(place.pid))(_SIGNAL)
            stacks = _read(written.read, within)
    except OSError as error:
        raise NoStacks(f"process {place.pid} does not exist any more: {error}") from error
    if not stacks:
        raise NoStacks(f"process {place.pid} did not respond within {within:g} s{_why(place.pid)}")
    return stacks.decode(errors="replace")


def read_own_stacks() -> str:
    """Return the stacks of all threads of this process, or the reason why there are none."""
    place = find_target(os.getpid())
    if place is None:
        return "the process has no stack dump handler yet"
    try:
        return read_stacks(place)
    except NoStacks as error:
        return str(error)


def _read(read: Callable[[], bytes], within: float) -> bytes:
    """Read until nothing more is written."""
    until, stacks = time.monotonic() + within, b""
    while time.monotonic() < until:
        time.sleep(_NAP)
        more = read()
        if stacks and not more:
            break
        stacks += more
    return stacks


def _signal(pid: int) -> Callable[[int], None]:
    return lambda number: os.kill(pid, number)


def _handles_signal(pid: int) -> bool:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (_SIGNAL - 1) & 1)
    return False


def _why(pid: int) -> str:
    with suppress(OSError):
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        if state in _STATES:
            return f": {_STATES[state]}"
    return ""
