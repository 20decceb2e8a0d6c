"""Functions of users and codecs, called for many values by loops that run in C.

There a StopIteration that escapes from the function ends the loop as the end of the values would: what comes after it
would be lost, and nobody told. Rule: each value has a result, or an error that somebody was given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

ESCAPED: Final = "StopIteration escaped from the function or codec"


def extend(done: list[T], fn: Callable[..., T], todo: Sequence[Iterator[Any]], until: int) -> Exception | None:
    """Append what ``fn`` makes of the values of ``todo``, one from each, until ``done`` holds ``until`` results.

    Returns the error of the value on which ``fn`` raised; the next call goes on behind that value. A second pass over
    it would be another try, and what failed in passing might work then.
    """
    try:
        done.extend(map(fn, *todo))
    except Exception as error:  # noqa: BLE001 - a function may raise anything; the caller judges it
        return error
    return None if len(done) == until else RuntimeError(ESCAPED)


def each(
    fn: Callable[..., T], *columns: Collection[Any], refuse: Callable[[int, Exception], None]
) -> tuple[list[T], list[int]]:
    """What ``fn`` makes of each row of the columns, and the indices of the rows that have no result.

    ``refuse(index, error)`` is called for each of those, in order; what it raises ends the loop.
    """
    done: list[T] = []
    refused: list[int] = []
    todo, count = [iter(column) for column in columns], len(columns[0])
    while (error := extend(done, fn, todo, count - len(refused))) is not None:
        refused.append(len(done) + len(refused))
        refuse(refused[-1], error)
    return done, refused


def all_of(fn: Callable[[Any], T], values: Sequence[Any]) -> list[T]:
    """What ``fn`` makes of each value. Raises what it raises; ValueError in place of a StopIteration."""
    done = list(map(fn, values))
    if len(done) != len(values):
        raise ValueError(f"{ESCAPED}, at value {len(done)} of {len(values)}")
    return done
