"""Calls of user functions and codecs for many values, by loops that run in C.

A StopIteration that escapes from the function ends such a loop like the end of the values: the remaining values would
be lost silently. Rule: each value has a result, or an error that was reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

STOP_ITERATION_ESCAPED: Final = "StopIteration escaped from the function or codec"


def map_rows(
    fn: Callable[..., T], *columns: Collection[Any], refuse: Callable[[int, Exception], None]
) -> tuple[list[T], list[int]]:
    """Map a function over rows; return the results and the indices of failed rows.

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
        except Exception as raised:  # noqa: BLE001 - a function may raise anything; ``refuse`` judges it
            error = raised
        refused.append(len(done) + len(refused))
        refuse(refused[-1], error)
    return done, refused


def map_all(fn: Callable[[Any], T], values: Sequence[Any]) -> list[T]:
    """Map a function over values. Raises its error, or ValueError in place of a StopIteration."""
    done = list(map(fn, values))
    if len(done) != len(values):
        raise ValueError(f"{STOP_ITERATION_ESCAPED}, at value {len(done)} of {len(values)}")
    return done
