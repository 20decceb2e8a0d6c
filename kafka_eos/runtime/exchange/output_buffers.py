"""Rows on their way out, gathered into frames that are worth sending.

A frame costs its receiver as much as a batch, so rows for one worker wait for company: until there are ``enough``, or
until the first of them has waited for the buffer timeout (Flink's). With a timeout of 0 nothing waits.

Rule: rows of one target keep their order, and a barrier is sent only after ``flush``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_eos.core.records import Batch
from kafka_eos.runtime.exchange.wire_format import alike

Send = Callable[[int, Sequence[Batch[Any]]], None]
"""Target subtask, and batches that one frame can hold."""


@dataclass(slots=True)
class _Waiting:
    batches: list[Batch[Any]] = field(default_factory=list)
    rows: int = 0
    since: float = 0.0


class Outgoing:
    """What waits for the other workers at one exchange. ``timeout`` in seconds."""

    def __init__(self, send: Send, enough: int, timeout: float) -> None:
        self._send, self._enough, self._timeout = send, enough, timeout
        self._waiting: dict[int, _Waiting] = {}

    def add(self, target: int, batch: Batch[Any]) -> None:
        """Rows for another worker, to be sent now or soon."""
        if not self._timeout:
            self._send(target, [batch])
            return
        waiting = self._waiting.setdefault(target, _Waiting())
        if waiting.batches and alike(waiting.batches[0]) != alike(batch):
            self._release(target, waiting)
        if not waiting.batches:
            waiting.since = time.monotonic()
        waiting.batches.append(batch)
        waiting.rows += len(batch)
        if waiting.rows >= self._enough:
            self._release(target, waiting)

    def flush(self) -> None:
        """Send everything."""
        for target, waiting in self._waiting.items():
            self._release(target, waiting)

    def flush_old(self, now: float) -> None:
        """Send what has waited long enough."""
        for target, waiting in self._waiting.items():
            if now - waiting.since >= self._timeout:
                self._release(target, waiting)

    @property
    def empty(self) -> bool:
        return not any(waiting.batches for waiting in self._waiting.values())

    def _release(self, target: int, waiting: _Waiting) -> None:
        if waiting.batches:
            self._send(target, waiting.batches)
            waiting.batches, waiting.rows = [], 0
