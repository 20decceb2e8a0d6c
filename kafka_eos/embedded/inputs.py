"""The queues in front of a segment: rows and barriers that have arrived and are not processed yet.

Rule: a barrier keeps its place among the rows of its channel even when it was reported early, because what stands
before it belongs to its epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from kafka_eos.records import Batch

Rows: TypeAlias = "Batch[Any] | bytes"
"""From the same worker as they are, from another one as a frame of ``exchange.wire``."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A barrier in its place."""

    epoch: int
    at: float
    """When it arrived, on the worker's monotonic clock."""


class Queue(Protocol):
    """First in, first out; ``queue[0]`` is the next entry."""

    def append(self, entry: Rows | Marker, /) -> None: ...
    def popleft(self) -> Rows | Marker: ...
    def __getitem__(self, index: int, /) -> Rows | Marker: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Rows | Marker]: ...


@dataclass(slots=True)
class Input:
    """One exchange from one sender."""

    edge: int
    sender: int
    feedback: bool = False
    """The way back of a loop: it has no credits, because the loop would wait for itself."""
    queue: Queue = field(default_factory=lambda: deque[Any]())
    _markers: deque[Marker] = field(default_factory=deque)

    @property
    def channel(self) -> tuple[int, int]:
        """The name of the input in the gate."""
        return self.edge, self.sender

    def put(self, entry: Rows | Marker) -> None:
        self.queue.append(entry)
        if isinstance(entry, Marker):
            self._markers.append(entry)

    def take(self) -> Rows | Marker:
        entry = self.queue.popleft()
        if isinstance(entry, Marker):
            self._markers.popleft()
        return entry

    def before(self, epoch: int) -> Iterator[Rows]:
        """Rows that stand before the barrier of ``epoch``; all if it has not arrived."""
        for entry in self.queue:
            if isinstance(entry, Marker):
                if entry.epoch == epoch:
                    return
            else:
                yield entry

    def marker(self, epoch: int) -> Marker | None:
        return next((marker for marker in self._markers if marker.epoch == epoch), None)

    def oldest_marker(self) -> Marker | None:
        return self._markers[0] if self._markers else None

    @property
    def waiting(self) -> int:
        """Entries that are not processed."""
        return len(self.queue)
