"""Where a process stands: the Python stacks of all its threads, also while its own code never comes back.

A signal makes the interpreter write them (``faulthandler``) without running any Python, so a loop or a lock without an
end is no obstacle. They go into a file in memory that whoever may signal the process finds in ``/proc``, with what the
process is in its name.

Rule: only a process that handles the signal gets it, as the kernel tells; it would end any other one. Linux only.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import Retryable

_SIGNAL: Final = signal.SIGRTMIN + 9
"""One that neither users' code nor a library has taken for itself."""
_FILE: Final = "kafka-eos-stacks "
_LINK: Final = f"/memfd:{_FILE}"
_PROC: Final = Path("/proc")
_NAP: Final = 0.05
_STATES: Final = {
    "T": "it is stopped (SIGSTOP)",
    "t": "a debugger holds it",
    "D": "it waits for the kernel, as for a disk or network file system that does not answer",
}


class NoStacks(Retryable):
    """A process does not write its stacks. Says why, as far as the kernel tells."""


@dataclass(frozen=True, slots=True)
class Place:
    """A process that writes its stacks when it is asked. ``what``: its part in a job, in words."""

    pid: int
    what: str
    file: Path


def be_ready(what: str) -> None:
    """From now on this process writes its stacks when it is asked. ``what`` it is, in words; the first call counts."""
    if place_of(os.getpid()) is None:
        file = os.memfd_create(f"{_FILE}{what}", os.MFD_CLOEXEC)
        faulthandler.register(_SIGNAL, file, all_threads=True)


def place_of(pid: int) -> Place | None:
    """The process if it is ready; None also if it is gone, or of another user."""
    with suppress(OSError):
        if not _handles_signal(pid):
            return None
        for file in (_PROC / str(pid) / "fd").iterdir():
            link = os.readlink(file)
            if link.startswith(_LINK):
                return Place(pid, link.removeprefix(_LINK).removesuffix(" (deleted)"), file)
    return None


def children(pid: int) -> Iterator[int]:
    """Processes that ``pid`` has started, in no order."""
    for status in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                yield int(status.parent.name)


def stacks(place: Place, send: Callable[[int], object] | None = None, within: float = 2.0) -> str:
    """The stacks of a process, the innermost call first. Waits at most ``within`` seconds for them.

    ``send`` delivers the signal; by default ``os.kill``. Raises NoStacks if nothing comes.
    """
    try:
        with place.file.open("rb") as written:
            written.seek(0, os.SEEK_END)
            (send or _signal(place.pid))(_SIGNAL)
            told = _read(written.read, within)
    except OSError as error:
        raise NoStacks(f"process {place.pid} is gone: {error}") from error
    if not told:
        raise NoStacks(f"process {place.pid} did not answer within {within:g} s{_why(place.pid)}")
    return told.decode(errors="replace")


def _read(read: Callable[[], bytes], within: float) -> bytes:
    """All that is written, until nothing more is."""
    until, told = time.monotonic() + within, b""
    while time.monotonic() < until:
        time.sleep(_NAP)
        more = read()
        if told and not more:
            break
        told += more
    return told


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
