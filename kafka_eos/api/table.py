"""``Table``: what keys have now, read from a source of records, for the joins of streams.

Rule: a table has no verbs; it is looked up in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from kafka_eos import plan
from kafka_eos._util.call_site import mistake
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.plan_builder import Draft
from kafka_eos.api.stream_base import Upstream
from kafka_eos.codecs.type_inspection import returned, type_name
from kafka_eos.core.records import Record
from kafka_eos.plan import SAME_KEYS
from kafka_eos.plan.watermarks import WatermarkStrategy

K = TypeVar("K")
V = TypeVar("V")

_KEYS: Final = (str, int, bytes, tuple)
"""Of which no two are ever equal."""
_BOTH: Final = {"key", "value"}


class _Rows(Upstream, Generic[K, V]):
    """Rows of a source that have a key and a value, by their keys."""

    def __init__(self, draft: Draft, node: str, tp: Any, name: str) -> None:
        super().__init__(draft, node, tp)
        self._name = name

    @property
    def _values(self) -> Any:
        """The type of what is stored for a key, where it is known."""
        return self._parts[1]

    @property
    def _keys(self) -> type[Any] | None:
        """The one class that all keys are of, where it is known."""
        return key_class(self._parts[0])

    @property
    def _parts(self) -> tuple[Any, Any]:
        parts = get_args(self._type)
        return parts if len(parts) == len(("key", "value")) else (None, None)

    def _check(self, stream: Upstream, key_by: Callable[..., Any]) -> None:
        """PlanError with the user's line if the stream, with keys of ``key_by``, cannot be joined with the table."""
        if self._draft is not stream._draft:
            names = f"{stream._draft.name!r} and {self._draft.name!r}"
            raise mistake(f"join of a stream and a table of two pipelines, {names}; make both in one.")
        self._check_keys(key_by)

    def _check_keys(self, key_by: Callable[..., Any]) -> None:
        """PlanError with the user's line if what ``key_by`` says that it gives is in no row of the table."""
        given = key_class(returned(key_by))
        if self._keys is not None and given is not None and given is not self._keys:
            raise mistake(
                f"the keys of table {self._name!r} are {self._keys.__name__}, and those of the stream "
                f"{given.__name__}: no row would find any. {SAME_KEYS}"
            )


def key_class(tp: Any) -> type[Any] | None:
    """The one class of keys that a type says; None where it does not say one."""
    found = get_origin(tp) or tp
    return found if found in _KEYS else None


class VersionedTable(_Rows[K, V]):
    """What each key had at any time. ``keyed.join_as_of(table, fn)`` and ``left_join_as_of`` look it up."""


class Table(_Rows[K, V]):
    """What each key has now. ``keyed.join(table, fn)`` and ``left_join`` look it up."""

    def broadcast(self, *, name: str | None = None) -> Broadcast[Record[K, V]]:
        """All rows of the table in all workers, for a function that needs more than those of its key: rules, say.

        ``connect(stream, table.broadcast())``: no row of ``stream`` is processed before the table is whole. Of a key
        that was taken away the value is None.
        """
        values = self._draft._combined(self._node).values
        rows = Upstream(self._draft, self._name, self._type)
        given = f"{self._name}-broadcast" if name is None else name
        node = rows._grow(plan.Exchange, given, how=plan.Partitioning.BROADCAST, values=values)
        return Broadcast(self._draft, node, self._type, self._name)

    def with_timestamps(
        self, fn: Callable[[Record[K, V]], int] | None = None, *, watermarks: WatermarkStrategy
    ) -> VersionedTable[K, V]:
        """The table by event time: from when on each of its rows is what its key has, for ``keyed.join_as_of``.

        ``fn`` tells the time of a record, in milliseconds since the Unix epoch; without it, it is that of the record.
        ``watermarks`` as for a stream. The trap: a table that does not change holds event time back, and rows wait for
        it, unless the strategy is told ``.with_idleness(seconds)``.
        """
        by_key = self._draft._combined(self._node)
        rows = Upstream(self._draft, self._name, self._type)
        timed = Upstream(self._draft, rows._timed(fn, watermarks, self._name, f"{self._name}-timestamps"), self._type)
        key: dict[str, Any] = {"fn": by_key.fn, "key_codec": by_key.key_codec, "values": by_key.values}
        node = timed._grow(plan.KeyBy, f"{self._name}-versions", **key)
        return VersionedTable(self._draft, node, self._type, self._name)


def check_table(name: str, tp: Any, *, skips: bool, several: bool) -> None:
    """PlanError with the user's line if a table cannot be made of rows of type ``tp``, where it is known."""
    if skips:
        raise mistake(
            f'table {name!r} would begin without what its topic has already: leave start= out, or say "earliest".'
        )
    if several:
        raise mistake(
            f"table {name!r} would be put together of several topics, and which of two values of a key is newer, "
            "nothing tells: read it from one topic."
        )
    if isinstance(tp, type) and not _BOTH <= {*dir(tp), *getattr(tp, "__annotations__", ())}:
        raise mistake(
            f"table {name!r} needs rows with a key and a value, and those of its source are {type_name(tp)}. Read it "
            "with KafkaSource.records(topic, key=..., value=...)."
        )
