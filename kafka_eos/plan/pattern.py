"""Patterns: sequences of rows of a key in event time, within a time limit.

Rule: a pattern is a value and defines completely which rows match. Each condition depends on one row alone, so it is
evaluated once, when the row arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util.call_site import quotes_user_line
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class Stage(Struct, Generic[T], frozen=True):
    """A stage of ``count`` rows for which ``where`` is true.

    ``follows``: its first row comes directly after the previous stage. ``consecutive``: so does each of its other rows.
    """

    name: str
    where: Callable[[T], object]
    follows: bool
    count: int = 1
    consecutive: bool = False

    def __str__(self) -> str:
        times = f" {self.count} times" if self.count > 1 else ""
        return f"{self.name}{times}{' consecutively' if self.consecutive else ''}"


class Pattern(Struct, Generic[T], frozen=True):
    """A sequence of rows of one key, in the order of event time. Begin with ``Pattern[Login].begin(...)``."""

    stages: tuple[Stage[T], ...]
    limit: int | None = None
    """In milliseconds: the last row must be less than that after the first."""
    overlaps: bool = False
    """Every possible first row starts its own match, also within another match."""

    @classmethod
    @quotes_user_line
    def begin(cls, name: str, where: Callable[[T], object]) -> Pattern[T]:
        """Match a first row for which ``where`` is true. ``name`` identifies the stage in a match."""
        return cls((_stage(name, where, follows=False),))

    @quotes_user_line
    def next(self, name: str, where: Callable[[T], object]) -> Pattern[T]:
        """Match the directly following row. If ``where`` is false for it, there is no match."""
        return self._then(name, where, follows=True)

    @quotes_user_line
    def followed_by(self, name: str, where: Callable[[T], object]) -> Pattern[T]:
        """Match the first later row for which ``where`` is true; rows in between are ignored."""
        return self._then(name, where, follows=False)

    @quotes_user_line
    def times(self, count: int, *, consecutive: bool = False) -> Pattern[T]:
        """Match ``count`` rows in the last stage instead of one.

        - ``consecutive``: without other rows of the key between them.
        """
        if type(count) is not int or count < 1:
            raise PlanError(f"times must be at least 1 (got {count!r})")
        return self._last(replace(self.stages[-1], count=count, consecutive=consecutive and count > 1))

    @quotes_user_line
    def within(self, *, seconds: Seconds = 0, minutes: float = 0, hours: float = 0) -> Pattern[T]:
        """Limit the time from the first to the last row. It bounds the state, so each pattern needs it."""
        limit = round((to_seconds(seconds) + minutes * 60 + hours * 3600) * 1000)
        if limit < 1:
            raise PlanError(
                "the time limit of a pattern must be at least a millisecond: within(seconds=…), (minutes=…) "
                "or (hours=…)"
            )
        return replace(self, limit=limit)

    def overlapping(self) -> Pattern[T]:
        """Let every possible first row start its own match. By default none starts within another match."""
        return replace(self, overlaps=True)

    @property
    def steps(self) -> tuple[tuple[int, bool], ...]:
        """Return, for each row of a match, the number of its stage and whether it must directly follow the previous
        row."""
        return tuple(
            (number, stage.follows if nth == 0 else stage.consecutive)
            for number, stage in enumerate(self.stages)
            for nth in range(stage.count)
        )

    @property
    def definition(self) -> Json:
        """Return the pattern without its functions, as it is stored with waiting rows."""
        steps: list[Json] = [[self.stages[number].name, follows] for number, follows in self.steps]
        return {"pattern": steps, "within": self.limit, "overlapping": self.overlaps}

    def __str__(self) -> str:
        first, *others = self.stages
        stages = [f"begin {first}", *(f"{'next' if each.follows else 'followed by'} {each}" for each in others)]
        limit = "" if self.limit is None else f", within {self.limit / 1000:g} s"
        return f"{', '.join(stages)}{limit}{', overlapping' if self.overlaps else ''}"

    def _then(self, name: str, where: Callable[[T], object], *, follows: bool) -> Pattern[T]:
        if any(stage.name == name for stage in self.stages):
            raise PlanError(f"two stages of a pattern are called {name!r}; the names of stages must be unique")
        return replace(self, stages=(*self.stages, _stage(name, where, follows=follows)))

    def _last(self, stage: Stage[T]) -> Pattern[T]:
        return replace(self, stages=(*self.stages[:-1], stage))


def _stage(name: str, where: Callable[[Any], object], *, follows: bool) -> Stage[Any]:
    if type(name) is not str or not name:
        raise PlanError(f"a stage of a pattern needs a name, a string that is not empty (got {name!r})")
    if not callable(where):
        raise PlanError(f"stage {name!r}: the condition must be a function, not {where!r}")
    return Stage(name, where, follows)
