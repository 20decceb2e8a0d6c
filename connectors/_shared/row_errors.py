"""Handling of rows that a writer cannot write: the error policy of the row's source decides.

The policy is ``TaskContext.services.reject_row``.
Rule: a row is left out only after the policy has accepted it; all its neighbors are written, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos._util import bulk_calls
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
    """Apply ``fn`` to each value; raise BadRows with every row for which it failed.

    An error that the environment may have caused stops the loop: the next rows might fail with it too, each perhaps
    after a timeout.
    """
    errors: dict[int, Exception] = {}

    def note(index: int, error: Exception) -> None:
        errors[index] = error
        if not is_plain_data_error(error):
            raise BadRows(errors)

    done, _ = bulk_calls.map_rows(fn, values, refuse=note)
    if errors:
        raise BadRows(errors)
    return done
