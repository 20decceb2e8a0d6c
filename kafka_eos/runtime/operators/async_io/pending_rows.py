"""Rows that wait for their responses, and the order in which they are emitted.

Pure. Rules: each row is emitted once, with its response. Ordered: no row before an earlier one. Unordered: at once. In
both cases a watermark is emitted after all rows that arrived before it; unordered rows behind it may precede it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from kafka_eos.core.records import Batch, Watermark


class RequestResult(Struct, frozen=True):
    """Result of a request: a value, or an error."""

    value: Any = None
    error: Exception | None = None


class AnsweredRows(Struct, frozen=True):
    """Rows of one batch that are ready to be emitted, with their results. ``indices`` are ascending."""

    batch: Batch[Any]
    indices: Sequence[int]
    answers: Sequence[RequestResult]


class _Row(Struct):
    batch: Batch[Any]
    index: int
    answer: RequestResult | None = None


class PendingRows:
    """Rows that wait for their requests, by ticket, and the watermarks behind them."""

    def __init__(self, ordered: bool) -> None:
        self._ordered, self._next = ordered, 0
        self._rows: OrderedDict[int, _Row] = OrderedDict()
        self._due: list[_Row] = []
        """Answered, where the order does not matter; no longer in ``_rows``."""
        self._first_barrier: int | None = None
        """The first ticket behind it; None as long as there was none."""
        self._watermarks: deque[tuple[int, Watermark]] = deque()
        """Each with the first ticket behind it."""

    def __len__(self) -> int:
        """Return how many rows were not emitted yet."""
        return len(self._rows) + len(self._due)

    def add(self, batch: Batch[Any]) -> range:
        """Add rows; return their tickets."""
        first, self._next = self._next, self._next + len(batch)
        tickets = range(first, self._next)
        self._rows.update((ticket, _Row(batch, index)) for index, ticket in enumerate(tickets))
        return tickets

    def add_watermark(self, watermark: Watermark) -> None:
        """Queue a watermark behind all pending rows."""
        if self._watermarks and self._watermarks[-1][0] == self._next:
            self._watermarks.pop()
        self._watermarks.append((self._next, watermark))

    def pass_barrier(self) -> bool:
        """Mark a barrier behind the rows; return whether a row has been pending since the session's first barrier."""
        if self._first_barrier is None:
            self._first_barrier = self._next
        return self._first < self._first_barrier

    def complete(self, ticket: int, answer: RequestResult) -> None:
        self._rows[ticket].answer = answer
        if not self._ordered:
            self._due.append(self._rows.pop(ticket))

    def take_ready(self) -> Iterator[AnsweredRows | Watermark]:
        """Yield and remove what can be emitted now."""
        while True:
            rows = self._take_in_order() if self._ordered else self._take_all()
            yield from rows
            if not self._watermarks or self._first < self._watermarks[0][0]:
                return
            yield self._watermarks.popleft()[1]

    def rows(self) -> Iterator[Batch[Any]]:
        """Yield all rows that were not emitted yet, unchanged, in the order of their arrival."""
        waiting = [*self._due, *self._rows.values()]
        for _, group in groupby(waiting, key=lambda row: id(row.batch)):
            found = list(group)
            yield found[0].batch.take(sorted(row.index for row in found))

    @property
    def _first(self) -> int:
        """Return the ticket of the first row that was not emitted yet."""
        return next(iter(self._rows), self._next)

    def _take_in_order(self) -> Iterator[AnsweredRows]:
        """Yield rows up to the first watermark, or the first row without a response."""
        until = self._watermarks[0][0] if self._watermarks else self._next
        found: list[_Row] = []
        while self._rows:
            ticket, row = next(iter(self._rows.items()))
            if row.answer is None or ticket >= until:
                break
            del self._rows[ticket]
            found.append(row)
        yield from _by_batch(found)

    def _take_all(self) -> Iterator[AnsweredRows]:
        found, self._due = self._due, []
        by_batch: dict[int, list[_Row]] = {}
        for row in found:
            by_batch.setdefault(id(row.batch), []).append(row)
        for rows in by_batch.values():
            yield from _by_batch(sorted(rows, key=lambda row: row.index))


def _by_batch(rows: Sequence[_Row]) -> Iterator[AnsweredRows]:
    for _, group in groupby(rows, key=lambda row: id(row.batch)):
        found = list(group)
        answers = [row.answer for row in found if row.answer is not None]
        yield AnsweredRows(found[0].batch, [row.index for row in found], answers)
