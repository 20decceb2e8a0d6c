"""What an engine and an operator know of each other.

An operator takes a batch and returns a batch; it knows no engine, broker or clock. State comes through the
context, and so does the way out for a record that the user's code refuses.

Rules: an operator never changes the batch it is given (another branch may read it); what it returns keeps the
origin of every row; it is used from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kafka_eos.errors import KafkaEosError
from kafka_eos.interfaces import StateDescriptor, ValueState
from kafka_eos.records import Batch
from kafka_eos.state.scratch import Scratch, unbounded

NOT_THE_RECORDS_FAULT = (KafkaEosError, MemoryError)
"""Errors that pass through an operator: they are about the job, not about the record at hand."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What an engine gives to one operator of one subtask.

    ``reject(batch, index, error)`` is called for row ``index`` of ``batch`` when the user's code raised
    ``error``. It raises PoisonRecord (policy "stop"), or records a dead letter and returns; then the operator
    leaves the row out.
    """

    operator: str
    value_state: Callable[[StateDescriptor[Any]], ValueState[Any]]
    reject: Callable[[Batch[Any], int, Exception], None]
    place: int = 0
    """Number of the operator among those behind which outputs of one record cannot be counted; see ``provenance``."""
    keeps_raw: Callable[[str], bool] = lambda source: False
    """May a record of that source be sent aside undecoded? Then its rows must keep it."""
    scratch: Callable[[], Scratch] = unbounded
    """Makes room for what the operator gathers within an epoch and memory does not hold; called once at most."""


class Operator(Protocol):
    """One node of the plan at work in one subtask."""

    def open(self, ctx: OperatorContext) -> None:
        """Called once, before the first batch, after state is restored."""

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """The output of a batch; may be empty. Raises what ``reject`` raises."""

    def close(self) -> None:
        """Called once, also after a failure. Must not write state."""


@runtime_checkable
class Gathering(Operator, Protocol):
    """An operator that gives its output at the end of an epoch, and keeps nothing but state beyond it."""

    def flush(self) -> Iterable[Batch[Any]]:
        """All that it has gathered. Called at the barrier, before anything of the epoch is captured."""


def call_each(
    fn: Callable[[Any], Any], batch: Batch[Any], values: Sequence[Any], ctx: OperatorContext
) -> tuple[list[Any], list[int]]:
    """``fn`` of each value, and the indices of the rows that were rejected (they have no result).

    The loop runs in C. The shared iterator makes it go on after a bad row without a second pass. A StopIteration
    that escapes from ``fn`` would end ``extend`` silently and lose the rest, hence the count.
    """
    out: list[Any] = []
    refused: list[int] = []
    todo = iter(values)
    while True:
        error: Exception | None = None
        try:
            out.extend(map(fn, todo))
        except NOT_THE_RECORDS_FAULT:
            raise
        except Exception as raised:  # noqa: BLE001 (whatever user code raises belongs to its record)
            error = raised
        done = len(out) + len(refused)
        if error is None and done == len(values):
            return out, refused
        ctx.reject(batch, done, error or RuntimeError("StopIteration escaped from the function"))
        refused.append(done)


def without(batch: Batch[Any], refused: list[int]) -> Batch[Any]:
    """The batch without the refused rows; the batch itself if there are none."""
    if not refused:
        return batch
    gone = set(refused)
    return take(batch, [index for index in range(len(batch)) if index not in gone])


def take(batch: Batch[Any], indices: list[int]) -> Batch[Any]:
    """The rows at ``indices``, in that order; an index may come more than once."""
    return Batch(
        values=[batch.values[i] for i in indices],
        rows=[batch.rows[i] for i in indices],
        origin=batch.origin,
        keys=None if batch.keys is None else [batch.keys[i] for i in indices],
        lane=batch.lane,
        updates=None if batch.updates is None else [batch.updates[i] for i in indices],
        branch=None if batch.branch is None else [batch.branch[i] for i in indices],
    )
