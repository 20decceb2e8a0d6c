"""The interface between an engine and an operator.

An operator takes a batch and returns a batch; it knows no engine, broker or clock. Its context provides state, and
handles records that the user's code rejects.

Rules: an operator never changes its input batch (another branch may read it); its output keeps the origin of every row;
it is used from one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.state import BackendState, Panes, StateDescriptor, TimerService
from kafka_eos.core.errors import Bug, PlanError
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator_stats import UserCounter
from kafka_eos.runtime.state.epoch_scratch import SpillStore, unbounded
from kafka_eos.runtime.state.ttl_clock import wall_clock


def no_timers(descriptor: StateDescriptor[Any]) -> TimerService:
    """Raise Bug: this context has no state."""
    raise Bug(f"timers {descriptor.name!r} were requested in a context without state")


def no_panes(descriptor: StateDescriptor[Any]) -> Panes[Any]:
    """Raise Bug: this context has no pane state."""
    raise Bug(f"panes {descriptor.name!r} were requested in a context without state")


Known = TypeVar("Known")


def event_time_of(time: Known | None, operator: str) -> Known:
    """Return the event time of a row, or the times of a batch's rows. Raises PlanError if there are none."""
    if time is None:
        raise PlanError(
            f"operator {operator!r}: rows have no event time here; put .with_timestamps(...) "
            "after every source before it"
        )
    return time


def iterate_with_clock(batch: Batch[Any], state: BackendState[Any]) -> Iterator[Any]:
    """Yield the keys of a batch; move the Ttl clock of ``state`` to each row's timestamp when its key is yielded."""
    times, advance = batch.origin.timestamps(), state.advance
    for key, row in zip(batch.keys or (), batch.origin_rows, strict=True):
        advance(times[row])
        yield key


def no_broadcast(descriptor: StateDescriptor[Any]) -> BackendState[Any]:
    """Raise Bug: this context has no broadcast state."""
    raise Bug(f"broadcast state {descriptor.name!r} was requested by an operator without a broadcast input")


def no_copies(batch: Batch[Any], index: int, error: Exception) -> None:
    """Raise Bug: this context has no copies of broadcast state."""
    raise Bug("a chain without broadcast operators rejected a broadcast row") from error


def no_results(batch: Batch[Any], index: int, error: Exception) -> None:
    """Raise Bug: this context has no partial accumulators."""
    raise Bug("an operator without partial accumulators rejected one") from error


class OperatorContext(Struct, frozen=True):
    """The services that an engine provides to one operator of one subtask.

    ``reject(batch, index, error)`` is called for row ``index`` of ``batch`` when the user's code raised ``error``. If
    that is the record's fault, it raises PoisonRecord (policy "stop"), or records a dead letter and returns; then the
    operator skips the row. If it is not, it raises what ``expect_record`` does.
    """

    operator: str
    value_state: Callable[[StateDescriptor[Any]], BackendState[Any]]
    reject: Callable[[Batch[Any], int, Exception], None]
    drop_state: Callable[[str], None] = lambda state: None
    """Drops a stored state that the operator no longer has."""
    branch_number: int = 0
    """Number that this operator adds to its outputs' branch in the provenance."""
    writes_dead_letters: Callable[[str], bool] = lambda source: False
    """Whether rows of that source, or of that operator's timers, may become dead letters: then rows must keep the
    undecoded record."""
    attribution: Callable[[str], ErrorRules] = lambda source: ErrorRules()
    """The user's rules for exceptions, by source."""
    timers: Callable[[StateDescriptor[Any]], TimerService] = no_timers
    """Opens the operator's timers."""
    scratch: Callable[[], SpillStore] = unbounded
    """Creates the spill store for rows of an epoch that exceed memory; called at most once."""
    clock: Callable[[], int] = wall_clock
    """Processing time, in milliseconds since the epoch."""
    count_late: Callable[[int], None] = lambda rows: None
    """Counts late rows. The operator decides how to handle them."""
    broadcast_state: Callable[[StateDescriptor[Any]], BackendState[Any]] = no_broadcast
    """Opens this subtask's copy of a broadcast state."""
    reject_broadcast: Callable[[Batch[Any], int, Exception], None] = no_copies
    """Like ``reject``, for a row that all subtasks receive: one of them records the dead letter."""
    panes: Callable[[StateDescriptor[Any]], Panes[Any]] = no_panes
    """Opens a pane state."""
    counter: Callable[[str], UserCounter] = lambda name: UserCounter()
    """Returns a counter of the user's function."""
    reject_result: Callable[[Batch[Any], int, Exception], None] = no_results
    """Like ``reject``, for a row that combines several records, the last of which is its origin."""

    def expect_record(self, batch: Batch[Any], index: int, error: Exception) -> None:
        """Return if ``error`` is the fault of row ``index``; see ``ErrorRules.expect_record`` for what is raised."""
        origin = batch.origin
        self.attribution(origin.source).expect_record(
            error, self.operator, origin.raw(batch.origin_rows[index]).location
        )


class Operator(ABC):
    """One node of the plan at run time, in one subtask. Only ``process`` must be defined.

    Output that no row causes is due when the watermark advances (``advance``), when processing time does (``tick``), or
    at the end of an epoch (``flush``).
    """

    _ctx: OperatorContext

    def open(self, ctx: OperatorContext) -> None:
        """Open the operator. Called once, before the first batch, after state is restored."""
        self._ctx = ctx

    @abstractmethod
    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Return the output of a batch; it may be empty. Raises the errors of ``reject``."""

    def advance(self, time: int) -> Iterable[Batch[Any]]:
        """Yield the outputs due when the watermark reaches ``time``. Raises PoisonRecord.

        After a restore, outputs that were due at the snapshot but not emitted come first.
        """
        return ()

    @property
    def uses_clock(self) -> bool:
        """Return whether the operator acts on processing time."""
        return False

    def tick(self, now: int) -> Iterable[Batch[Any]]:
        """Yield the outputs due when the clock reaches ``now``. Raises PoisonRecord."""
        return ()

    def get_next_time(self) -> int | None:
        """Return the time before which tick emits nothing; None if only a record changes that."""
        return None

    def flush(self) -> Iterable[Batch[Any]]:
        """Yield all rows collected in the epoch (Flink: a bundle).

        Called at the barrier, before anything of the epoch is captured.
        """
        return ()

    def close(self) -> None:  # noqa: B027 (most operators hold nothing)
        """Close the operator. Called once, even after a failure. It must not write state."""


def call_each(
    fn: Callable[[Any], Any], batch: Batch[Any], values: Sequence[Any], ctx: OperatorContext
) -> tuple[list[Any], list[int]]:
    """Call ``fn`` for each value; return the results, and the indices of rejected rows, which have no result."""
    return map_rows(fn, TrackedRows(batch, values), refuse=partial(ctx.reject, batch))
