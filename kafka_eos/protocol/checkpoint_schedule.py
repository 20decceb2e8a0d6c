"""Checkpoint triggering and completion.

Pure: time is an argument. Rule: an epoch is complete when every expected subtask has acknowledged exactly this epoch of
exactly this term. Late, repeated and foreign acknowledgements change nothing.

At most one epoch is triggered and not committed (``PendingEpochs``), because recovery finishes only the newest decided
epoch.

An aborted epoch stays in flight until every subtask has confirmed the abort: until then a subtask may still upload
files of it. Nothing is cleaned up until the next decision: no manifest names those files, and an incremental snapshot
of the next epoch may name some of them as already stored.

An aborted epoch leaves output behind. As long as the attempt continues, the rows behind that output are not read again,
so the output belongs to the next epoch that is decided. Hence a subtask's acknowledgement of epoch n names every
committable that it has sealed since the last epoch it knows to be decided. The manifest takes those that
``DecideEpoch.includes``. If the job rolls back instead, no manifest names that output, and it is aborted as left-over.
"""

from __future__ import annotations

import enum

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId


class EpochKind(enum.Enum):
    """The reason for which an epoch is triggered."""

    PERIODIC = "clock"
    BOOTSTRAP = "filling"
    """Periodic, while streams wait for tables: leaves no rows in flight. See ``protocol.source_dependencies``."""
    REQUESTED = "asked"
    """A caller waits for a checkpoint."""
    SAVEPOINT = "savepoint"
    """A caller waits for a checkpoint that leaves no rows in flight."""
    FINAL = "last"
    """Nothing is read any more, and the epoch leaves no rows in flight."""

    @property
    def must_drain(self) -> bool:
        """True if the epoch leaves no rows in flight, whatever the mode."""
        return self in (EpochKind.BOOTSTRAP, EpochKind.SAVEPOINT, EpochKind.FINAL)

    @property
    def serves_requests(self) -> bool:
        """True if it answers waiting requests."""
        return self not in (EpochKind.PERIODIC, EpochKind.BOOTSTRAP)

    def counts_as_failure(self, *, late: bool) -> bool:
        """Return whether aborting an epoch of this kind counts as a checkpoint failure.

        Requested epochs do not count: the caller is told, and periodic epochs continue. A late final epoch does not
        count either: while nothing is read the in-flight rows become fewer, so the next attempt at it is quicker.
        """
        return self in (EpochKind.PERIODIC, EpochKind.BOOTSTRAP) or (self is EpochKind.FINAL and not late)


def choose_next_kind(
    *, ends: bool, asked: EpochKind | None, due: bool, in_vain: bool, filling: bool
) -> EpochKind | None:
    """Return the kind of epoch to trigger now, or None.

    ``due``: a periodic epoch is due. ``in_vain``: the last requested epoch was aborted. A due periodic epoch then goes
    before another requested one, so that repeated requests cannot prevent periodic epochs.
    ``filling``: streams wait for tables, so an epoch of any kind must leave no rows in flight.
    """
    if ends:
        return EpochKind.FINAL
    if due and (asked is None or in_vain):
        return EpochKind.BOOTSTRAP if filling else EpochKind.PERIODIC
    return EpochKind.SAVEPOINT if filling and asked is EpochKind.REQUESTED else asked


class PendingEpoch(Struct, frozen=True):
    """A triggered epoch that is not decided yet."""

    id: EpochId
    expected: frozenset[int]
    triggered_at: float
    kind: EpochKind = EpochKind.PERIODIC
    acked: frozenset[int] = frozenset()
    declined: str | None = None
    """The reason for which a subtask declined it: the epoch will never be complete."""

    def ack(self, epoch: EpochId, subtask: int) -> PendingEpoch:
        """Return this epoch with one more acknowledgement; unchanged if the acknowledgement is not for it."""
        if epoch != self.id or subtask not in self.expected:
            return self
        return replace(self, acked=self.acked | {subtask})

    def decline(self, epoch: EpochId, subtask: int, why: str) -> PendingEpoch:
        """Return this epoch as declined: it will never be complete. Unchanged if the message is not for it."""
        if epoch != self.id or subtask not in self.expected:
            return self
        return replace(self, declined=f"declined by subtask {subtask}: {why}")

    @property
    def complete(self) -> bool:
        return self.acked == self.expected

    @property
    def missing(self) -> frozenset[int]:
        """Return the subtasks that have not acknowledged the epoch."""
        return self.expected - self.acked


class Cadence(Struct, frozen=True):
    """Checkpoint timing in seconds: interval between triggers, least pause after a completion, timeout of one epoch."""

    interval: float
    min_pause: float
    timeout: float

    def next_trigger(self, last_triggered: float, last_completed: float) -> float:
        """Return the earliest time of the next trigger, in the clock of the arguments."""
        return max(last_triggered + self.interval, last_completed + self.min_pause)

    def is_expired(self, since: float, now: float) -> bool:
        """Return whether an epoch has timed out."""
        return now - since > self.timeout


class AbortingEpoch(Struct, frozen=True):
    """An aborted epoch that some subtasks may still work on."""

    id: EpochId
    kind: EpochKind
    missing: frozenset[int]
    """Subtasks that have not confirmed the abort."""
    since: float
    """The time at which it was aborted, or last counted as overdue."""


