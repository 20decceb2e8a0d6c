"""What an aggregate is: an accumulator that values are added to, that can be merged with another one, and its result.

Rule: an accumulator is never changed. ``add`` and ``merge`` give a new one, or one that they were given.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from kafka_eos.core.errors import PlanError

T_contra = TypeVar("T_contra", contravariant=True)
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)

PLAIN = int | float | str | bool | None
"""What comes back from storage as it was, also where nobody has said its type."""
_PLAIN = frozenset((int, float, str, bool))


class Aggregate(Generic[T_contra, A, R_co]):
    """Subclass it for an aggregate of your own. ``merge(add(a, x), b)`` must equal ``add(merge(a, b), x)``."""

    name: str = "value"
    """The field of its result in a row, where none is given."""
    accumulator: Any = Any
    """The type of accumulators, for the codecs that store them."""
    returns: Any = Any
    """The type of results, for the codecs of rows. ``Any``: not known."""

    @property
    def by_time(self) -> bool:
        """Does it go by event time? Then ``add`` takes pairs: a value, and its place there (``Batch.in_time``)."""
        return False

    def of(self, values: Any) -> Aggregate[T_contra, Any, R_co]:
        """The same for values of that type; None where it is not known."""
        return self

    def create(self) -> A:
        """The accumulator of no values."""
        raise NotImplementedError(f"{type(self).__name__} does not define create()")

    def add(self, acc: A, value: T_contra, /) -> A:
        raise NotImplementedError(f"{type(self).__name__} does not define add(accumulator, value)")

    def merge(self, one: A, other: A, /) -> A:
        """The accumulator of the values of both."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge(one, other)")

    def result(self, acc: A, /) -> R_co:
        raise NotImplementedError(f"{type(self).__name__} does not define result(accumulator)")


def plain(value: Any, of: str) -> Any:
    """``value``, if it comes back from storage as it was without a type; else PlanError. ``of``: the aggregate."""
    if type(value) not in _PLAIN:
        raise PlanError(
            f"{of} keeps {value!r:.80} of type {type(value).__name__}, and nothing says how that is stored: give its "
            f"type, {of}(..., state={type(value).__name__})"
        )
    return value


def sortable(order: Any, of: str) -> Any:
    """What a value is ordered by, in a form that comes back from storage; None and NaN have no place in an order."""
    if type(order) is tuple:
        return [sortable(part, of) for part in order]
    if type(order) not in _PLAIN:
        raise ValueError(
            f"{of} orders by numbers, str, or tuples of these, not by {order!r:.80} of type {type(order).__name__}"
        )
    if order != order:  # NaN and nothing else
        raise ValueError(f"{of} cannot order NaN")
    return order
