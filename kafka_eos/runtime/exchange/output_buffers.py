"""Buffers that collect outgoing rows into frames of a useful size.

A frame costs its receiver as much as a batch. So rows for one worker are buffered until there are ``enough``, or until
the first of them has waited for the buffer timeout (Flink's). With a timeout of 0 nothing waits.

Rule: rows of one target keep their order, and a barrier is sent only after ``flush``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_eos.core.records import Batch
from kafka_eos.runtime.exchange.wire_format import get_frame_key

Send = Callable[[int, Sequence[Batch[Any]]], None]
"""Receives a target subtask, and batches that fit into one frame."""


@dataclass(slots=True)
class _TargetBuffer:
    batches: list[Batch[Any]] = field(default_factory=list)
    rows: int = 0
    since: float = 0.0


class OutputBuffer:
    """Rows that one exchange buffers for other workers; timeout in seconds."""

    def __init__(self, send: Send, enough: int, timeout: float) -> None:
        self._send = send
        self._enough = enough
        self._timeout = timeout
        self._waiting: dict[int, _TargetBuffer] = {}

    def add(self, target: int, batch: Batch[Any]) -> None:
        """Add rows for another worker, to be sent now or soon."""
        if not self._timeout:
            self._send(target, [batch])
            return
        waiting = self._waiting.setdefault(target, _TargetBuffer())
        if waiting.batches and get_frame_key(waiting.batches[0]) != get_frame_key(batch):
            self._release(target, waiting)
        if not waiting.batches:
            waiting.since = time.monotonic()
        waiting.batches.append(batch)
        waiting.rows += len(batch)
        if waiting.rows >= self._enough:
            self._release(target, waiting)

    def flush(self) -> None:
        """Send all buffered rows."""
        for target, waiting in self._waiting.items():
            self._release(target, waiting)

    def flush_old(self, now: float) -> None:
        """Send rows whose buffer timeout has passed."""
        for target, waiting in self._waiting.items():
            if now - waiting.since >= self._timeout:
                self._release(target, waiting)

    @property
    def empty(self) -> bool:
        return not any(waiting.batches for waiting in self._waiting.values())

    def _release(self, target: int, waiting: _TargetBuffer) -> None:
        if waiting.batches:
            self._send(target, waiting.batches)
            waiting.batches, waiting.rows = [], 0
