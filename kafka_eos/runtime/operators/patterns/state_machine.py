"""A pattern as the transition table of a state machine, and the partial matches of a key.

Pure. A partial match is the list of its rows so far, and its state is their number. The stages that a row matches are a
bit mask, which was computed when the row arrived. Rules: partial matches are in the order of their first rows. Each
takes the first row that it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from kafka_eos.plan.pattern import Pattern

Place: TypeAlias = tuple[int, int, int]
"""Event time, partition, offset."""
Element: TypeAlias = tuple[Any, Place]
PartialMatch: TypeAlias = tuple[Element, ...]


class TransitionTable(Struct, frozen=True):
    """A pattern as a state machine: for each state, the stage to match and whether it is strict."""

    bits: tuple[int, ...]
    strict: tuple[bool, ...]
    names: tuple[str, ...]
    overlaps: bool

    @classmethod
    def of(cls, pattern: Pattern[Any]) -> TransitionTable:
        return cls(
            tuple(1 << number for number, _ in pattern.steps),
            tuple(follows for _, follows in pattern.steps),
            tuple(pattern.stages[number].name for number, _ in pattern.steps),
            pattern.overlaps,
        )

    @property
    def skips(self) -> bool:
        """Return whether rows without a stage can be skipped: they end no partial match."""
        return not any(self.strict)

    def advance(
        self, partials: Sequence[PartialMatch], element: Element, bits: int
    ) -> tuple[list[PartialMatch], list[PartialMatch]]:
        """Advance the partial matches of a key by one row; return pending and complete ones."""
        waiting: list[PartialMatch] = []
        whole: list[PartialMatch] = []
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

    def by_stage(self, partial: PartialMatch) -> Mapping[str, list[Any]]:
        """Return the values of a match, or of a partial one, by stage."""
        found: dict[str, list[Any]] = {}
        for name, (value, _) in zip(self.names, partial, strict=False):
            found.setdefault(name, []).append(value)
        return found
