"""Handling of rows that a writer cannot write: the error policy of the row's source decides.

The policy is ``TaskContext.services.reject_row``.
Rule: a row is left out only after the policy has accepted it; all its neighbors are written, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos._util.bulk_calls import append_results
from kafka_eos.abc.services import RejectRow
from kafka_eos.core.fault_attribution import is_plain_data_error
from kafka_eos.core.records import Batch

T = TypeVar("T")


class BadRows(Exception):
    """The rows that cannot be encoded: errors by index in their batch, ascending. Never leaves the connectors."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(f"{len(errors)} rows cannot be encoded")
        self.errors = errors


def encode_or_reject(
    encode: Callable[[Batch[Any]], T], batch: Batch[Any], operator: str, reject: RejectRow
) -> tuple[Batch[Any], T]:
    """Encode the batch, after passing the rows that cannot be encoded to ``reject``."""
    while True:
        try:
            return batch, encode(batch)
        except BadRows as bad:
            for index, error in bad.errors.items():
                reject(batch, index, operator, error)
            batch = batch.drop(bad.errors)


def map_rows(fn: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Apply ``fn`` to each value; raise BadRows with every row for which it failed."""
    done, errors = try_rows(fn, values)
    if errors:
        raise BadRows(errors)
    return done


def try_rows(fn: Callable[[Any], Any], values: Sequence[Any]) -> tuple[list[Any], dict[int, Exception]]:
    """Apply ``fn`` to each value; return the results, and the errors by index.

    An error that the environment may have caused stops the loop: the next rows might fail with it too, each perhaps
    after a timeout.
    """
    done: list[Any] = []
    errors: dict[int, Exception] = {}
    todo = [iter(values)]
    while (error := append_results(done, fn, todo, len(values) - len(errors))) is not None:
        errors[len(done) + len(errors)] = error
        if not is_plain_data_error(error):
            break
    return done, errors
