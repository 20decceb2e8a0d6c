"""Reference operators of the recompute: map, filter, flat_map, key_by, fold and reduce, one row at a time.

Rule: they share no loop over rows with the engine's operators and no method of ``Batch`` that selects rows. If an
operator of the engine loses, repeats or mixes up rows, the recompute does not. Other nodes get the engine's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from kafka_eos import plan
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import CountedCodec, KeyCodec
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators import build_operator
from kafka_eos.runtime.operators.fold import STATE
from kafka_eos.runtime.operators.function_outputs import expect_outputs
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.storability import storable_accumulators


def build_reference(node: plan.Node) -> Operator:
    """Return a new operator for a plan node: the reference where there is one, else the engine's."""
    match node:
        case plan.MapNode(fn=fn):
            return _MapOperator(fn)
        case plan.FilterNode(fn=fn):
            return _FlatMapOperator(lambda value: [value] if fn(value) else [])
        case plan.FlatMapNode(fn=fn):
            return _FlatMapOperator(lambda value: list(expect_outputs(fn(value))))
        case plan.PartialFoldNode():
            return build_operator(node)
        case plan.KeyByNode():
            return _KeyByOperator(node)
        case plan.FoldNode(merge=None) | plan.ReduceNode():
            return _FoldOperator(node)
    return build_operator(node)


class _RowOperator(Operator):
    """An operator that calls the user's function for one row after the other. A row for which it raises is rejected."""

    def _called(
        self, batch: Batch[Any], fn: Callable[..., Any], *columns: Iterable[Any]
    ) -> tuple[list[int], list[Any]]:
        """Return the indices of the rows that are not rejected, and what ``fn`` returns for each."""
        rows: list[int] = []
        results: list[Any] = []
        for index, row in enumerate(zip(*columns, strict=True)):
            try:
                result = fn(*row)
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
            else:
                rows.append(index)
                results.append(result)
        return rows, results


class _MapOperator(_RowOperator):
    """Map: one output for each row."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        return _with_rows(batch, *self._called(batch, self._fn, batch.values))


class _FlatMapOperator(_RowOperator):
    """Filter and flat_map: a list of outputs for each row."""

    def __init__(self, outputs: Callable[[Any], list[Any]]) -> None:
        self._outputs = outputs

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        rows, made = self._called(batch, self._outputs, batch.values)
        repeated = [row for row, outputs in zip(rows, made, strict=True) for _ in outputs]
        return _with_rows(batch, repeated, [output for outputs in made for output in outputs])


class _KeyByOperator(_RowOperator):
    """Key_by: sets the key of each row."""

    def __init__(self, node: plan.KeyByNode) -> None:
        self._fn = node.fn
        self._check = cast("KeyCodec", node.key_codec).check_key

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        rows, keys = self._called(batch, self._key, batch.values)
        return _with_rows(batch, rows, [batch.values[row] for row in rows], keys=keys)

    def _key(self, value: Any) -> Any:
        key = self._fn(value)
        self._check(key)
        return key


class _FoldOperator(_RowOperator):
    """Fold and reduce: number of the update and accumulator of each key, stored as the engine stores them."""

    def __init__(self, node: plan.FoldNode | plan.ReduceNode) -> None:
        assert isinstance(node.entry_codec, CountedCodec)
        self._descriptor = StateDescriptor(STATE, node.key_codec, node.entry_codec, ttl=node.ttl)
        self._steps = _steps(node)
        self._check = storable_accumulators(node.entry_codec.inner).check
        self._by_time = isinstance(node, plan.FoldNode) and node.by_time
        self._expires = node.ttl is not None
        self._event_time = node.ttl is not None and node.ttl.clock == "event"

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._state = ctx.value_state(self._descriptor)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        self._entries = self._state.view(batch.keys or ())
        rows, made = self._called(batch, self._updated, batch.keys or (), self._values(batch), self._times(batch))
        updates = None if self._expires else [count for count, _ in made]
        return _with_rows(batch, rows, [output for _, output in made], updates=updates)

    def _values(self, batch: Batch[Any]) -> Iterable[Any]:
        if not self._by_time:
            return batch.values
        origin, times = batch.origin, batch.event_times or ()
        places = ((time, origin.partitions[row], origin.offsets[row])
                  for time, row in zip(times, batch.origin_rows, strict=True))  # fmt: skip
        return zip(batch.values, places, strict=True)

    def _times(self, batch: Batch[Any]) -> Iterable[int | None]:
        """Return the time of each row, if state expires by it."""
        if not self._event_time:
            return [None] * len(batch.values)
        times = batch.origin.timestamps()
        return (times[row] for row in batch.origin_rows)

    def _updated(self, key: Any, value: Any, time: int | None) -> tuple[int, Any]:
        """Return the number and the output of an update; the state changes if nothing raises."""
        if time is not None:
            self._state.advance(time)
        first, following, emit = self._steps
        before = self._entries.get(key)
        count, acc = (1, first(value)) if before is None else (before[0] + 1, following(before[1], value))
        output = emit(key, acc)
        self._check(acc)
        self._entries[key] = (count, acc)
        return count, output


def _steps(
    node: plan.FoldNode | plan.ReduceNode,
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return the functions for a key's first value, for its other values, and for an output."""
    if isinstance(node, plan.ReduceNode):
        return (lambda value: value), node.fn, (lambda key, acc: acc)
    init, step = node.init, node.step
    return (lambda value: step(init(), value)), step, node.emit or (lambda key, acc: (key, acc))


def _with_rows(
    batch: Batch[Any],
    rows: Sequence[int],
    values: list[Any],
    keys: list[Any] | None = None,
    updates: list[int] | None = None,
) -> Batch[Any]:
    """Return ``values`` as made of these ``rows`` of a batch; ``keys`` and ``updates`` replace those of the batch."""

    def of(column: Sequence[Any] | None) -> list[Any] | None:
        return None if column is None else [column[index] for index in rows]

    return Batch(
        values,
        [batch.origin_rows[index] for index in rows],
        batch.origin,
        keys=of(batch.keys) if keys is None else keys,
        lane=batch.lane,
        updates=of(batch.updates) if updates is None else updates,
        branch=of(batch.branch),
        event_times=of(batch.event_times),
    )
