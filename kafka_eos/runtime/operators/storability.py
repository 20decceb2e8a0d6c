"""Early check that an operator's state can be stored: the first value of a state is encoded at once.

Rule: a type that cannot be stored fails at the first row, not at the first checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError


@dataclass(frozen=True, slots=True)
class StateHint:
    """Parts of the error message for a state that cannot be encoded.

    ``what`` cannot be stored; ``todo`` is the remedy, a whole sentence.
    """

    what: str
    todo: str

    def refused(self, operator: str, error: ValueError) -> PlanError:
        """Build the error for a value that its codec rejects."""
        return PlanError(f"operator {operator!r}: {self.what} cannot be stored: {error}. {self.todo}")


ACCUMULATOR = StateHint("its accumulator", "Declare its type with state=..., or change it to one that can.")


@dataclass(slots=True)
class FirstValue:
    """The check of one state in one session. Test ``is_tried`` before each call, which is in the hot path."""

    codec: Codec[Any]
    kept: StateHint
    is_tried: bool = False

    def check(self, operator: str, value: Any) -> None:
        """Encode a value. Raises PlanError if it cannot be stored."""
        self.is_tried = True
        try:
            self.codec.encode(value)
        except ValueError as error:
            raise self.kept.refused(operator, error) from error
