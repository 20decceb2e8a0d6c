"""Operators without state: map, filter, flat_map, map_batches, key_by.

Rule: C code (``map``, ``compress``) calls the user's function wherever possible; our Python code runs once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from msgspec.structs import replace

from kafka_eos.core.errors import PlanError
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.function_outputs import list_outputs
from kafka_eos.runtime.operators.operator import Operator, call_each

_STORABLE = range(-(2**63), 2**64)


class MapOperator(Operator):
    """The operator of map: one value in, one value out."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        values, refused = call_each(self._fn, batch, batch.values, self._ctx)
        return replace(batch.drop(refused), values=values)


class FilterOperator(Operator):
    """Keeps the rows for which the function is true."""

    def __init__(self, fn: Callable[[Any], object]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        found, refused = call_each(self._fn, batch, batch.values, self._ctx)
        batch = batch.drop(refused)
        if set(map(type, found)) <= {bool}:
            return batch.filter(found)
        # Testing any other object for truth calls user code again, which may raise.
        keep, refused = call_each(bool, batch, found, self._ctx)
        return batch.drop(refused).filter(keep)


class FlatMapOperator(Operator):
    """The operator of flat_map: one value in, any number out, in the order of the iterable."""

    def __init__(self, fn: Callable[[Any], Iterable[Any]]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        fn = self._fn
        # Listed inside the call: a generator that fails must fail for its own row.
        made, refused = call_each(lambda value: list_outputs(fn(value)), batch, batch.values, self._ctx)
        return flatten_outputs(batch.drop(refused), made)


class MapBatchesOperator(Operator):
    """The operator of map_batches, for functions that are efficient only on batches."""

    def __init__(self, fn: Callable[[list[Any]], list[Any]]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        values: list[Any] = []
        refused: list[int] = []
        self._range(batch, 0, len(batch), values, refused)
        return replace(batch.drop(refused), values=values)

    def _range(self, batch: Batch[Any], start: int, stop: int, values: list[Any], refused: list[int]) -> None:
        """Process rows ``start`` to ``stop``. If the function fails, bisect until the failing rows are isolated."""
        if start == stop:
            return
        given = batch.values[start:stop]
        try:
            made = list(self._fn(given))
        except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
            error = as_exception(raised)
            self._ctx.expect_record(batch, start, error)
            if stop - start == 1:
                self._ctx.reject(batch, start, error)
                refused.append(start)
                return
            middle = (start + stop) // 2
            self._range(batch, start, middle, values, refused)
            self._range(batch, middle, stop, values, refused)
            return
        if len(made) != stop - start:
            raise PlanError(
                f"operator {self._ctx.operator!r}: the function of map_batches got {stop - start} values but returned "
                f"{len(made)}; it must return one value for each, in order. To drop or add values use filter or "
                "flat_map."
            )
        values += made


class KeyByOperator(Operator):
    """Sets the key column; rejects keys that cannot be stored, while the record is known."""

    def __init__(self, fn: Callable[[Any], Any], codec: Any) -> None:
        self._fn, self._codec = fn, codec

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        keys, refused = call_each(self._fn, batch, batch.values, self._ctx)
        batch = replace(batch.drop(refused), keys=keys)
        return batch if _plain(keys) else self._checked(batch)

    def _checked(self, batch: Batch[Any]) -> Batch[Any]:
        check = self._codec.check_key
        _, refused = call_each(check, batch, batch.keys or (), self._ctx)
        return batch.drop(refused)


def _plain(keys: list[Any]) -> bool:
    """Return whether all keys are certainly valid: a quick check. Otherwise they are checked one by one."""
    types = set(map(type, keys))
    if types == {str}:
        return _encodable("".join(keys))
    if types == {int}:
        return min(keys) in _STORABLE and max(keys) in _STORABLE
    return types <= {bytes}


def _encodable(text: str) -> bool:
    """Return False for lone surrogates, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def flatten_outputs(batch: Batch[Any], made: list[list[Any]]) -> Batch[Any]:
    """Build a batch of all outputs, with the row that each came from."""
    return replace(batch.repeat(list(map(len, made))), values=list(chain.from_iterable(made)))
