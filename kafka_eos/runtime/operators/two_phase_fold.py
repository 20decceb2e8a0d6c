"""A fold in two phases: accumulators of some of the records, made where those were read, and merged by the key's owner.

    PartialFold    keys, folds, and gives its accumulators at the end of the epoch
    MergingFold    merges them into the key's state; one output a key and epoch, at the epoch's end

What is gathered and not handed on is no state, and there is none of it at a snapshot: ``flush`` comes first.
Rule: a key and epoch has one output, whose origin is the last row that went into it. Two keys never have the same one,
because what tells outputs of one record apart is fixed in their branch before they are summed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from kafka_eos._util.bulk_calls import each
from kafka_eos._util.log_context import Rows
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import Ttl
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.provenance import branched
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.epoch_buffer import Gathered, Summing, of_several
from kafka_eos.runtime.operators.fold import Fold
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.stateless import KeyBy

_NOTHING: Any = object()


class PartialFold:
    """``acc = step(acc or init(), value)`` for each row; accumulators come out of ``flush``.

    What ``merge`` raises, where a key's accumulator was made in parts, stops the job; see ``MergingFold``.
    """

    def __init__(
        self,
        key: Callable[[Any], Any],
        key_codec: Codec[Any],
        init: Callable[[], Any],
        step: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
        accumulators: ListCodec[Any],
        by_time: bool = False,
    ) -> None:
        self._keyed, self._init, self._step = KeyBy(key, key_codec), init, step
        self._summing = Summing(accumulators, merge)
        self._values: Callable[[Batch[Any]], Sequence[Any]] = Batch.in_time if by_time else attrgetter("values")

    def open(self, ctx: OperatorContext) -> None:
        self._ctx, self._gathered = ctx, Gathered(ctx, self._summing)
        self._keyed.open(ctx)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Takes the rows in; what is returned is empty."""
        batch = branched(self._keyed.process(batch), self._ctx.place)
        init, step, accumulators = self._init, self._step, self._gathered.accumulators
        last: dict[Any, int] = {}
        for index, (key, value) in enumerate(zip(batch.keys or (), Rows(batch, self._values(batch)), strict=True)):
            try:
                acc = accumulators.get(key, _NOTHING)
                accumulators[key] = step(init() if acc is _NOTHING else acc, value)
            except Exception as error:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                self._ctx.reject(batch, index, error)
                continue
            last[key] = index
        self._gathered.note(batch, last)
        return batch.take([])

    def flush(self) -> Iterator[Batch[Any]]:
        for keys, accumulators, rows in self._gathered.take():
            rows.keys, rows.values = keys, accumulators
            yield rows

    def close(self) -> None:
        self._gathered.close()


class MergingFold(Fold):
    """``acc = merge(acc, partial)`` for each row, and ``emit(key, acc)`` once for each key at the end of an epoch.

    What ``merge`` or ``emit`` raises is no single record's fault, so it stops the job under any policy; unless it is
    the environment's.
    """

    def __init__(
        self,
        merge: Callable[[Any, Any], Any],
        emit: Callable[[Any, Any], Any] | None,
        key_codec: Codec[Any],
        entry_codec: Codec[tuple[int, Any]],
        ttl: Ttl | None = None,
    ) -> None:
        super().__init__(_no_records, merge, emit, key_codec, entry_codec, ttl)

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._gathered = Gathered(ctx)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Takes accumulators in; what is returned is empty."""
        keys, merge = batch.keys or [], self._step
        entries = self._state.view(set(keys))
        last: dict[Any, int] = {}
        for index, (key, partial) in enumerate(zip(self._in_time(batch), Rows(batch, batch.values), strict=True)):
            try:
                entry = entries.get(key)
                entries[key] = (0, partial) if entry is None else (entry[0], merge(entry[1], partial))
            except Exception as error:
                raise self._stop(batch, index, error) from error
            last[key] = index
        if keys and not self._first.is_tried:
            self._try(entries.get(keys[-1]))
        self._gathered.note(batch, last)
        return batch.take([])

    def flush(self) -> Iterator[Batch[Any]]:
        for keys, _, rows in self._gathered.take():
            entries = self._state.view(keys)
            counts, accumulators = zip(*self._state.written(keys), strict=True)
            rows.values, rows.keys = self._emitted(keys, accumulators, rows), keys
            if not self._expires:
                rows.updates = [count + 1 for count in counts]
                entries.update(zip(keys, zip(rows.updates, accumulators, strict=True), strict=True))
            yield rows

    def close(self) -> None:
        self._gathered.close()

    def _emitted(self, keys: Sequence[Any], accumulators: Sequence[Any], rows: Batch[Any]) -> list[Any]:
        """As ``base.call_each``, but whatever is raised ends the job."""

        def stop(index: int, error: Exception) -> None:
            raise self._stop(rows, index, error) from error

        return each(self._emit, Rows(rows, keys), accumulators, refuse=stop)[0]

    def _stop(self, batch: Batch[Any], index: int, error: Exception) -> PoisonRecord:
        self._ctx.expect_record(batch, index, error)
        return of_several(batch.origin.raw(batch.rows[index]).where, self._ctx.operator, error)


def _no_records() -> Any:
    raise AssertionError("a merging fold begins with the first accumulator")
