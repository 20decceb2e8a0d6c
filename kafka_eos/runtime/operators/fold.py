"""The operators of fold and reduce: one value per key, and one output for every input.

The state is the pair (updates, accumulator) in one entry, so the number of an output and its accumulator are always
consistent. With a time to live the number restarts when the entry has expired. Then it defines no order, and outputs do
not carry it.

Rule: a key's entry is replaced only after the user's code has returned.

Note for users: a step that modifies the accumulator *in place* also changes outputs that are not written yet, and the
change is not undone if it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor, Ttl
from kafka_eos.codecs import CountedCodec
from kafka_eos.core.errors import Bug
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator import Operator, OperatorContext, iterate_with_clock
from kafka_eos.runtime.operators.storability import storable_accumulators

STATE = "accumulator"


class FoldOperator(Operator):
    """Folds each key: acc = step(acc or init(), value), then emit(key, acc), row by row.

    ``by_time``: ``step`` takes values with their event-time sort keys, see ``Batch.with_sort_keys``.
    """

    def __init__(
        self,
        init: Callable[[], Any],
        step: Callable[[Any, Any], Any],
        emit: Callable[[Any, Any], Any] | None,
        key_codec: Codec[Any],
        entry_codec: Codec[tuple[int, Any]],
        ttl: Ttl | None,
        by_time: bool,
    ) -> None:
        self._init = init
        self._step = step
        self._emit = emit or _pair
        self._values: Callable[[Batch[Any]], Sequence[Any]] = Batch.with_sort_keys if by_time else attrgetter("values")
        self._descriptor = StateDescriptor(STATE, key_codec, entry_codec, ttl=ttl)
        self._expires, self._event_time = ttl is not None, ttl is not None and ttl.clock == "event"
        if not isinstance(entry_codec, CountedCodec):
            raise Bug(f"the codec of a fold's entries must count updates, but {entry_codec.name!r} does not")
        self._storable = storable_accumulators(entry_codec.inner)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx, self._state = ctx, ctx.value_state(self._descriptor)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        keys = batch.keys or []
        entries = self._state.view(keys)
        init, step, emit, storable = self._init, self._step, self._emit, self._storable
        check, number, least, greatest = storable.check, storable.number, storable.least, storable.greatest
        out: list[Any] = []
        updates: list[int] = []
        refused: list[int] = []
        for key, value in zip(self._in_time(batch), TrackedRows(batch, self._values(batch)), strict=True):
            try:
                entry = entries.get(key)
                if entry is None:
                    count, acc = 1, step(init(), value)
                else:
                    count, acc = entry[0] + 1, step(entry[1], value)
                made = emit(key, acc)
                if not (type(acc) is number and least <= acc <= greatest):  # a call for each row costs more
                    check(acc)
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                index = len(out) + len(refused)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            entries[key] = (count, acc)
            out.append(made)
            updates.append(count)
        return replace(batch.drop(refused), values=out, updates=None if self._expires else updates)

    def _in_time(self, batch: Batch[Any]) -> Iterable[Any]:
        """Return the keys of the rows. In event time, the clock moves to each row's time when its key is yielded."""
        return iterate_with_clock(batch, self._state) if self._event_time else batch.keys or ()


class ReduceOperator(FoldOperator):
    """A fold that starts with the key's first value and emits the value reduced so far."""

    def __init__(
        self,
        fn: Callable[[Any, Any], Any],
        key_codec: Codec[Any],
        entry_codec: Codec[tuple[int, Any]],
        ttl: Ttl | None,
    ) -> None:
        def step(acc: Any, value: Any) -> Any:
            return value if acc is _NOTHING else fn(acc, value)

        super().__init__(lambda: _NOTHING, step, _accumulator, key_codec, entry_codec, ttl, by_time=False)


_NOTHING = object()


def _pair(key: Any, acc: Any) -> tuple[Any, Any]:
    return key, acc


def _accumulator(key: Any, acc: Any) -> Any:
    return acc
