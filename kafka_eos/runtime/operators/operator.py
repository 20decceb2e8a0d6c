"""What an engine and an operator know of each other.

An operator takes a batch and returns a batch; it knows no engine, broker or clock. State comes through the
context, and so does the way out for a record that the user's code refuses.

Rules: an operator never changes the batch it is given (another branch may read it); what it returns keeps the
origin of every row; it is used from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from kafka_eos._util.bulk_calls import each
from kafka_eos._util.log_context import Rows
from kafka_eos.abc.state import Panes, StateDescriptor, Timers, ValueState
from kafka_eos.core.errors import Bug, PlanError
from kafka_eos.core.fault_attribution import Attribution
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.protocol.watermark_alignment import Standing
from kafka_eos.runtime.operators.operator_stats import Counted
from kafka_eos.runtime.state.epoch_scratch import Scratch, unbounded
from kafka_eos.runtime.state.ttl_clock import wall_clock


def no_timers(descriptor: StateDescriptor[Any]) -> Timers:
    """Where no state is."""
    raise Bug(f"timers {descriptor.name!r} were asked for where there is no state")


def no_panes(descriptor: StateDescriptor[Any]) -> Panes[Any]:
    """The same."""
    raise Bug(f"panes {descriptor.name!r} were asked for where there is no state")


Known = TypeVar("Known")


def event_time_of(time: Known | None, operator: str) -> Known:
    """The event time of a row, or the times of a batch's rows. PlanError if the plan has not seen to it."""
    if time is None:
        raise PlanError(
            f"operator {operator!r}: no event time is known here; put .with_timestamps(...) behind every source before "
            "it"
        )
    return time


def keys_in_time(batch: Batch[Any], state: ValueState[Any]) -> Iterator[Any]:
    """The keys of the rows. The clock of ``state``, which expires in event time, is at each row's when its key comes
    out.
    """
    times, advance = batch.origin.timestamps(), state.advance
    for key, row in zip(batch.keys or (), batch.rows, strict=True):
        advance(times[row])
        yield key


def no_broadcast(descriptor: StateDescriptor[Any]) -> ValueState[Any]:
    """Where nothing is broadcast."""
    raise Bug(f"broadcast state {descriptor.name!r} was asked for where nothing is broadcast")


def no_copies(batch: Batch[Any], index: int, error: Exception) -> None:
    """The same."""
    raise Bug("a broadcast row was refused where nothing is broadcast") from error


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What an engine gives to one operator of one subtask.

    ``reject(batch, index, error)`` is called for row ``index`` of ``batch`` when the user's code raised
    ``error``. If that is the record's fault, it raises PoisonRecord (policy "stop"), or records a dead letter and
    returns; then the operator leaves the row out. If it is not, it raises what ``expect_record`` does.
    """

    operator: str
    value_state: Callable[[StateDescriptor[Any]], ValueState[Any]]
    reject: Callable[[Batch[Any], int, Exception], None]
    forget: Callable[[str], None] = lambda state: None
    """Drops a stored state of that name, which the operator no longer has."""
    place: int = 0
    """Number of the operator among those behind which outputs of one record cannot be counted; see ``provenance``."""
    keeps_raw: Callable[[str], bool] = lambda source: False
    """May a record of that source be sent aside undecoded? Then its rows must keep it."""
    attribution: Callable[[str], Attribution] = lambda source: Attribution()
    """What the user has said about exceptions, by source."""
    timers: Callable[[StateDescriptor[Any]], Timers] = no_timers
    """Opens the operator's timers."""
    scratch: Callable[[], Scratch] = unbounded
    """Makes room for what the operator gathers within an epoch and memory does not hold; called once at most."""
    clock: Callable[[], int] = wall_clock
    """Processing time, in milliseconds since the epoch."""
    late: Callable[[int], None] = lambda rows: None
    """Counts rows that came when their time was over. What becomes of them is the operator's business."""
    broadcast_state: Callable[[StateDescriptor[Any]], ValueState[Any]] = no_broadcast
    """Opens what all subtasks hold: this one's copy."""
    reject_copy: Callable[[Batch[Any], int, Exception], None] = no_copies
    """As ``reject``, for a row that all subtasks have got: one of them records the dead letter."""
    panes: Callable[[StateDescriptor[Any]], Panes[Any]] = no_panes
    """Opens a state of panes."""
    counter: Callable[[str], Counted] = lambda name: Counted()
    """Makes a counter of the user's function."""

    def expect_record(self, batch: Batch[Any], index: int, error: Exception) -> None:
        """Return if ``error`` is the fault of row ``index``; see ``Attribution.expect_record`` for what is raised."""
        origin = batch.origin
        self.attribution(origin.source).expect_record(error, self.operator, origin.raw(batch.rows[index]).where)


