"""Buffers that collect outgoing rows into frames of a useful size.

A frame costs its receiver as much as a batch. So rows for one worker are buffered until there are ``enough``, or until
the first of them has waited for the buffer timeout (Flink's). With a timeout of 0 nothing waits.

Rule: rows of one target keep their order, and a barrier is sent only after ``flush``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from kafka_eos.runtime.exchange.wire_format import get_frame_key
from kafka_eos.runtime.operators.exchanged_rows import EncodedRows

Send = Callable[[int, Sequence[EncodedRows]], None]
"""Receives a target subtask, and rows that fit into one frame."""


class _TargetBuffer(Struct):
    parts: list[EncodedRows] = field(default_factory=list)
    rows: int = 0
    since: float = 0.0


class OutputBuffer:
    """Rows that one exchange buffers for other workers; timeout in seconds."""

    def __init__(self, send: Send, enough: int, timeout: float) -> None:
        self._send = send
        self._enough = enough
        self._timeout = timeout
        self._waiting: dict[int, _TargetBuffer] = {}

    def add(self, target: int, part: EncodedRows) -> None:
        """Add rows for another worker, to be sent now or soon."""
        if not self._timeout:
            self._send(target, [part])
            return
        waiting = self._waiting.setdefault(target, _TargetBuffer())
        if waiting.parts and get_frame_key(waiting.parts[0].batch) != get_frame_key(part.batch):
            self._release(target, waiting)
        if not waiting.parts:
            waiting.since = time.monotonic()
        waiting.parts.append(part)
        waiting.rows += len(part.batch)
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
        return not any(waiting.parts for waiting in self._waiting.values())

    def _release(self, target: int, waiting: _TargetBuffer) -> None:
        if waiting.parts:
            self._send(target, waiting.parts)
            waiting.parts, waiting.rows = [], 0
