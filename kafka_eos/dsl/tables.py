"""``Table``: what keys have now, read from a source of records, for the joins of streams.

Rule: a table has no verbs; it is looked up in.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

from kafka_eos.dsl.upstream import Upstream

K = TypeVar("K")
V = TypeVar("V")


class Table(Upstream, Generic[K, V]):
    """What each key has now. ``keyed.join(table, fn)`` and ``left_join`` look it up."""

    @property
    def _values(self) -> Any:
        """The type of what is stored for a key, where it is known."""
        parts = get_args(self._type)
        return parts[1] if len(parts) == len(("key", "value")) else None
