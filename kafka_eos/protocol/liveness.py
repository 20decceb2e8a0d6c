"""Who of an attempt's subtasks comes on, who only lives, and who gives no sign of life.

A subtask has one thread that processes rows. When that one takes no step for long, its process may still be well: code
of a user loops, waits for a lock, or for a disk. Or nothing in the process moves: it is stopped, or a call in C keeps
all its threads from running. A word of the thread itself tells of both; a pulse, which another thread gives, tells that
the process lives and how long ago the last step was.

Pure. Rule: a pulse is no step. A process that lives hides no thread that hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class Still:
    """A subtask that has taken no step for some time.

    ``alive``: its process is, and tells; ``at``: the operator and the record, in words, as far as it has told
    """

    subtask: int
    seconds: float
    alive: bool
    at: str

    def __str__(self) -> str:
        if not self.alive:
            return f"subtask {self.subtask} gives no sign of life: its whole process stands still"
        return f"subtask {self.subtask} lives, and the thread that processes its rows does not come on" + (
            f", in {self.at}" if self.at else ""
        )


@dataclass(frozen=True, slots=True)
class Vitals:
    """When each subtask took its last step, and when its process last gave a sign of life."""

    stepped: Mapping[int, float] = field(default_factory=dict)
    alive: Mapping[int, float] = field(default_factory=dict)
    at: Mapping[int, str] = field(default_factory=dict)
    """Where the newest pulse says that the thread is."""

    @classmethod
    def of(cls, subtasks: Collection[int], now: float) -> Vitals:
        """All were well just now: who was ready first has had nothing to say until then."""
        return cls(dict.fromkeys(subtasks, now), dict.fromkeys(subtasks, now))

    def word(self, subtask: int, now: float) -> Vitals:
        """The thread of a subtask that processes rows has spoken."""
        return Vitals({**self.stepped, subtask: now}, {**self.alive, subtask: now}, {**self.at, subtask: ""})

    def pulse(self, subtask: int, standing: float, at: str, now: float) -> Vitals:
        """The process of a subtask lives; its thread took its last step so many seconds ago, and is at work there."""
        stepped = max(self.stepped.get(subtask, _NEVER), now - standing)
        return Vitals({**self.stepped, subtask: stepped}, {**self.alive, subtask: now}, {**self.at, subtask: at})

    def deaf(self, seconds: float) -> Vitals:
        """For so long nobody has listened: what was not heard meanwhile proves nothing."""
        stepped = {subtask: at + seconds for subtask, at in self.stepped.items()}
        return replace(self, stepped=stepped, alive={subtask: at + seconds for subtask, at in self.alive.items()})

    def still(self, since: float) -> frozenset[int]:
        """Subtasks that have taken no step since that time."""
        return frozenset(subtask for subtask, at in self.stepped.items() if at < since)

    def of_still(self, subtask: int, now: float, silence: float) -> Still:
        """How it is with one of them. After ``silence`` seconds without a sign of life its process stands still."""
        alive = now - self.alive.get(subtask, now) <= silence
        return Still(subtask, now - self.stepped.get(subtask, now), alive, self.at.get(subtask, ""))
