"""The input queues of an operator chain: rows, barriers and watermarks that have arrived but are not processed yet.

Rules: a barrier keeps its place among the rows of its channel even if it was reported early, because the rows before it
belong to its epoch. A sender gets credit for each row once: when the row is processed, or, while its channel is
blocked, when it is queued here (``credit_early``). So credited rows are before uncredited ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field

from kafka_eos.core.records import Batch, Watermark
from kafka_eos.runtime.exchange.spilling_queue import size_of

BatchOrFrame: TypeAlias = "Batch[Any] | bytes"
"""Rows of the same worker as a batch, of another one as a frame."""


class Barrier(Struct, frozen=True):
    """A barrier queued at its place among the rows of its channel."""

    epoch: int
    at: float
    """Its time of arrival, on the worker's monotonic clock."""
    aligned: bool = False
    """Its epoch must not store in-flight rows."""


QueueEntry: TypeAlias = "BatchOrFrame | Barrier | Watermark"
Entry = TypeVar("Entry")


class Queue(Protocol[Entry]):
    """First in, first out; ``queue[0]`` is the next entry."""

    def append(self, entry: Entry, /) -> None: ...
    def popleft(self) -> Entry: ...
    def __getitem__(self, index: int, /) -> Entry: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Entry]: ...


class InputChannel(Struct):
    """The receiving end of one exchange from one sender."""

    edge: int
    sender: int
    feedback: bool = False
    """The feedback channel of a loop: it has no credits, because the loop would wait for itself."""
    queue: Queue[QueueEntry] = field(default_factory=lambda: deque[Any]())
    spill_limit: int = 0
    """Bytes that may be credited early while the channel is blocked; 0: its sender waits."""
    _markers: deque[Barrier] = field(default_factory=deque)
    _unpaid: deque[int] = field(default_factory=deque)
    """Sizes of the last entries of the queue, in bytes, in order of arrival: those not credited yet."""
    _paid: deque[int] = field(default_factory=deque)
    """Sizes of the entries before them."""
    _held: int = 0
    """The sum of ``_paid``."""

    @property
    def channel(self) -> tuple[int, int]:
        """Return the name of the input in the gate."""
        return self.edge, self.sender

    def put(self, entry: QueueEntry) -> None:
        self.queue.append(entry)
        self._unpaid.append(size_of(entry))
        if isinstance(entry, Barrier):
            self._markers.append(entry)

    def take(self) -> QueueEntry:
        entry = self.queue.popleft()
        if self._paid:
            self._held -= self._paid.popleft()
        else:
            self._unpaid.popleft()
        if isinstance(entry, Barrier):
            self._markers.popleft()
        return entry

    def credit_early(self) -> int:
        """Credit queued rows of a blocked channel before they are processed; return the bytes."""
        before = self._held
        while self._unpaid and self._held < self.spill_limit:
            self._paid.append(self._unpaid.popleft())
            self._held += self._paid[-1]
        return self._held - before

    @property
    def credit_due(self) -> int:
        """Return how many bytes of credit to grant when the next entry is processed."""
        return 0 if self._paid else self._unpaid[0]

    @property
    def uncredited(self) -> int:
        """Return how many entries were not credited yet."""
        return len(self._unpaid)

    def iterate_before(self, epoch: int) -> Iterator[BatchOrFrame]:
        """Yield the queued rows before the barrier of an epoch."""
        for entry in self.queue:
            if isinstance(entry, Barrier):
                if entry.epoch == epoch:
                    return
            elif not isinstance(entry, Watermark):
                yield entry

    def find_barrier(self, epoch: int) -> Barrier | None:
        return next((marker for marker in self._markers if marker.epoch == epoch), None)

    @property
    def markers(self) -> Sequence[Barrier]:
        """Return the queued barriers, oldest first. Some may belong to a past epoch."""
        return self._markers

    @property
    def queued(self) -> int:
        """Return how many entries are not processed yet."""
        return len(self.queue)
