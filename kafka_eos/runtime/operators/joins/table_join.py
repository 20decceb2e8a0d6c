"""The join of a stream with a table: each row with the table's value for its key when the row arrives.

The state ``table`` has the newest value of each key. Rows of the table that existed when the job began precede those of
the stream (``protocol.source_dependencies``); which later ones a row meets is not defined.

Rule: a row of the table changes the state and emits nothing; a row of the stream emits at most one output and changes
nothing. So the provenance of outputs names only rows of the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import replace

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.error_messages import UnfitValue, show_value
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.plan import SAME_KEYS, TableJoinNode, input_of
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.storability import StorableValues

STATE: Final = "table"
_SIDES: Final = 2


class TableJoinOperator(Operator):
    """The operator of ``KeyedStream.join`` and ``left_join``."""

    def __init__(self, node: TableJoinNode) -> None:
        self._node = node
        self._storable = StorableValues(
            node.value, "values of its table", "Declare their type with .table(..., values=...)."
        )

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """Return the states of the join."""
        node = self._node
        return (StateDescriptor(STATE, node.key_codec, node.value, definition=node.definition),)

    def open(self, ctx: OperatorContext) -> None:
        (table,) = self.states()
        self._ctx, self._state = ctx, ctx.value_state(table)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        keys = batch.keys or ()
        return self._updated(batch, keys) if input_of(batch.lane, _SIDES) else self._joined(batch, keys)

    def _updated(self, batch: Batch[Any], keys: Sequence[Any]) -> Batch[Any]:
        """Update the table's state with rows; emit nothing."""
        found: dict[Any, Any] = {}
        for index, (key, row) in enumerate(zip(keys, batch.values, strict=True)):
            try:
                if row.value is not None:
                    self._storable.check(row.value)
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever a codec raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                continue
            found[key] = row.value
        gone = [key for key, value in found.items() if value is None]
        kept = {key: value for key, value in found.items() if value is not None}
        for key in gone:
            self._state.delete(key)
        if kept:
            self._state.view(kept).update(kept)
        return batch.take(())

    def _joined(self, batch: Batch[Any], keys: Sequence[Any]) -> Batch[Any]:
        get, fn, unmatched = self._state.get, self._node.fn, self._node.unmatched
        found = {key: get(key) for key in set(keys)}
        made: list[Any] = []
        left_out: list[int] = []
        odd = self._odd(found)
        for index, (key, value) in enumerate(zip(keys, TrackedRows(batch, batch.values), strict=True)):
            row = found[key]
            if key in odd:
                self._ctx.reject(batch, index, _never_found(key, self._node))
                left_out.append(index)
                continue
            if row is None and not unmatched:
                left_out.append(index)
                continue
            try:
                made.append(fn(value, row))
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                left_out.append(index)
        return replace(batch.drop(left_out), values=made, updates=None)

    def _odd(self, keys: Collection[Any]) -> frozenset[Any]:
        """Return the keys that cannot occur in the table."""
        known = self._node.keys
        return frozenset() if known is None else frozenset(key for key in keys if not isinstance(key, known))


def _never_found(key: object, node: TableJoinNode) -> UnfitValue:
    of = node.keys
    assert of is not None
    return UnfitValue(
        f"key {show_value(key)} is {type(key).__name__}, and the keys of table {node.table!r} are {of.__name__}. "
        f"{SAME_KEYS}"
    )
