"""What a writer does with a row that it cannot write: the policy of the row's source decides.

The policy is ``TaskContext.services.reject_row``.
Rule: a row is left out only after the policy has taken it; all its neighbours are written, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos._util.bulk_calls import extend
from kafka_eos.abc.services import RejectRow
from kafka_eos.core.fault_attribution import surely_the_records
from kafka_eos.core.records import Batch

T = TypeVar("T")


class BadRows(Exception):
    """Rows that cannot be encoded: the error by the index in their batch, ascending. Never leaves the connectors."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(f"{len(errors)} rows cannot be encoded")
        self.errors = errors


def encoded(
    encode: Callable[[Batch[Any]], T], batch: Batch[Any], operator: str, reject: RejectRow
) -> tuple[Batch[Any], T]:
    """The rows that can be encoded, and what ``encode`` makes of them; ``reject`` gets the others."""
    while True:
        try:
            return batch, encode(batch)
        except BadRows as bad:
            for index, error in bad.errors.items():
                reject(batch, index, operator, error)
            batch = batch.without(bad.errors)


def each_row(fn: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """``fn`` of each value; BadRows that names every row on which it raised."""
    done, errors = tried(fn, values)
    if errors:
        raise BadRows(errors)
    return done


def tried(fn: Callable[[Any], Any], values: Sequence[Any]) -> tuple[list[Any], dict[int, Exception]]:
    """``fn`` of each value on which it did not raise, and by index the errors of the others.

    An error that may be the environment's ends the search: the next rows would meet it too, each perhaps after a
    timeout.
    """
    done: list[Any] = []
    errors: dict[int, Exception] = {}
    todo = [iter(values)]
    while (error := extend(done, fn, todo, len(values) - len(errors))) is not None:
        errors[len(done) + len(errors)] = error
        if not surely_the_records(error):
            break
    return done, errors
