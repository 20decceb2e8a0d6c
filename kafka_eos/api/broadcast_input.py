"""``Broadcast``: values that come to all workers, as the second input of a ``connect``.

Rule: it has no verbs of its own; what is made of it is said by the function behind ``connect``.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from kafka_eos.api.plan_builder import Draft
from kafka_eos.api.stream_base import Upstream

T = TypeVar("T")


class Broadcast(Upstream, Generic[T]):
    """Values of type ``T`` that come to all workers: ``stream.broadcast()``, or ``table.broadcast()``."""

    def __init__(self, draft: Draft, node: str, tp: Any = None, table: str | None = None) -> None:
        """``table``: the one whose rows they are, if there is one."""
        super().__init__(draft, node, tp)
        self._table = table
