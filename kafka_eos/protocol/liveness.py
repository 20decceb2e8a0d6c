"""Liveness of an attempt's subtasks: making progress, stalled, or unresponsive.

A subtask has one thread that processes rows. If that thread makes no progress, there are two cases:
- Its process works: user code loops, or waits for a lock or a disk.
- Its process is frozen: it is stopped, or a call in C prevents all its threads from running.
A message from the processing thread proves that the process runs and makes progress. A heartbeat, sent by another
thread, proves that the process runs, and states how long ago the processing thread last made progress.
Pure. Rule: a heartbeat is not progress. A live process does not hide a thread that hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

_NEVER: Final = float("-inf")


class Stall(Struct, frozen=True):
    """A subtask that has made no progress for some time.

    ``alive``: its process sends heartbeats. ``at``: the operator and the record, as text, from its last heartbeat.
    """

    subtask: int
    seconds: float
    alive: bool
    at: str

    def __str__(self) -> str:
        if not self.alive:
            return f"subtask {self.subtask} sends no heartbeats: its process is frozen"
        return f"subtask {self.subtask} is alive, but the thread that processes its rows makes no progress" + (
            f", in {self.at}" if self.at else ""
        )


class SubtaskLiveness(Struct, frozen=True):
    """The times at which each subtask last made progress, and its process last sent a heartbeat."""

    progress_at: Mapping[int, float] = field(default_factory=dict)
    heartbeat_at: Mapping[int, float] = field(default_factory=dict)
    locations: Mapping[int, str] = field(default_factory=dict)
    """The operator and record of each processing thread, from its last heartbeat."""

    @classmethod
    def of(cls, subtasks: Collection[int], now: float) -> SubtaskLiveness:
        """Return a state in which all subtasks are well now: the first ready subtask had nothing to send until now."""
        return cls(dict.fromkeys(subtasks, now), dict.fromkeys(subtasks, now))

    def record_progress(self, subtask: int, now: float) -> SubtaskLiveness:
        """Record a message from a subtask's processing thread."""
        return SubtaskLiveness(
            {**self.progress_at, subtask: now}, {**self.heartbeat_at, subtask: now}, {**self.locations, subtask: ""}
        )

    def record_heartbeat(self, subtask: int, stalled_for: float, at: str, now: float) -> SubtaskLiveness:
        """Record a heartbeat of a worker process."""
        stepped = max(self.progress_at.get(subtask, _NEVER), now - stalled_for)
        return SubtaskLiveness(
            {**self.progress_at, subtask: stepped}, {**self.heartbeat_at, subtask: now}, {**self.locations, subtask: at}
        )

    def extend(self, seconds: float) -> SubtaskLiveness:
        """Extend all deadlines by the seconds in which no message was received."""
        stepped = {subtask: at + seconds for subtask, at in self.progress_at.items()}
        return replace(
            self, progress_at=stepped, heartbeat_at={subtask: at + seconds for subtask, at in self.heartbeat_at.items()}
        )

    def stalled_since(self, since: float) -> frozenset[int]:
        """Return the subtasks without progress since the given time."""
        return frozenset(subtask for subtask, at in self.progress_at.items() if at < since)

    def stall_of(self, subtask: int, now: float, silence: float) -> Stall:
        """Return what is known about a stalled subtask.

        Its process counts as frozen after ``silence`` seconds without a heartbeat.
        """
        alive = now - self.heartbeat_at.get(subtask, now) <= silence
        return Stall(subtask, now - self.progress_at.get(subtask, now), alive, self.locations.get(subtask, ""))
