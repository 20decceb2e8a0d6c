"""The queues in front of a segment: rows, barriers and watermarks that have arrived and are not processed yet.

Rules: a barrier keeps its place among the rows of its channel even when it was reported early, because what stands
before it belongs to its epoch. A sender gets credit for each row once: when it is processed, or, while its channel is
blocked, when it is held here (``hold``). So what is paid for stands before what is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from kafka_eos.core.records import Batch, Watermark
from kafka_eos.runtime.exchange.spilling_queue import size_of

Rows: TypeAlias = "Batch[Any] | bytes"
"""From the same worker as they are, from another one as a frame of ``runtime.exchange.wire_format``."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A barrier in its place."""

    epoch: int
    at: float
    """When it arrived, on the worker's monotonic clock."""
    aligned: bool = False
    """Its epoch must leave nothing under way."""


Waiting: TypeAlias = "Rows | Marker | Watermark"
Entry = TypeVar("Entry")


class Queue(Protocol[Entry]):
    """First in, first out; ``queue[0]`` is the next entry."""

    def append(self, entry: Entry, /) -> None: ...
    def popleft(self) -> Entry: ...
    def __getitem__(self, index: int, /) -> Entry: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Entry]: ...


@dataclass(slots=True)
class Input:
    """One exchange from one sender."""

    edge: int
    sender: int
    feedback: bool = False
    """The way back of a loop: it has no credits, because the loop would wait for itself."""
    queue: Queue[Waiting] = field(default_factory=lambda: deque[Any]())
    may_hold: int = 0
    """Bytes that may be held here while the channel is blocked; 0: its sender waits."""
    _markers: deque[Marker] = field(default_factory=deque)
    _unpaid: deque[int] = field(default_factory=deque)
    """Sizes of the last entries of the queue, in bytes, as they came: those whose sender has no credit back."""
    _paid: deque[int] = field(default_factory=deque)
    """Sizes of those before them."""
    _held: int = 0
    """Their sum."""

    @property
    def channel(self) -> tuple[int, int]:
        """The name of the input in the gate."""
        return self.edge, self.sender

    def put(self, entry: Waiting) -> None:
        self.queue.append(entry)
        self._unpaid.append(size_of(entry))
        if isinstance(entry, Marker):
            self._markers.append(entry)

    def take(self) -> Waiting:
        entry = self.queue.popleft()
        if self._paid:
            self._held -= self._paid.popleft()
        else:
            self._unpaid.popleft()
        if isinstance(entry, Marker):
            self._markers.popleft()
        return entry

    def hold(self) -> int:
        """Hold what waits here, as far as it may be held; returns bytes of credit that the sender gets for it."""
        before = self._held
        while self._unpaid and self._held < self.may_hold:
            self._paid.append(self._unpaid.popleft())
            self._held += self._paid[-1]
        return self._held - before

    @property
    def owed(self) -> int:
        """Bytes of credit that the sender gets when the next entry is processed."""
        return 0 if self._paid else self._unpaid[0]

    @property
    def unpaid(self) -> int:
        """Entries whose sender waits."""
        return len(self._unpaid)

    def before(self, epoch: int) -> Iterator[Rows]:
        """Rows that stand before the barrier of ``epoch``; all if it has not arrived."""
        for entry in self.queue:
            if isinstance(entry, Marker):
                if entry.epoch == epoch:
                    return
            elif not isinstance(entry, Watermark):
                yield entry

    def marker(self, epoch: int) -> Marker | None:
        return next((marker for marker in self._markers if marker.epoch == epoch), None)

    @property
    def markers(self) -> Sequence[Marker]:
        """Barriers that have arrived, oldest first. Of some the epoch may be over."""
        return self._markers

    @property
    def waiting(self) -> int:
        """Entries that are not processed."""
        return len(self.queue)
