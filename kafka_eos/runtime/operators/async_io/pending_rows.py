"""The rows that wait for their answers, and what may be handed on.

Pure. Rules: each row is handed on once, with its answer. In order: no row before one that came earlier. As answered:
at once. In both, a watermark goes on when all rows that came before it have; what came behind it may go before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kafka_eos.core.records import Batch, Watermark


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of the requests for a value: ``value``, unless there is an ``error``."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """Rows of one batch that are handed on, with their answers. ``indices`` are ascending."""

    batch: Batch[Any]
    indices: Sequence[int]
    answers: Sequence[Answer]


@dataclass(slots=True)
class _Row:
    batch: Batch[Any]
    index: int
    answer: Answer | None = None


class Held:
    """Rows by ticket: the number of their arrival."""

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
        """Rows that are not handed on."""
        return len(self._rows) + len(self._due)

    def add(self, batch: Batch[Any]) -> range:
        """Take in rows; returns their tickets."""
        first, self._next = self._next, self._next + len(batch)
        tickets = range(first, self._next)
        self._rows.update((ticket, _Row(batch, index)) for index, ticket in enumerate(tickets))
        return tickets

    def mark(self, watermark: Watermark) -> None:
        """Event time has come so far behind all rows that are held."""
        if self._watermarks and self._watermarks[-1][0] == self._next:
            self._watermarks.pop()
        self._watermarks.append((self._next, watermark))

    def barrier(self) -> bool:
        """A barrier passes the rows. Has one of them waited since the first that did?"""
        if self._first_barrier is None:
            self._first_barrier = self._next
        return self._first < self._first_barrier

    def answer(self, ticket: int, answer: Answer) -> None:
        self._rows[ticket].answer = answer
        if not self._ordered:
            self._due.append(self._rows.pop(ticket))

    def due(self) -> Iterator[Answered | Watermark]:
        """What is to be handed on now, and is held no longer once it has come out."""
        while True:
            rows = self._take_in_order() if self._ordered else self._take_all()
            yield from rows
            if not self._watermarks or self._first < self._watermarks[0][0]:
                return
            yield self._watermarks.popleft()[1]

    def rows(self) -> Iterator[Batch[Any]]:
        """All rows that are not handed on, in the order of their arrival, as they came."""
        waiting = [*self._due, *self._rows.values()]
        for _, group in groupby(waiting, key=lambda row: id(row.batch)):
            found = list(group)
            yield found[0].batch.take(sorted(row.index for row in found))

    @property
    def _first(self) -> int:
        """The ticket of the first row that has not been handed on."""
        return next(iter(self._rows), self._next)

    def _take_in_order(self) -> Iterator[Answered]:
        """Up to the first watermark, or the first row without an answer."""
        until = self._watermarks[0][0] if self._watermarks else self._next
        found: list[_Row] = []
        while self._rows:
            ticket, row = next(iter(self._rows.items()))
            if row.answer is None or ticket >= until:
                break
            del self._rows[ticket]
            found.append(row)
        yield from _by_batch(found)

    def _take_all(self) -> Iterator[Answered]:
        found, self._due = self._due, []
        by_batch: dict[int, list[_Row]] = {}
        for row in found:
            by_batch.setdefault(id(row.batch), []).append(row)
        for rows in by_batch.values():
            yield from _by_batch(sorted(rows, key=lambda row: row.index))


def _by_batch(rows: Sequence[_Row]) -> Iterator[Answered]:
    for _, group in groupby(rows, key=lambda row: id(row.batch)):
        found = list(group)
        answers = [row.answer for row in found if row.answer is not None]
        yield Answered(found[0].batch, [row.index for row in found], answers)
