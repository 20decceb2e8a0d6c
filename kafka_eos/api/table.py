"""``Table``: the current values of keys, read from a source of records, for joins with streams.

Rule: a table has no operations; streams look up its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from kafka_eos import plan
from kafka_eos._util.call_site import plan_error
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.plan_builder import PlanBuilder
from kafka_eos.api.stream_base import BaseStream
from kafka_eos.codecs.type_inspection import get_return_type, type_name
from kafka_eos.core.records import Record
from kafka_eos.plan import SAME_KEYS
from kafka_eos.plan.watermarks import WatermarkStrategy

K = TypeVar("K")
V = TypeVar("V")

_KEYS: Final = (str, int, bytes, tuple)
"""Key classes whose keys never equal a key of another class."""
_BOTH: Final = {"key", "value"}


class _TableBase(BaseStream, Generic[K, V]):
    """Keyed rows of a table's source: base of Table and VersionedTable."""

    def __init__(self, draft: PlanBuilder, node: str, tp: Any, name: str) -> None:
        super().__init__(draft, node, tp)
        self._name = name

    @property
    def _values(self) -> Any:
        """Return the type of a key's stored value, if known."""
        return self._parts[1]

    @property
    def _keys(self) -> type[Any] | None:
        """Return the only class of all keys, if known."""
        return key_class(self._parts[0])

    @property
    def _parts(self) -> tuple[Any, Any]:
        parts = get_args(self._type)
        return parts if len(parts) == len(("key", "value")) else (None, None)

    def _check(self, stream: BaseStream, key_by: Callable[..., Any]) -> None:
        """Raise PlanError with the user's line if the stream, keyed by ``key_by``, cannot be joined with the table."""
        if self._draft is not stream._draft:
            names = f"{stream._draft.name!r} and {self._draft.name!r}"
            raise plan_error(f"join: the stream and the table belong to two pipelines, {names}; create both in one.")
        self._check_keys(key_by)

    def _check_keys(self, key_by: Callable[..., Any]) -> None:
        """Raise PlanError with the user's line if the table cannot contain the key type that ``key_by`` declares."""
        given = key_class(get_return_type(key_by))
        if self._keys is not None and given is not None and given is not self._keys:
            raise plan_error(
                f"the keys of table {self._name!r} are {self._keys.__name__}, and those of the stream "
                f"{given.__name__}: no row would find its key. {SAME_KEYS}"
            )


def key_class(tp: Any) -> type[Any] | None:
    """Return the only class of keys that a type declares; None if it does not declare one."""
    found = get_origin(tp) or tp
    return found if found in _KEYS else None


class VersionedTable(_TableBase[K, V]):
    """The versions of a key's row by event time.

    ``keyed.join_as_of(table, fn)`` and ``left_join_as_of`` look them up.
    """


class Table(_TableBase[K, V]):
    """The current row of each key. ``keyed.join(table, fn)`` and ``left_join`` look it up."""

    def broadcast(self, *, name: str | None = None) -> Broadcast[Record[K, V]]:
        """Broadcast all rows of the table to all workers, for a function that needs rows of other keys, such as rules.

        ``connect(stream, table.broadcast())``: no row of ``stream`` is processed before the table is fully loaded. The
        value of a deleted key is None.
        """
        values = self._draft._replace_key_by(self._node).value_codec
        rows = BaseStream(self._draft, self._name, self._type)
        given = f"{self._name}-broadcast" if name is None else name
        node = rows._append_node(plan.ExchangeNode, given, strategy=plan.Partitioning.BROADCAST, value_codec=values)
        return Broadcast(self._draft, node, self._type, self._name)

    def with_timestamps(
        self, fn: Callable[[Record[K, V]], int] | None = None, *, watermarks: WatermarkStrategy
    ) -> VersionedTable[K, V]:
        """Version the table by event time, for ``keyed.join_as_of``: each row is valid from its time on.

        ``fn`` returns the time of a record, in milliseconds since the Unix epoch; by default it is the record's
        timestamp. ``watermarks`` is as for a stream.

        Note: a table that does not change holds the watermark back, and rows wait for it, unless the strategy has
        ``.with_idleness(seconds)``.
        """
        by_key = self._draft._replace_key_by(self._node)
        rows = BaseStream(self._draft, self._name, self._type)
        timed = BaseStream(
            self._draft, rows._append_timestamps(fn, watermarks, self._name, f"{self._name}-timestamps"), self._type
        )
        key: dict[str, Any] = {"fn": by_key.fn, "key_codec": by_key.key_codec, "value_codec": by_key.value_codec}
        node = timed._append_node(plan.KeyByNode, f"{self._name}-versions", **key)
        return VersionedTable(self._draft, node, self._type, self._name)


def check_table(name: str, tp: Any, obstacle: str | None) -> None:
    """Raise PlanError with the user's line if rows of type ``tp`` cannot form a table, where the type is known."""
    if obstacle is not None:
        raise plan_error(f"table {name!r} would {obstacle}")
    if isinstance(tp, type) and not _BOTH <= {*dir(tp), *getattr(tp, "__annotations__", ())}:
        raise plan_error(
            f"table {name!r} needs rows with a key and a value, and those of its source are {type_name(tp)}. Read it "
            "with KafkaSource.records(topic, key=..., value=...)."
        )