class Operator(Protocol):
    """One node of the plan at work in one subtask."""

    def open(self, ctx: OperatorContext) -> None:
        """Called once, before the first batch, after state is restored."""

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """The output of a batch; may be empty. Raises what ``reject`` raises."""

    def close(self) -> None:
        """Called once, also after a failure. Must not write state."""


@runtime_checkable
class Timed(Operator, Protocol):
    """An operator that waits for event time."""

    def advance(self, time: int) -> Iterable[Batch[Any]]:
        """What it makes of the fact that event time has come to ``time``. Raises PoisonRecord.

        After a restore that begins with what a snapshot has left of times that had come before it was taken.
        """


@runtime_checkable
class Clocked(Operator, Protocol):
    """An operator that may wait for the clock."""

    @property
    def clocked(self) -> bool:
        """Does it?"""

    def tick(self, now: int) -> Iterable[Batch[Any]]:
        """What it makes of the fact that the clock has come to ``now``. Raises PoisonRecord."""

    def soonest(self) -> int | None:
        """Before that the next ``tick`` makes nothing; None if only a record changes that."""


@runtime_checkable
class Generating(Operator, Protocol):
    """An operator that makes the watermarks of a source."""

    def assign(self, splits: Collection[str]) -> None:
        """These splits are read in this subtask from now on. Called before the first row, and as more are found."""

    def by_split(self) -> dict[str, int]:
        """How far each split that is read here has come, of those that have brought something."""

    def standings(self) -> Mapping[str, Standing]:
        """The same of all splits that are read here, and which are idle."""

    def pause(self, splits: Collection[str]) -> None:
        """These splits, and no others, are not read now; so they are not silent."""

    def waive(self, splits: Collection[str]) -> None:
        """These splits, and no others, are not waited for; see ``abc.Sequenced``."""

    def watermark(self, now: float | None) -> Watermark:
        """How far event time has come. ``now``, in seconds of a monotonic clock: what there was has just been read.

        None: nobody has looked, so a split that has brought nothing was not silent.
        """


@runtime_checkable
class Gathering(Operator, Protocol):
    """An operator that gives its output at the end of an epoch, and keeps nothing but state beyond it."""

    def flush(self) -> Iterable[Batch[Any]]:
        """All that it has gathered. Called at the barrier, before anything of the epoch is captured."""


@runtime_checkable
class Awaiting(Operator, Protocol):
    """An operator whose rows wait for answers from outside: what it makes comes later, when it is asked for.

    The rows that it holds are no state: they belong to the exchange that they have passed last.
    """

    @property
    def full(self) -> bool:
        """Should no more rows come for now?"""

    @property
    def holding(self) -> bool:
        """Does it hold rows?"""

    def rows(self) -> Iterator[Batch[Any]]:
        """Those that it holds, as they came."""

    def barrier(self) -> bool:
        """A barrier passes them. Has one of them waited since the first that did?"""

    def hold(self, watermark: Watermark) -> None:
        """Event time has come so far behind the rows that it holds."""

    def ready(self) -> Iterator[Batch[Any] | Watermark]:
        """What is to be handed on now. Raises PoisonRecord."""

    def wait(self) -> None:
        """Return when one of the rows that it holds is answered, if it holds some."""


def call_each(
    fn: Callable[[Any], Any], batch: Batch[Any], values: Sequence[Any], ctx: OperatorContext
) -> tuple[list[Any], list[int]]:
    """``fn`` of each value, and the indices of the rows that were rejected (they have no result)."""
    return each(fn, Rows(batch, values), refuse=partial(ctx.reject, batch))
