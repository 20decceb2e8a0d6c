"""The aggregate: an accumulator to which values are added, its merge with another one, and its result.

Rule: an accumulator is never modified. ``add`` and ``merge`` return a new one, or one of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast, overload

from kafka_eos.codecs.field_access import read_field
from kafka_eos.core.error_messages import UnfitValue, show_value

T = TypeVar("T")
V = TypeVar("V")

T_contra = TypeVar("T_contra", contravariant=True)
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)

FieldOr: TypeAlias = str | Callable[[T], V]
"""The name of a field of the values, or a function of a value."""

PLAIN = int | float | str | bool | None
"""Values that storage preserves without a declared type."""
_PLAIN = frozenset((int, float, str, bool))


class Aggregate(Generic[T_contra, A, R_co]):
    """The base class of aggregates. ``merge(add(a, x), b)`` must equal ``add(merge(a, b), x)``."""

    name: str = "value"
    """The default name of its result field in a row."""
    accumulator: Any = Any
    """The type of accumulators, for the codecs that store them."""
    returns: Any = Any
    """The type of results, for the codecs of rows. ``Any``: unknown."""

    @property
    def needs_event_time(self) -> bool:
        """Return whether ``add`` takes pairs of a value and its event-time sort key (``Batch.with_sort_keys``)."""
        return False

    def for_type(self, values: Any) -> Self:
        """Return the aggregate for values of a type; None if the type is unknown.

        Raises PlanError if the aggregate reads a field by name that such values do not have.
        """
        named = {name: fn for name, fn in vars(self).items() if isinstance(fn, FieldReader)}
        read = {name: read_field(fn.name, values) for name, fn in named.items()}
        return cast("Self", replace(cast("Any", self), **read)) if read else self

    def create(self) -> A:
        """Return the accumulator of no values."""
        raise NotImplementedError(f"{type(self).__name__} does not define create()")

    def add(self, acc: A, value: T_contra, /) -> A:
        """Return the accumulator with one more value."""
        raise NotImplementedError(f"{type(self).__name__} does not define add(accumulator, value)")

    def merge(self, one: A, other: A, /) -> A:
        """Return the accumulator of the values of both."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge(one, other)")

    def result(self, acc: A, /) -> R_co:
        """Return the result of the values in the accumulator."""
        raise NotImplementedError(f"{type(self).__name__} does not define result(accumulator)")


class FieldReader:
    """The function that a field's name stands for, before the type of the values is known."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._read = read_field(name, None)

    def __call__(self, value: Any) -> Any:
        return self._read(value)


@overload
def as_function(field: FieldOr[T, V]) -> Callable[[T], V]: ...


@overload
def as_function(field: FieldOr[T, V] | None) -> Callable[[T], V] | None: ...


def as_function(field: FieldOr[T, V] | None) -> Callable[[T], V] | None:
    """Return the function of a value that an argument is, or names."""
    return FieldReader(field) if isinstance(field, str) else field


def ensure_plain(value: Any, of: str) -> Any:
    """Return the value if it can be stored without a declared type, else raise UnfitValue.

    Without a type any record may bring a list or an object, so the record is at fault and not the plan.
    """
    if type(value) not in _PLAIN:
        raise UnfitValue(
            f"agg.{of} keeps {show_value(value, 80)} of type {type(value).__name__}, but this type is not declared: "
            f"pass it, agg.{of}(..., state={type(value).__name__})"
        )
    return value


def to_sort_key(order: Any, of: str) -> Any:
    """Convert an order key to a form that storage preserves. Rejects NaN."""
    if type(order) is tuple:
        return [to_sort_key(part, of) for part in order]
    if type(order) not in _PLAIN:
        raise UnfitValue(
            f"agg.{of} orders by numbers, str, or tuples of these, not by {show_value(order, 80)} of type "
            f"{type(order).__name__}"
        )
    if order != order:  # true only for NaN
        raise UnfitValue(f"agg.{of} cannot order NaN")
    return order
