"""A pattern as the table of a state machine, and what a row makes of the partial matches of its key.

Pure. A partial match is its rows so far, and so the state that it is in is their number. Which stages a row may be of
is a number with a bit for each: it was found out when the row came.
Rules: partial matches are in the order of their first rows. Each takes the first row that it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kafka_eos.plan.pattern import Pattern

Place: TypeAlias = tuple[int, int, int]
"""Event time, partition, offset."""
Element: TypeAlias = tuple[Any, Place]
Partial: TypeAlias = tuple[Element, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """By state: the bit of rows that lead to the next one, and whether others end the partial match."""

    bits: tuple[int, ...]
    strict: tuple[bool, ...]
    names: tuple[str, ...]
    overlaps: bool

    @classmethod
    def of(cls, pattern: Pattern[Any]) -> Table:
        return cls(
            tuple(1 << number for number, _ in pattern.steps),
            tuple(follows for _, follows in pattern.steps),
            tuple(pattern.stages[number].name for number, _ in pattern.steps),
            pattern.overlaps,
        )

    @property
    def skips(self) -> bool:
        """May rows that are of no stage be left out? They end nothing."""
        return not any(self.strict)

    def on(self, partials: Sequence[Partial], element: Element, bits: int) -> tuple[list[Partial], list[Partial]]:
        """The next row of a key: partial matches behind it, and those that it has made whole."""
        waiting: list[Partial] = []
        whole: list[Partial] = []
        for partial in (*partials, ()):
            state = len(partial)
            if bits & self.bits[state]:
                grown = (*partial, element)
                (whole if len(grown) == len(self.bits) else waiting).append(grown)
            elif partial and not self.strict[state]:
                waiting.append(partial)
        if whole and not self.overlaps:
            return [], whole[:1]
        return waiting, whole

    def by_stage(self, partial: Partial) -> Mapping[str, list[Any]]:
        """The values of a match, or of a part of one, by stage."""
        found: dict[str, list[Any]] = {}
        for name, (value, _) in zip(self.names, partial, strict=False):
            found.setdefault(name, []).append(value)
        return found
