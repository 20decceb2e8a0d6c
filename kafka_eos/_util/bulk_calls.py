"""Calls of user functions and codecs for many values, by loops that run in C.

A StopIteration that escapes from the function ends such a loop like the end of the values: the remaining values would
be lost silently. Rule: each value has a result, or an error that was reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

from kafka_eos.core.fault_attribution import as_exception

T = TypeVar("T")

STOP_ITERATION_ESCAPED: Final = "StopIteration escaped from the function or codec"


class TimedRows(Collection[Any]):
    """The rows that ``map_rows`` takes within some seconds, and at least one. It leaves the others."""

    def __init__(self, rows: Sequence[Any], seconds: float) -> None:
        self._rows, self._seconds = rows, seconds

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: object) -> bool:
        return row in self._rows

    def __iter__(self) -> Iterator[Any]:
        until = time.monotonic() + self._seconds
        for row in self._rows:
            yield row
            if time.monotonic() > until:
                raise _TimeOver


class _TimeOver(Exception):
    """No further row is taken."""


def map_rows(
    fn: Callable[..., T], *columns: Collection[Any], refuse: Callable[[int, Exception], None]
) -> tuple[list[T], list[int]]:
    """Map a function over rows; return the results and the indices of failed rows: together all rows, unless the
    column is one of ``TimedRows``.

    ``refuse(index, error)`` is called for each failed row, in order; an exception from it ends the loop. ``fn`` is not
    called again on a row to learn its error: the second call may succeed.
    """
    done: list[T] = []
    refused: list[int] = []
    todo, count = [iter(column) for column in columns], len(columns[0])
    while len(done) + len(refused) < count:
        error: Exception = RuntimeError(STOP_ITERATION_ESCAPED)
        try:
            done.extend(map(fn, *todo))
            if len(done) + len(refused) == count:
                break
        except _TimeOver:
            break
        except BaseException as raised:  # noqa: BLE001 - a function may raise anything; ``refuse`` judges it
            error = as_exception(raised)
        refused.append(len(done) + len(refused))
        refuse(refused[-1], error)
    return done, refused


def map_all(fn: Callable[[Any], T], values: Sequence[Any]) -> list[T]:
    """Map a function over values. Raises its error, or ValueError in place of a StopIteration."""
    done = list(map(fn, values))
    if len(done) != len(values):
        raise ValueError(f"{STOP_ITERATION_ESCAPED}, at value {len(done)} of {len(values)}")
    return done
