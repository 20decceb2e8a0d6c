"""Patterns: sequences of rows of a key, one behind the other in event time, within so much of it.

Rule: a pattern is a value, and says all that decides what matches it. Whether a row may be at a place depends on that
row alone, so it is asked once, when the row comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kafka_eos._util.call_site import quoting
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """``count`` rows for which ``where`` is true.

    ``follows``: the first of them is the row right behind the stage before. ``consecutive``: so is each of the others.
    """

    name: str
    where: Callable[[T], object]
    follows: bool
    count: int = 1
    consecutive: bool = False

    def __str__(self) -> str:
        times = f" {self.count} times" if self.count > 1 else ""
        return f"{self.name}{times}{' consecutively' if self.consecutive else ''}"


@dataclass(frozen=True, slots=True)
class Pattern(Generic[T]):
    """What rows of one key must be, in the order of event time. Begin with ``Pattern[Login].begin(...)``."""

    stages: tuple[Stage[T], ...]
    limit: int | None = None
    """In milliseconds: the last row is less than that behind the first."""
    overlaps: bool = False
    """Each row that may be the first one begins a match of its own, whatever has matched before."""

    @classmethod
    @quoting
    def begin(cls, name: str, where: Callable[[T], object]) -> Pattern[T]:
        """The first row: one for which ``where`` is true. ``name`` is what a match calls it."""
        return cls((_stage(name, where, follows=False),))

    @quoting
    def next(self, name: str, where: Callable[[T], object]) -> Pattern[T]:
        """The row right behind. If it is another one, there is no match."""
        return self._then(name, where, follows=True)

    @quoting
    def followed_by(self, name: str, where: Callable[[T], object]) -> Pattern[T]:
        """The first row behind for which ``where`` is true; those between do not matter."""
        return self._then(name, where, follows=False)

    @quoting
    def times(self, count: int, *, consecutive: bool = False) -> Pattern[T]:
        """So many rows of the last stage, not one. ``consecutive``: with no others of the key between them."""
        if type(count) is not int or count < 1:
            raise PlanError(f"a stage of a pattern is there once or more often, not {count!r} times")
        return self._last(replace(self.stages[-1], count=count, consecutive=consecutive and count > 1))

    @quoting
    def within(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0) -> Pattern[T]:
        """The last row is less than that behind the first. It bounds what is stored, so each pattern needs it."""
        limit = round((seconds + minutes * 60 + hours * 3600) * 1000)
        if limit < 1:
            raise PlanError("a pattern is within a millisecond or more: within(seconds=…), (minutes=…) or (hours=…)")
        return replace(self, limit=limit)

    def overlapping(self) -> Pattern[T]:
        """Every row that may be the first one begins a match of its own. Else none begins inside of another one."""
        return replace(self, overlaps=True)

    @property
    def steps(self) -> tuple[tuple[int, bool], ...]:
        """One for each row of a match: the number of its stage, and whether it is the row right behind."""
        return tuple(
            (number, stage.follows if nth == 0 else stage.consecutive)
            for number, stage in enumerate(self.stages)
            for nth in range(stage.count)
        )

    @property
    def definition(self) -> Json:
        """All but the functions, as it is stored beside rows that wait."""
        steps: list[Json] = [[self.stages[number].name, follows] for number, follows in self.steps]
        return {"pattern": steps, "within": self.limit, "overlapping": self.overlaps}

    def __str__(self) -> str:
        first, *others = self.stages
        told = [f"begin {first}", *(f"{'next' if each.follows else 'followed by'} {each}" for each in others)]
        limit = "" if self.limit is None else f", within {self.limit / 1000:g} s"
        return f"{', '.join(told)}{limit}{', overlapping' if self.overlaps else ''}"

    def _then(self, name: str, where: Callable[[T], object], *, follows: bool) -> Pattern[T]:
        if any(stage.name == name for stage in self.stages):
            raise PlanError(f"two stages of a pattern are called {name!r}; a match has its rows by these names")
        return replace(self, stages=(*self.stages, _stage(name, where, follows=follows)))

    def _last(self, stage: Stage[T]) -> Pattern[T]:
        return replace(self, stages=(*self.stages[:-1], stage))


def _stage(name: str, where: Callable[[Any], object], *, follows: bool) -> Stage[Any]:
    if type(name) is not str or not name:
        raise PlanError(f"a stage of a pattern has a name, which {name!r} is not")
    if not callable(where):
        raise PlanError(f"stage {name!r}: which rows it has is said by a function, not by {where!r}")
    return Stage(name, where, follows)
