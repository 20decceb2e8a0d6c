"""The operator and input record that a thread or task works on, for its log lines.

Rule: it costs a few calls per batch, and nothing per row. The position of a loop over rows is read from its iterator,
and only when a line is logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextvars import Context, ContextVar
from operator import length_hint
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from kafka_eos.core.records import Batch

T = TypeVar("T")

_UNKNOWN: Final = -1
_WHERE: Final = re.compile(r"(.+)/(\d+)/(\d+)")


class RowPosition(Struct, frozen=True):
    """The operator at work, and the input record of the current row. Empty or -1: unknown."""

    operator: str
    topic: str = ""
    partition: int = _UNKNOWN
    offset: int = _UNKNOWN

    @classmethod
    def parse(cls, operator: str, where: str) -> RowPosition:
        """Parse ``where`` as errors name a record: topic/partition/offset. Any other text yields no record."""
        found = _WHERE.fullmatch(where)
        return cls(operator, found[1], int(found[2]), int(found[3])) if found else cls(operator)

    def __str__(self) -> str:
        where = f"{self.topic}/{self.partition}/{self.offset}" if self.offset >= 0 else self.topic
        return f"operator {self.operator}, record {where}" if where else f"operator {self.operator}"


_operator: ContextVar[str | None] = ContextVar("kafka_eos_operator", default=None)
_At: TypeAlias = tuple[Batch[Any], "Iterator[Any] | None", int]
"""The batch, the iterator over its rows, and its row count. Without an iterator: the number of the row."""
_rows: ContextVar[_At | None] = ContextVar("kafka_eos_rows", default=None)


def enter_operator(operator: str) -> None:
    """Set the operator at work in this thread or task."""
    _operator.set(operator)
    _rows.set(None)


def leave_operator() -> None:
    """Clear the operator at work."""
    _operator.set(None)
    _rows.set(None)


def set_row(batch: Batch[Any], index: int) -> None:
    """Set the row of the batch at work."""
    _rows.set((batch, None, index))


class TrackedRows(Generic[T]):
    """Values of a batch whose loop position log lines can show."""

    def __init__(self, batch: Batch[Any], values: Sequence[T]) -> None:
        self._batch, self._values = batch, values

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __iter__(self) -> Iterator[T]:
        left = iter(self._values)
        _rows.set((self._batch, left, len(self._values)))
        return left


def current_position() -> RowPosition | None:
    """Return what this thread or task is working on."""
    return _position(_operator.get(), _rows.get())


def position_in(context: Context) -> RowPosition | None:
    """Return the position in a context that another thread may be running."""
    return _position(context.get(_operator), context.get(_rows))


def _position(operator: str | None, rows: _At | None) -> RowPosition | None:
    if operator is None:
        return None
    if rows is None:
        return RowPosition(operator)
    batch, left, number = rows
    index = number if left is None else number - length_hint(left) - 1
    origin = batch.origin
    if not 0 <= index < len(batch.origin_rows):
        return RowPosition(operator, origin.topic)
    row = batch.origin_rows[index]
    return RowPosition(operator, origin.topic, origin.partitions[row], origin.offsets[row])
