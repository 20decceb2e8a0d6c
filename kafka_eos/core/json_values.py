"""Types of the JSON values and positions that connectors store.

Rule: only its connector knows what a position means; no other code reads its fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kafka_eos.core.ids import SplitId

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
else:
    Json = Any  # decoders read annotations at run time and never finish with a recursive one
Position: TypeAlias = dict[str, Json]
"""The next position to read in one split. Only its connector knows the meaning."""
Positions: TypeAlias = dict[SplitId, Position]
