"""A fold in two phases: readers fold some records into partial accumulators, which the key's owner merges.

    PartialFoldOperator   assigns keys, folds, and emits its accumulators at the end of the epoch
    MergingFoldOperator   merges them into the key's state; one output per key and epoch, at the end of the epoch

Collected rows are not state, and a snapshot contains none of them: ``flush`` precedes it. Rule: a key and epoch has one
output, whose origin is its last row. Two keys never share an origin, because the branch that distinguishes outputs of
one record is fixed before they are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import Ttl
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.provenance import extend_branches
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.epoch_buffer import KeyedBundle, PartialMerge
from kafka_eos.runtime.operators.fold import FoldOperator
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.stateless import KeyByOperator

_NOTHING: Any = object()


class PartialFoldOperator(Operator):
    """Folds rows into partial accumulators and emits those at the end of the epoch.

    An accumulator that was spilled, and that ``merge`` cannot add to a later part of its key, is rejected; see
    ``MergingFoldOperator``.
    """

    def __init__(
        self,
        key: Callable[[Any], Any],
        key_codec: Codec[Any],
        init: Callable[[], Any],
        step: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
        accumulators: ListCodec[Any],
        by_time: bool,
    ) -> None:
        self._keyed = KeyByOperator(key, key_codec)
        self._init = init
        self._step = step
        self._summing = PartialMerge(accumulators, merge)
        self._values: Callable[[Batch[Any]], Sequence[Any]] = Batch.with_sort_keys if by_time else attrgetter("values")

    def open(self, ctx: OperatorContext) -> None:
        self._ctx, self._gathered = ctx, KeyedBundle(ctx, self._summing)
        self._keyed.open(ctx)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Fold the rows; return an empty batch."""
        batch = extend_branches(self._keyed.process(batch), self._ctx.branch_number)
        init, step, accumulators = self._init, self._step, self._gathered.accumulators
        last: dict[Any, int] = {}
        for index, (key, value) in enumerate(
            zip(batch.keys or (), TrackedRows(batch, self._values(batch)), strict=True)
        ):
            try:
                acc = accumulators.get(key, _NOTHING)
                changed = step(init() if acc is _NOTHING else acc, value)
                self._summing.check(changed)
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                continue
            accumulators[key] = changed
            last[key] = index
        self._gathered.note(batch, last)
        return batch.take([])

    def flush(self) -> Iterator[Batch[Any]]:
        for keys, accumulators, rows in self._gathered.drain():
            rows.keys, rows.values = keys, accumulators
            yield rows

    def close(self) -> None:
        self._gathered.close()


class MergingFoldOperator(FoldOperator):
    """Merges partial accumulators into the key's state; one output per key and epoch.

    An exception of ``merge`` is not the fault of a single record: the partial accumulator is rejected as a result, and
    the key's state stays as it was. An exception of ``emit`` rejects the state of the key, which remains: a later epoch
    emits it again.
    """

    def __init__(
        self,
        merge: Callable[[Any, Any], Any],
        emit: Callable[[Any, Any], Any] | None,
        key_codec: Codec[Any],
        entry_codec: Codec[tuple[int, Any]],
        ttl: Ttl | None,
    ) -> None:
        super().__init__(_no_records, merge, emit, key_codec, entry_codec, ttl, by_time=False)

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._gathered = KeyedBundle(ctx)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Collect accumulators; return an empty batch."""
        keys, merge = batch.keys or [], self._step
        entries = self._state.view(keys)
        last: dict[Any, int] = {}
        for index, (key, part) in enumerate(zip(self._in_time(batch), TrackedRows(batch, batch.values), strict=True)):
            try:
                entry = entries.get(key)
                changed = (0, part) if entry is None else (entry[0], merge(entry[1], part))
                self._storable.check(changed[1])
            except BaseException as raised:  # noqa: BLE001 (``reject_result`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject_result(batch, index, error)
                continue
            entries[key] = changed
            last[key] = index
        self._gathered.note(batch, last)
        return batch.take([])

    def flush(self) -> Iterator[Batch[Any]]:
        for keys, _, rows in self._gathered.drain():
            entries = self._state.view(keys)
            counts, accumulators = zip(*self._state.get_last_written(keys), strict=True)
            rows.keys, rows.values = keys, list(accumulators)
            if not self._expires:
                rows.updates = [count + 1 for count in counts]
            made, refused = map_rows(
                self._emit, TrackedRows(rows, keys), accumulators, refuse=partial(self._ctx.reject_result, rows)
            )
            rows = rows.drop(refused)
            if rows.updates is not None:
                entries.update(zip(rows.keys or (), zip(rows.updates, rows.values, strict=True), strict=True))
            yield replace(rows, values=made)

    def close(self) -> None:
        self._gathered.close()


def _no_records() -> Any:
    raise AssertionError("a merging fold begins with the first accumulator")
