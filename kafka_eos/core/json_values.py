"""What connectors store: JSON, and positions made of it.

Rule: only its connector knows what a position means; nobody else looks into one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kafka_eos.core.ids import SplitId

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
else:
    Json = Any  # decoders read annotations at run time, and a recursive one has no end for them
Position: TypeAlias = dict[str, Json]
"""Where to read next in one split. Only its connector knows the meaning."""
Positions: TypeAlias = dict[SplitId, Position]
