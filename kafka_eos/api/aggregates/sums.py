"""Counts, sums and means.

Rule: a sum is exact until it is shown. Sums of floats that are rounded at each step depend on the order of the values
in their last digits; this accumulator keeps all digits (Shewchuk's algorithm, as in ``math.fsum``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Self, TypeAlias, TypeVar, overload

import msgspec

from kafka_eos.api.aggregates.aggregate import Aggregate, FieldOr, as_function
from kafka_eos.codecs.type_inspection import can_be, get_return_type, type_name
from kafka_eos.core.errors import PlanError

T = TypeVar("T")
N = TypeVar("N", int, float, Decimal)

_WHOLE = range(-(2**63), 2**63)
_MANY_DIGITS = Context(prec=1000, traps=[Inexact, InvalidOperation])


class Floats(msgspec.Struct, frozen=True, array_like=True):
    """An exact sum of floats: that of ``parts``, whose digits do not overlap.

    ``rest`` is the sum of the values that are not finite: infinity, or NaN.
    """

    parts: tuple[float, ...] = ()
    rest: float = 0.0

    def value(self) -> float:
        return self.rest if self.rest else math.fsum(self.parts)


Sum: TypeAlias = int | Floats | Decimal
_Number: TypeAlias = int | float | Decimal


@dataclass(frozen=True)
class CountAggregate(Aggregate[Any, int, int]):
    where: Callable[[Any], object] | None
    name = "count"
    accumulator = returns = int

    def create(self) -> int:
        return 0

    def add(self, acc: int, value: Any) -> int:
        return acc + 1 if self.where is None or self.where(value) else acc

    def merge(self, one: int, other: int) -> int:
        return one + other

    def result(self, acc: int) -> int:
        return acc


@dataclass(frozen=True)
class SumAggregate(Aggregate[Any, Sum, Any]):
    fn: Callable[[Any], _Number | None] | None
    name = "sum"
    accumulator = Sum
    returns = int | float | Decimal

    def for_type(self, values: Any) -> Self:
        return _expect_numbers(super().for_type(values))

    def create(self) -> Sum:
        return 0

    def add(self, acc: Sum, value: Any) -> Sum:
        number = value if self.fn is None else self.fn(value)
        return acc if number is None else _plus(acc, number)

    def merge(self, one: Sum, other: Sum) -> Sum:
        return _together(one, other)

    def result(self, acc: Sum) -> _Number:
        return acc.value() if isinstance(acc, Floats) else acc


class Total(msgspec.Struct, frozen=True, array_like=True):
    """The count and the sum of numbers."""

    count: int = 0
    sum: Sum = 0


@dataclass(frozen=True)
class MeanAggregate(Aggregate[Any, Total, Any]):
    fn: Callable[[Any], _Number | None] | None
    name = "mean"
    accumulator = Total
    returns = float | Decimal | None

    def for_type(self, values: Any) -> Self:
        return _expect_numbers(super().for_type(values))

    def create(self) -> Total:
        return Total()

    def add(self, acc: Total, value: Any) -> Total:
        number = value if self.fn is None else self.fn(value)
        return acc if number is None else Total(acc.count + 1, _plus(acc.sum, number))

    def merge(self, one: Total, other: Total) -> Total:
        return Total(one.count + other.count, _together(one.sum, other.sum))

    def result(self, acc: Total) -> float | Decimal | None:
        if not acc.count:
            return None
        return (acc.sum.value() if isinstance(acc.sum, Floats) else acc.sum) / acc.count


def count(where: Callable[[T], object] | None = None) -> Aggregate[T, Any, int]:
    """Count the values; with ``where``, only those for which it is true."""
    return CountAggregate(where)


@overload
def sum_(fn: str) -> Aggregate[Any, Any, Any]: ...


@overload
def sum_(fn: Callable[[T], N | None] | None = None) -> Aggregate[T, Any, N]: ...


def sum_(fn: FieldOr[Any, Any] | None = None) -> Aggregate[Any, Any, Any]:
    """Return the sum of ``fn``, a function or a field's name, over all values. None is ignored.

    The numbers are 64-bit ints, floats or Decimals.

    It is exact in any order: floats are rounded once, when the result is read.
    """
    return SumAggregate(as_function(fn))


def mean(fn: FieldOr[T, N | None] | None = None) -> Aggregate[T, Any, Any]:
    """Return the mean of ``fn``, a function or a field's name, over all values. None is ignored.

    It is a Decimal for Decimals, else a float. Without values it is None.
    """
    return MeanAggregate(as_function(fn))


_G = TypeVar("_G", bound=SumAggregate | MeanAggregate)


def _expect_numbers(aggregate: _G) -> _G:
    """Return the aggregate. Raise PlanError if the type of what it adds up is known and is not of numbers."""
    of = get_return_type(aggregate.fn)
    if not can_be(of, int | float | Decimal):
        raise PlanError(f"agg.{aggregate.name} takes int, float or Decimal, not {type_name(of)}")
    return aggregate


def _plus(acc: Sum, number: _Number) -> Sum:
    if type(number) is int and type(acc) is int:
        return _whole(acc + number)
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        raise TypeError(f"a sum takes int, float or Decimal, not {number!r:.80} of type {type(number).__name__}")
    return _together(acc, _floats(number) if isinstance(number, float) else number)


def _together(one: Sum, other: Sum) -> Sum:
    if isinstance(one, Floats) or isinstance(other, Floats):
        return _added(_floats(one), _floats(other))
    if isinstance(one, int) and isinstance(other, int):
        return _whole(one + other)
    return _MANY_DIGITS.add(Decimal(one), Decimal(other))


def _whole(number: int) -> int:
    if number not in _WHOLE:
        raise OverflowError(f"a sum of {number} has more than the 64 bits that are stored; sum up Decimals")
    return number


def _floats(number: Sum | float) -> Floats:
    match number:
        case Floats():
            return number
        case Decimal():
            raise TypeError("floats and Decimals cannot be summed together; convert them to one type")
        case float():
            return Floats((float(number),)) if math.isfinite(number) else Floats((), number)
        case _:
            parts: list[float] = []
            while number:
                parts.append(float(number))
                number -= int(parts[-1])
            return Floats(tuple(reversed(parts)))


def _added(one: Floats, other: Floats) -> Floats:
    parts = list(one.parts)
    for number in other.parts:
        parts = _grown(parts, number)
    return Floats(tuple(parts), one.rest + other.rest)


def _grown(parts: list[float], number: float) -> list[float]:
    """Add ``number`` to ``parts`` exactly: each sum of two floats is stored together with its rounding error."""
    grown = []
    for part in parts:
        large, small = (part, number) if abs(part) > abs(number) else (number, part)
        number = large + small
        if lost := small - (number - large):
            grown.append(lost)
    if not math.isfinite(number):
        raise OverflowError("the sum exceeds the range of a float")
    return [*grown, number]
