"""The workers of one attempt until all are ready: how far each is with its restore, and who has come to a standstill.

A restore may take hours. What counts is that it goes on: a worker tells what it has fetched and converted, and while a
long call of RocksDB keeps it from talking, the bytes that its process reads and writes tell the same.
Rule: only work counts as a sign of life. A process that is frozen, or waits in vain, does none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Generic, Protocol, TypeVar

from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.runtime.state.restore_progress import Restored
from kafka_eos.runtime.worker.control_messages import Message, Restoring

_TOLD_EVERY = 0.5
"""Seconds between two reports of one worker."""
_MOVED = 1 << 20
"""Bytes that a process reads or writes only for a purpose: idle clients move a few at each turn of their threads."""
_SHOWN = 3
"""Workers that are shown by name, the slowest first."""


class Teller:
    """The worker's side: tells the supervisor how far a restore is, not too often, and ends one that is called off."""

    def __init__(self, say: Callable[[Message], None], session: int, called_off: Callable[[], bool]) -> None:
        self._say, self._session, self._called_off = say, session, called_off
        self._told_at = 0.0

    def __call__(self, restored: Restored) -> None:
        if self._called_off():
            raise RestartFromCheckpoint("the restore was called off: the attempt has failed elsewhere")
        now = time.monotonic()
        if now - self._told_at >= _TOLD_EVERY:
            self._told_at = now
            self._say(Restoring(session=self._session, restored=restored))


class Process(Protocol):
    """What there is to see of a worker from outside."""

    @property
    def subtask(self) -> int: ...

    @property
    def pid(self) -> int: ...

    @property
    def moved(self) -> int:
        """Bytes that it has read and written since it began."""


P = TypeVar("P", bound=Process)


class Preparation(Generic[P]):
    """The supervisor's side. ``timeout`` and ``now`` are seconds, by the monotonic clock."""

    def __init__(self, workers: Sequence[P], timeout: float, now: float) -> None:
        self._timeout = timeout
        self._all, self._preparing = len(workers), {worker.subtask: worker for worker in workers}
        self._restored: dict[int, Restored] = {}
        self._came_on = dict.fromkeys(self._preparing, now)
        """When a worker was last known to have come further."""
        self._moved = {subtask: worker.moved for subtask, worker in self._preparing.items()}
        """Bytes that its process had moved then."""

    @property
    def done(self) -> bool:
        """Are all workers ready?"""
        return not self._preparing

    def ready(self, subtask: int) -> None:
        del self._preparing[subtask]
        self._restored.pop(subtask, None)

    def restored(self, subtask: int, restored: Restored, now: float) -> None:
        """A worker has told how far it is."""
        self._restored[subtask] = restored
        self._see(subtask, now)

    def stuck(self, now: float) -> list[P]:
        """Workers that have not come further for so long that they never will."""
        return [worker for subtask, worker in self._preparing.items() if self._is_stuck(subtask, worker, now)]

    def how_far(self, subtask: int) -> str:
        """What a worker last told, in words."""
        return f", at {self._restored[subtask]}" if subtask in self._restored else ""

    @property
    def facts(self) -> Mapping[str, object]:
        """For observers: a line of text, and the figures of each worker that restores."""
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
        if now - self._came_on[subtask] <= self._timeout:
            return False
        if worker.moved - self._moved[subtask] < _MOVED:
            return True
        self._see(subtask, now)
        return False

    def _see(self, subtask: int, now: float) -> None:
        self._came_on[subtask], self._moved[subtask] = now, self._preparing[subtask].moved
