"""Operators that look at one row at a time and keep nothing: map, filter, flat_map, map_batches, key_by.

Rule: the user's function is called by C code (``map``, ``compress``) wherever that is possible; Python of ours
runs once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from kafka_eos.core.errors import PlanError
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.function_outputs import listed
from kafka_eos.runtime.operators.operator import OperatorContext, call_each

_STORABLE = range(-(2**63), 2**64)


class Stateless:
    """Opens and closes nothing."""

    ctx: OperatorContext

    def open(self, ctx: OperatorContext) -> None:
        self.ctx = ctx

    def close(self) -> None:
        return None


class Map(Stateless):
    """One value in, one value out."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        values, refused = call_each(self._fn, batch, batch.values, self.ctx)
        return replace(batch.without(refused), values=values)


class Filter(Stateless):
    """Keeps the rows for which the function is true."""

    def __init__(self, fn: Callable[[Any], object]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        found, refused = call_each(self._fn, batch, batch.values, self.ctx)
        batch = batch.without(refused)
        if set(map(type, found)) <= {bool}:
            return batch.where(found)
        # To ask whether any other object is true is a call of user code again, and it may raise.
        keep, refused = call_each(bool, batch, found, self.ctx)
        return batch.without(refused).where(keep)


class FlatMap(Stateless):
    """One value in, any number of values out, in the order of the iterable."""

    def __init__(self, fn: Callable[[Any], Iterable[Any]]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        fn = self._fn
        # Listed inside the call: a generator that fails must fail for its own row.
        made, refused = call_each(lambda value: listed(fn(value)), batch, batch.values, self.ctx)
        return spread(batch.without(refused), made)


class MapBatches(Stateless):
    """Many values in, as many out: for functions that are only fast on many (a model, a remote lookup)."""

    def __init__(self, fn: Callable[[list[Any]], list[Any]]) -> None:
        self._fn = fn

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        values: list[Any] = []
        refused: list[int] = []
        self._range(batch, 0, len(batch), values, refused)
        return replace(batch.without(refused), values=values)

    def _range(self, batch: Batch[Any], start: int, stop: int, values: list[Any], refused: list[int]) -> None:
        """Rows ``start`` to ``stop``. If the function fails, halve until the rows at fault stand alone."""
        if start == stop:
            return
        given = batch.values[start:stop]
        try:
            made = list(self._fn(given))
        except Exception as error:  # noqa: BLE001 (``reject`` judges whatever user code raises)
            self.ctx.expect_record(batch, start, error)
            if stop - start == 1:
                self.ctx.reject(batch, start, error)
                refused.append(start)
                return
            middle = (start + stop) // 2
            self._range(batch, start, middle, values, refused)
            self._range(batch, middle, stop, values, refused)
            return
        if len(made) != stop - start:
            raise PlanError(
                f"operator {self.ctx.operator!r}: the function of map_batches got {stop - start} values and returned "
                f"{len(made)}; it must return one for each, in order. To drop or add values use filter or flat_map."
            )
        values += made


class KeyBy(Stateless):
    """Sets the key column. Keys that could not be state keys are refused here, where the record is known."""

    def __init__(self, fn: Callable[[Any], Any], codec: Any) -> None:
        self._fn, self._codec = fn, codec

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        keys, refused = call_each(self._fn, batch, batch.values, self.ctx)
        batch = replace(batch.without(refused), keys=keys)
        return batch if _plain(keys) else self._checked(batch)

    def _checked(self, batch: Batch[Any]) -> Batch[Any]:
        check = self._codec.check
        _, refused = call_each(check, batch, batch.keys or (), self.ctx)
        return batch.without(refused)


def _plain(keys: list[Any]) -> bool:
    """Are all keys surely fine? A few calls a batch; anything unusual is looked at key by key."""
    types = set(map(type, keys))
    if types == {str}:
        return _encodable("".join(keys))
    if types == {int}:
        return min(keys) in _STORABLE and max(keys) in _STORABLE
    return types <= {bytes}


def _encodable(text: str) -> bool:
    """False for lone surrogates, which are not text that can be stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def spread(batch: Batch[Any], made: list[list[Any]]) -> Batch[Any]:
    """A batch of all values of ``made``, where ``made[i]`` comes from row ``i``."""
    return replace(batch.repeated(list(map(len, made))), values=list(chain.from_iterable(made)))
