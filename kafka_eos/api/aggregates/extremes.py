"""Aggregates of the first or last values in an order: minimum, latest, top ten, all values sorted.

Rule: an order is total. Of values with the same sort key, the one with the lower stored form comes first. So the result
does not depend on the order of arrival.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias, TypeVar, overload

import msgspec

from kafka_eos.api.aggregates.aggregate import (
    PLAIN,
    Aggregate,
    FieldOr,
    as_function,
    ensure_plain,
    to_sort_key,
)
from kafka_eos.codecs.type_inspection import get_return_type, to_plain
from kafka_eos.core.errors import PlanError

T = TypeVar("T")
V = TypeVar("V")

_stored = msgspec.msgpack.Encoder(enc_hook=to_plain, order="deterministic").encode
_PLACE = tuple[int, int, int]
_Ranked: TypeAlias = tuple[tuple[Any, Any], ...]
"""Pairs of sort key and value; in order."""


@dataclass(frozen=True, kw_only=True)
class ExtremeAggregate(Aggregate[Any, Any, Any]):
    """The minimum or the maximum."""

    name: str
    fn: Callable[[Any], Any] | None
    before: Callable[[Any, Any], bool]
    state: Any

    def for_type(self, values: Any) -> Self:
        bound = super().for_type(values)
        return bound if self.state is not None else replace(bound, state=_type_read(bound.fn, values))

    @cached_property
    def accumulator(self) -> Any:
        return _or_nothing(self.state)

    @cached_property
    def returns(self) -> Any:
        return _or_nothing(self.state)

    def create(self) -> Any:
        return None

    def add(self, acc: Any, value: Any) -> Any:
        found = value if self.fn is None else self.fn(value)
        if found is None:
            return acc
        if found != found:  # true only for NaN
            raise ValueError(f"agg.{self.name} cannot order NaN")
        return self.merge(acc, ensure_plain(found, self.name) if self.state is None else found)

    def merge(self, one: Any, other: Any) -> Any:
        if one is None or other is None:
            return other if one is None else one
        if self.before(one, other):
            return one
        return other if self.before(other, one) or _stored(other) < _stored(one) else one

    def result(self, acc: Any) -> Any:
        return acc


@dataclass(frozen=True, kw_only=True)
class RankedAggregate(Aggregate[Any, _Ranked, Any]):
    """The first or last values in an order. ``by`` is None for the order of event time."""

    name: str
    by: Callable[[Any], Any] | None
    value: Callable[[Any], Any] | None
    state: Any
    most: int | None = 1
    last: bool = False
    """Keep the end of the order, and show it from there."""
    listed: bool = False
    """The result is a list."""

    def for_type(self, values: Any) -> Self:
        bound = super().for_type(values)
        return bound if self.state is not None else replace(bound, state=_type_read(bound.value, values))

    @property
    def needs_event_time(self) -> bool:
        return self.by is None

    @cached_property
    def accumulator(self) -> Any:
        place: Any = _PLACE if self.by is None else Any
        return tuple[tuple[place, self._kept], ...]  # type: ignore[name-defined]

    @cached_property
    def returns(self) -> Any:
        return list[self._kept] if self.listed else _or_nothing(self.state)  # type: ignore[name-defined]

    @property
    def _kept(self) -> Any:
        return PLAIN if self.state is None else self.state

    def create(self) -> _Ranked:
        return ()

    def add(self, acc: _Ranked, value: Any) -> _Ranked:
        if self.by is None:
            value, place = value
        elif (order := self.by(value)) is None:
            return acc
        else:
            place = to_sort_key(order, self.name)
        if len(acc) == self.most and (place < acc[0][0] if self.last else place > acc[-1][0]):
            return acc
        kept = value if self.value is None else self.value(value)
        if kept is None:
            return acc
        return self._trimmed(_inserted(acc, place, ensure_plain(kept, self.name) if self.state is None else kept))

    def merge(self, one: _Ranked, other: _Ranked) -> _Ranked:
        for place, value in other:
            one = _inserted(one, place, value)
        return self._trimmed(one)

    def result(self, acc: _Ranked) -> Any:
        values = [value for _, value in (reversed(acc) if self.last else acc)]
        return values if self.listed else next(iter(values), None)

    def _trimmed(self, acc: _Ranked) -> _Ranked:
        if self.most is None:
            return acc
        return acc[-self.most :] if self.last else acc[: self.most]


@overload
def min_(fn: str, *, state: Any = None) -> Aggregate[Any, Any, Any]: ...


@overload
def min_(fn: Callable[[T], V] | None = None, *, state: Any = None) -> Aggregate[T, Any, V]: ...


def min_(fn: FieldOr[Any, Any] | None = None, *, state: Any = None) -> Aggregate[Any, Any, Any]:
    """Return the minimum of ``fn``, a function or a field's name, over all values. None is ignored.

    - ``state``: its type, if it is neither a number nor a str.
    """
    return ExtremeAggregate(name="min", fn=as_function(fn), before=operator.lt, state=_type_of(fn, state))


@overload
def max_(fn: str, *, state: Any = None) -> Aggregate[Any, Any, Any]: ...


@overload
def max_(fn: Callable[[T], V] | None = None, *, state: Any = None) -> Aggregate[T, Any, V]: ...


def max_(fn: FieldOr[Any, Any] | None = None, *, state: Any = None) -> Aggregate[Any, Any, Any]:
    """Return the maximum of ``fn``, a function or a field's name, over all values. None is ignored.

    - ``state``: its type, if it is neither a number nor a str.
    """
    return ExtremeAggregate(name="max", fn=as_function(fn), before=operator.gt, state=_type_of(fn, state))


@overload
def min_by(by: FieldOr[T, Any], *, state: Any = None) -> Aggregate[T, Any, T]: ...


@overload
def min_by(by: FieldOr[T, Any], value: FieldOr[T, V], *, state: Any = None) -> Aggregate[T, Any, V]: ...


def min_by(by: FieldOr[T, Any], value: Any = None, *, state: Any = None) -> Aggregate[T, Any, Any]:
    """Return the value with the lowest ``by``, or ``value`` of it: functions, or names of fields.

    ``by`` returns numbers, str, or tuples of these.

    - ``state``: the type of the result, if neither the stream nor ``value`` declares it and it is not a number or str.
    """
    return _rank("min_by", by, value, state)


@overload
def max_by(by: FieldOr[T, Any], *, state: Any = None) -> Aggregate[T, Any, T]: ...


@overload
def max_by(by: FieldOr[T, Any], value: FieldOr[T, V], *, state: Any = None) -> Aggregate[T, Any, V]: ...


def max_by(by: FieldOr[T, Any], value: Any = None, *, state: Any = None) -> Aggregate[T, Any, Any]:
    """Return the value with the highest ``by``, or ``value`` of it; see ``min_by``."""
    return _rank("max_by", by, value, state, last=True)


@overload
def first(*, by: FieldOr[T, Any] | None = None, state: Any = None) -> Aggregate[T, Any, T]: ...


@overload
def first(value: FieldOr[T, V], *, by: FieldOr[T, Any] | None = None, state: Any = None) -> Aggregate[T, Any, V]: ...


def first(value: Any = None, *, by: Any = None, state: Any = None) -> Aggregate[Any, Any, Any]:
    """Return the earliest value, or ``value`` of it: by event time, then by partition and offset; or by ``by``.

    Note: "first" does not mean "first to arrive", which differs from run to run.
    """
    return _rank("first", by, value, state)


@overload
def last(*, by: FieldOr[T, Any] | None = None, state: Any = None) -> Aggregate[T, Any, T]: ...


@overload
def last(value: FieldOr[T, V], *, by: FieldOr[T, Any] | None = None, state: Any = None) -> Aggregate[T, Any, V]: ...


def last(value: Any = None, *, by: Any = None, state: Any = None) -> Aggregate[Any, Any, Any]:
    """Return the latest value, or ``value`` of it; see ``first``."""
    return _rank("last", by, value, state, last=True)


@overload
def top(n: int, by: FieldOr[T, Any], *, state: Any = None) -> Aggregate[T, Any, list[T]]: ...


@overload
def top(n: int, by: FieldOr[T, Any], value: FieldOr[T, V], *, state: Any = None) -> Aggregate[T, Any, list[V]]: ...


def top(n: int, by: FieldOr[T, Any], value: Any = None, *, state: Any = None) -> Aggregate[T, Any, list[Any]]:
    """Return the ``n`` values with the highest ``by``, highest first, or ``value`` of each; see ``min_by``."""
    if n < 1:
        raise PlanError(f"top: n must be at least 1 (got {n})")
    return _rank("top", by, value, state, most=n, last=True, listed=True)


@overload
def collect(*, by: FieldOr[T, Any] | None = None, state: Any = None) -> Aggregate[T, Any, list[T]]: ...


@overload
def collect(
    value: FieldOr[T, V], *, by: FieldOr[T, Any] | None = None, state: Any = None
) -> Aggregate[T, Any, list[V]]: ...


def collect(value: Any = None, *, by: Any = None, state: Any = None) -> Aggregate[Any, Any, list[Any]]:
    """Return all values, or ``value`` of each, as a list in the order of ``first``.

    Note: the list grows with every value, and so does the cost of adding one. Use it for windows, and for keys with few
    values.
    """
    return _rank("collect", by, value, state, most=None, listed=True)


def _rank(
    name: str, by: FieldOr[Any, Any] | None, value: FieldOr[Any, Any] | None, state: Any, **parts: Any
) -> RankedAggregate:
    known = _type_of(value, state)
    return RankedAggregate(name=name, by=as_function(by), value=as_function(value), state=known, **parts)


def _type_of(value: FieldOr[Any, Any] | None, state: Any) -> Any:
    return get_return_type(value) if state is None else state


def _type_read(value: Callable[[Any], Any] | None, values: Any) -> Any:
    """Return the type that an aggregate reads: the result type of its function, or the type of the values."""
    return values if value is None else get_return_type(value)


def _or_nothing(tp: Any) -> Any:
    return PLAIN if tp is None else tp | None


def _inserted(ranked: _Ranked, place: Any, value: Any) -> _Ranked:
    index = bisect_left(ranked, place, key=operator.itemgetter(0))
    while index < len(ranked) and ranked[index][0] == place and _stored(ranked[index][1]) < _stored(value):
        index += 1
    return (*ranked[:index], (place, value), *ranked[index:])
