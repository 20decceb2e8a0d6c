"""Whether what an operator keeps can be stored: the first value that a state gets is encoded at once.

Rule: a type that cannot be stored shows at the first row, not at the first checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError


@dataclass(frozen=True, slots=True)
class Kept:
    """What a state holds, for people. ``what`` cannot be stored; ``todo`` is what to do then, a whole sentence."""

    what: str
    todo: str

    def refused(self, operator: str, error: ValueError) -> PlanError:
        """The error for a value that its codec refuses."""
        return PlanError(f"operator {operator!r}: {self.what} cannot be stored: {error}. {self.todo}")


ACCUMULATOR = Kept("its accumulator", "Declare its type with state=..., or change it to one that can.")


@dataclass(slots=True)
class FirstValue:
    """Of one state in one session. Ask ``is_tried`` before each call: it is made in the hot path."""

    codec: Codec[Any]
    kept: Kept
    is_tried: bool = False

    def encode(self, operator: str, value: Any) -> None:
        """PlanError if that cannot be stored."""
        self.is_tried = True
        try:
            self.codec.encode(value)
        except ValueError as error:
            raise self.kept.refused(operator, error) from error
