"""Startup of the workers of one attempt: progress of each restore, and detection of workers that are stuck.

A restore may take hours, but it must make progress. A worker reports what it has fetched and converted. While a long
call of RocksDB prevents that, the bytes that its process reads and writes show progress.
Rule: only work counts as progress. A process that is frozen, or waits in vain, does none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from msgspec.structs import asdict

from kafka_eos.runtime.state.restore_progress import RestoreProgress

_MOVED = 1 << 20
"""Bytes that count as progress: idle clients only move a few bytes whenever their threads run."""
_SHOWN = 3
"""Most workers that are shown by name, the slowest first."""


_PATIENCE = 3.0
"""Seconds after which an attempt begins without the workers that have no core."""


class WaitDecision(Enum):
    """The response to workers that have not connected yet."""

    WAIT = auto()
    BEGIN = auto()
    """Begin without the missing workers, which join later."""
    START_OVER = auto()
    """Restart the wait: no worker has a core yet, which is not a failure."""
    FAIL = auto()


def decide_wait(connected: int, are_placed: Callable[[], bool], seconds: float, timeout: float) -> WaitDecision:
    """Decide whether to wait for missing workers. ``connected``: the number of workers that are connected.

    ``are_placed``: returns whether a missing worker has a core. ``seconds``: time since the last worker connected.
    """
    if seconds <= min(_PATIENCE, timeout):
        return WaitDecision.WAIT
    if are_placed():
        return WaitDecision.FAIL if seconds > timeout else WaitDecision.WAIT
    return WaitDecision.BEGIN if connected else WaitDecision.START_OVER


class MonitoredProcess(Protocol):
    """The properties of a worker process that the restore monitor reads."""

    @property
    def subtask(self) -> int: ...

    @property
    def pid(self) -> int: ...

    @property
    def io_bytes(self) -> int:
        """Return the bytes that the process has read and written since it began."""


P = TypeVar("P", bound=MonitoredProcess)


class RestoreMonitor(Generic[P]):
    """The restores of all workers of an attempt, and the detection of stuck ones.

    ``timeout`` and ``now`` are seconds, by the monotonic clock.
    """

    def __init__(self, workers: Sequence[P], timeout: float, now: float) -> None:
        self._timeout = timeout
        self._all, self._preparing = len(workers), {worker.subtask: worker for worker in workers}
        self._restored: dict[int, RestoreProgress] = {}
        self._progress_at = dict.fromkeys(self._preparing, now)
        """The time at which each worker last made progress."""
        self._moved = {subtask: worker.io_bytes for subtask, worker in self._preparing.items()}
        """Bytes that each process had read and written at that time."""

    def ready(self, subtask: int) -> None:
        del self._preparing[subtask]
        self._restored.pop(subtask, None)

    def record_progress(self, subtask: int, restored: RestoreProgress, now: float) -> None:
        """Record a worker's report of its restore."""
        self._restored[subtask] = restored
        self._see(subtask, now)

    def stuck(self, now: float) -> list[P]:
        """Return workers without progress for longer than the timeout."""
        return [worker for subtask, worker in self._preparing.items() if self._is_stuck(subtask, worker, now)]

    def describe(self, subtask: int) -> str:
        """Return a worker's last reported progress as text, or ""."""
        return f", at {self._restored[subtask]}" if subtask in self._restored else ""

    @property
    def summary(self) -> Mapping[str, object]:
        """Return the restore progress of all workers, for observers."""
        last = sorted(self._restored.items(), key=lambda item: item[1].bytes - item[1].of_bytes)
        ready = self._all - len(self._preparing)
        figures = [
            {"worker": subtask, "process": self._preparing[subtask].pid, **asdict(restored)}
            for subtask, restored in sorted(self._restored.items())
        ]
        lines = [f"worker {subtask} restores {restored}" for subtask, restored in last[:_SHOWN]]
        lines += [f"{len(last) - _SHOWN} more workers restore"] if len(last) > _SHOWN else []
        return {"text": "; ".join([*lines, f"{ready} of {self._all} ready"]), "ready": ready, "workers": figures}

    def _is_stuck(self, subtask: int, worker: P, now: float) -> bool:
        if now - self._progress_at[subtask] <= self._timeout:
            return False
        if worker.io_bytes - self._moved[subtask] < _MOVED:
            return True
        self._see(subtask, now)
        return False

    def _see(self, subtask: int, now: float) -> None:
        self._progress_at[subtask], self._moved[subtask] = now, self._preparing[subtask].io_bytes
