"""``Broadcast``: values that all workers receive, as the second input of a ``connect``.

Rule: it has no operations of its own; the function after ``connect`` defines how its values are used.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from kafka_eos.api.plan_builder import PlanBuilder
from kafka_eos.api.stream_base import BaseStream

T = TypeVar("T")


class Broadcast(BaseStream, Generic[T]):
    """Values of type ``T`` that all workers receive: ``stream.broadcast()``, or ``table.broadcast()``."""

    def __init__(self, draft: PlanBuilder, node: str, tp: Any = None, table: str | None = None) -> None:
        """``table``: the table whose rows are broadcast, if any."""
        super().__init__(draft, node, tp)
        self._table = table
