"""What each operator of a chain has done: rows that came and left, the time that its own code took, and what the
user's function counts.

Rule: what it counts by itself it counts a batch at a time, never a row. Time is an operator's own: while what it has
made goes on to the next one, its clock stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from kafka_eos._util import log_context
from kafka_eos.core.records import Batch


@dataclass(slots=True)
class Counted:
    """A counter of the user's function; see ``functions.Counter``."""

    count: int = 0

    def inc(self, n: int = 1) -> None:
        if type(n) is not int or n < 0:
            raise ValueError(f"a counter grows by a whole number, 0 or more: not inc({n!r})")
        self.count += n


@dataclass(slots=True)
class Worked:
    """Of one operator in one subtask, since its chain was opened. ``busy`` in seconds."""

    operator: str
    busy: float = 0.0
    came: int = 0
    """Rows that came in. At an exchange: in the subtask that sends them."""
    left: int = 0
    """Rows that went on, to all who read them: each once. At an exchange: in the subtask that gets them."""
    counters: dict[str, Counted] = field(default_factory=dict)
    """Those of the user's function, by name."""

    def counter(self, name: str) -> Counted:
        """The same for each call with one name."""
        return self.counters.setdefault(name, Counted())

    @property
    def counted(self) -> dict[str, int]:
        """What they have come to."""
        return {name: counter.count for name, counter in self.counters.items()}

    def running(self, made: Callable[[], Iterable[Batch[Any]]]) -> Iterator[Batch[Any]]:
        """What ``made`` gives, one batch after another, with the time that making them takes."""
        batches: Iterator[Batch[Any]] | None = None
        while True:
            began = perf_counter()
            log_context.enter(self.operator)
            batches = iter(made()) if batches is None else batches
            batch = next(batches, None)
            log_context.leave()
            self.busy += perf_counter() - began
            if batch is None:
                return
            yield batch