class PendingEpochs(Struct, frozen=True):
    """All epochs that are triggered and not committed, oldest first.

    ``last_decided``: the epoch decided last.
    ``committing``: that epoch, as long as its receipt is not written.
    ``current``: the epoch that is triggered and not decided, or aborted and not confirmed by every subtask.
    ``leftovers``: whether an epoch was aborted since the last decision. Files of it may be stored that no manifest
    names; subtasks will name them in their next snapshot without storing them again.
    """

    last_decided: EpochId | None = None
    committing: PendingEpoch | None = None
    current: PendingEpoch | AbortingEpoch | None = None
    leftovers: bool = False

    @property
    def is_empty(self) -> bool:
        """True if no epoch is in flight."""
        return self.current is None and self.committing is None

    @property
    def is_full(self) -> bool:
        """True if no further epoch may be triggered now."""
        return self.current is not None or self.committing is not None

    @property
    def pending(self) -> PendingEpoch | None:
        """Return the epoch that may still be decided, or None."""
        return self.current if isinstance(self.current, PendingEpoch) else None

    @property
    def aborting(self) -> AbortingEpoch | None:
        """Return the aborted epoch that some subtasks may still work on, or None."""
        return self.current if isinstance(self.current, AbortingEpoch) else None

    def trigger(
        self, epoch: EpochId, expected: frozenset[int], now: float, kind: EpochKind = EpochKind.PERIODIC
    ) -> PendingEpochs:
        """Add a triggered epoch. Raise Bug if none may be triggered now, or if it is not newer than the last decided
        one."""
        if self.is_full or (self.last_decided is not None and epoch <= self.last_decided):
            raise Bug(f"epoch {epoch} cannot be triggered after {self.last_decided} while {self.current} is in flight")
        return replace(self, current=PendingEpoch(epoch, expected, now, kind))

    def ack(self, epoch: EpochId, subtask: int) -> PendingEpochs:
        """Record an acknowledgement. Changes nothing for an epoch that is decided, aborted or of another term."""
        return self if self.pending is None else replace(self, current=self.pending.ack(epoch, subtask))

    def decline(self, epoch: EpochId, subtask: int, why: str) -> PendingEpochs:
        """Record that a subtask will never acknowledge the pending epoch, if it is expected to. See
        ``find_declined``.
        """
        return self if self.pending is None else replace(self, current=self.pending.decline(epoch, subtask, why))

    def find_declined(self) -> PendingEpoch | None:
        """Return the pending epoch if a subtask declined it: it must be aborted now."""
        return self.pending if self.pending is not None and self.pending.declined is not None else None

    def abort(self, epoch: EpochId, now: float) -> PendingEpochs:
        """Abort the pending epoch. Its output is committed with the next decided epoch: ``DecideEpoch.includes``.

        It stays in flight until every subtask has confirmed the abort. Raises Bug for any epoch but the pending one.
        """
        pending = self.pending
        if pending is None or pending.id != epoch:
            raise Bug(f"epoch {epoch} cannot be aborted: {self.current} is in flight")
        return replace(self, current=AbortingEpoch(epoch, pending.kind, pending.expected, now), leftovers=True)

    def confirm_abort(self, epoch: EpochId, subtask: int) -> PendingEpochs:
        """Record that a subtask no longer works on an aborted epoch. Changes nothing for any other epoch."""
        aborting = self.aborting
        if aborting is None or aborting.id != epoch:
            return self
        missing = aborting.missing - {subtask}
        return replace(self, current=replace(aborting, missing=missing) if missing else None)

    def wait_again(self, now: float) -> PendingEpochs:
        """Restart the timeout of the abort: it counts as overdue once per timeout."""
        return self if self.aborting is None else replace(self, current=replace(self.aborting, since=now))

    def find_expired(self, cadence: Cadence, now: float) -> PendingEpoch | None:
        """Return the pending epoch if it has timed out. A complete epoch only waits until its input is verified."""
        pending = self.pending
        late = pending is not None and not pending.complete and cadence.is_expired(pending.triggered_at, now)
        return pending if late else None

    def overdue(self, cadence: Cadence, now: float) -> AbortingEpoch | None:
        """Return the aborted epoch if subtasks have not confirmed the abort in time."""
        aborting = self.aborting
        return aborting if aborting is not None and cadence.is_expired(aborting.since, now) else None

    def find_complete(self) -> EpochId | None:
        """Return the epoch to decide now, or None."""
        return self.pending.id if self.pending is not None and self.pending.complete else None

    def record_decision(self, epoch: EpochId) -> PendingEpochs:
        """Record that the pending epoch is decided. Raise Bug for any epoch but ``find_complete()``."""
        if epoch != self.find_complete():
            raise Bug(f"epoch {epoch} was decided, but {self.find_complete()} was due")
        return replace(self, last_decided=epoch, committing=self.pending, current=None, leftovers=False)

    def record_commit(self, epoch: EpochId) -> PendingEpochs:
        """Record that the decided epoch has its receipt. Changes nothing for any epoch but the one decided last."""
        return replace(self, committing=None) if epoch == self.last_decided else self


class FailureCounter(Struct, frozen=True):
    """The number of consecutive failures, and how many are tolerated."""

    tolerated: int
    in_a_row: int = 0

    def record_failure(self) -> FailureCounter:
        return replace(self, in_a_row=self.in_a_row + 1)

    def record_success(self) -> FailureCounter:
        return replace(self, in_a_row=0)

    @property
    def is_exceeded(self) -> bool:
        return self.in_a_row > self.tolerated


def has_environment_recovered(*, unanswered: bool, moved: bool, seconds: float, patience: float) -> bool:
    """Return whether a committed epoch proves that the environment works again.

    It does not while a row has been waiting for a service since the attempt began. It does not if nothing was read and
    nothing was emitted (``moved``), because each attempt may commit an epoch before it reaches the row that fails.
    After
    ``patience`` seconds it does even without rows: a job without input is healthy.
    """
    return not unanswered and (moved or seconds > patience)
