"""A join of two streams without an end, for q3 and q20: the verbs of the library join within an interval or a window.

Rule: the left stream has one row a key at most, and it stays; rows of the right one wait until it has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kafka_eos import CoProcessFunction, ProcessContext

L = TypeVar("L")
R = TypeVar("R")
U = TypeVar("U")


class OneToMany(CoProcessFunction[int, L, R, U]):
    """``fn(left, right)`` gives the rows for a pair."""

    def __init__(self, left: type[L], right: type[R], fn: Callable[[L, R], Iterable[U]]) -> None:
        self._types, self._fn = (left, right), fn

    def open(self, ctx: ProcessContext) -> None:
        left, right = self._types
        self._one = ctx.value_state("one", left)
        self._waiting = ctx.list_state("waiting", right)

    def process_left(self, key: int, value: L) -> Iterable[U]:
        self._one.put(value)
        found = [row for other in self._waiting.get() for row in self._fn(value, other)]
        self._waiting.clear()
        return found

    def process_right(self, key: int, value: R) -> Iterable[U]:
        one = self._one.get()
        if one is not None:
            return self._fn(one, value)
        self._waiting.add(value)
        return []
