"""Which operator, and which input record, a thread or task works on: for its log lines.

Rule: it costs a few calls a batch, and nothing a row. How far a loop over rows has come is asked of its iterator, and
only when somebody logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from operator import length_hint
from typing import Any, Final, Generic, TypeAlias, TypeVar

from kafka_eos.core.records import Batch

T = TypeVar("T")

_UNKNOWN: Final = -1
_WHERE: Final = re.compile(r"(.+)/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Position:
    """The operator at work, and the input record that made the row at hand. Empty or -1: not known."""

    operator: str
    topic: str = ""
    partition: int = _UNKNOWN
    offset: int = _UNKNOWN

    @classmethod
    def parse(cls, operator: str, where: str) -> Position:
        """``where`` as errors name a record: topic/partition/offset. Anything else names none."""
        found = _WHERE.fullmatch(where)
        return cls(operator, found[1], int(found[2]), int(found[3])) if found else cls(operator)

    def __str__(self) -> str:
        where = f"{self.topic}/{self.partition}/{self.offset}" if self.offset >= 0 else self.topic
        return f"operator {self.operator}, record {where}" if where else f"operator {self.operator}"


_operator: ContextVar[str | None] = ContextVar("kafka_eos_operator", default=None)
_At: TypeAlias = tuple[Batch[Any], "Iterator[Any] | None", int]
"""The batch; what is left of its rows, and how many there were. Without an iterator: the number of its row."""
_rows: ContextVar[_At | None] = ContextVar("kafka_eos_rows", default=None)


def enter(operator: str) -> None:
    """This operator works from here on, on no row yet."""
    _operator.set(operator)
    _rows.set(None)


def leave() -> None:
    """No operator works."""
    _operator.set(None)
    _rows.set(None)


def at(batch: Batch[Any], index: int) -> None:
    """The operator works on this row of the batch."""
    _rows.set((batch, None, index))


class Rows(Generic[T]):
    """Values, one a row of a batch, to be looped over once: the loop tells log lines how far it has come."""

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


def position() -> Position | None:
    """What is worked on in this thread or task; None if no operator is at work."""
    return _position(_operator.get(), _rows.get())


def position_in(context: Context) -> Position | None:
    """What is worked on in this context, which another thread may be running."""
    return _position(context.get(_operator), context.get(_rows))


def _position(operator: str | None, rows: _At | None) -> Position | None:
    if operator is None:
        return None
    if rows is None:
        return Position(operator)
    batch, left, number = rows
    index = number if left is None else number - length_hint(left) - 1
    origin = batch.origin
    if not 0 <= index < len(batch.rows):
        return Position(operator, origin.topic)
    row = batch.rows[index]
    return Position(operator, origin.topic, origin.partitions[row], origin.offsets[row])
