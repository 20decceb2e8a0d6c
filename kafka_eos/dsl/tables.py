"""``Table``: what keys have now, read from a source of upserts, for the joins of streams.

Rule: a table has no verbs; it is looked up in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, get_args

from kafka_eos.dsl.upstream import Upstream
from kafka_eos.interfaces import Positions, TaskContext

K = TypeVar("K")
V = TypeVar("V")
K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class Upsert(Protocol[K_co, V_co]):
    """What a key has from now on; nothing, if ``value`` is None. ``Record`` of Kafka is one."""

    @property
    def key(self) -> K_co | None: ...

    @property
    def value(self) -> V_co | None: ...


class _Rows(Protocol[K_co, V_co]):
    @property
    def values(self) -> Sequence[Upsert[K_co, V_co]]: ...


class _Reader(Protocol[K_co, V_co]):
    def poll(self, max_records: int, timeout: float) -> _Rows[K_co, V_co] | None: ...


class Upserts(Protocol[K_co, V_co]):
    """A source of ``Upsert``, for a type checker."""

    def reader(self, ctx: TaskContext, positions: Positions) -> _Reader[K_co, V_co]: ...


class Table(Upstream, Generic[K, V]):
    """What each key has now. ``keyed.join(table, fn)`` and ``left_join`` look it up."""

    @property
    def _values(self) -> Any:
        """The type of what is stored for a key, where it is known."""
        parts = get_args(self._type)
        return parts[1] if len(parts) == len(("key", "value")) else None


def key_of(row: Upsert[K, V]) -> K | None:
    return row.key
