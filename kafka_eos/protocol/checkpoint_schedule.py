"""When to take a checkpoint, and when one is complete.

Pure: time is an argument. Rule: an epoch is complete when every expected subtask has acknowledged exactly
this epoch of exactly this term; late, repeated and foreign answers change nothing.

At most one epoch is triggered and not decided (``Flights``), and the next is decided only when everything of the one
before is committed, because recovery finishes the newest decided epoch and no other.

An aborted epoch stays in flight until every subtask has confirmed the abort: until then one may still upload files of
it. And until the next decision nothing is cleaned up: those files are named by no manifest, and an incremental snapshot
of the next epoch names some of them as stored.
What an aborted epoch leaves behind is its output: as long as the job goes on, the rows behind that output
will not be read again, so it belongs to the next epoch that is decided. Hence a subtask's answer for epoch n names
every committable that it has sealed since the epoch it knows to be decided, and the manifest takes those that
``Decide.takes``. If the job goes back instead, no manifest names that output, and it is aborted as an orphan.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId


class Kind(enum.Enum):
    """What an epoch is triggered for."""

    CLOCK = "clock"
    FILLING = "filling"
    """By the clock, while streams wait for tables: it leaves nothing under way. See ``bootstrap``."""
    ASKED = "asked"
    """Somebody waits for a checkpoint: at once, and otherwise like any other."""
    SAVEPOINT = "savepoint"
    """Somebody waits for one that leaves nothing under way."""
    LAST = "last"
    """Nothing is read any more, and nothing is left under way."""
    BATCH = "batch"
    """There is something to read: an epoch of an engine that reads up to given positions, and processes all of it."""

    @property
    def drains(self) -> bool:
        """It leaves no rows under way, whatever the job's mode."""
        return self in (Kind.FILLING, Kind.SAVEPOINT, Kind.LAST, Kind.BATCH)

    @property
    def serves(self) -> bool:
        """Does it serve whoever has asked for a checkpoint by then?"""
        return self not in (Kind.CLOCK, Kind.FILLING)

    def counts(self, *, late: bool) -> bool:
        """Is it a failure of the job if one is given up, because it was ``late`` or was declined?

        Not of one that somebody asked for: they are told, and the job's own ones go on. Nor of a last one that is late:
        what is under way becomes less while nothing is read, so the next one is quicker.
        """
        return self in (Kind.CLOCK, Kind.FILLING, Kind.BATCH) or (self is Kind.LAST and not late)


def kind_of_next(*, ends: bool, asked: Kind | None, due: bool, in_vain: bool, filling: bool) -> Kind | None:
    """What to trigger now, if anything.

    ``due``: by the clock. ``in_vain``: the last one that was asked for was given up. Then one that is due goes before
    another that is asked for, so that nobody who asks again and again keeps the job from its own.
    ``filling``: streams wait for tables, so whatever it is for, it is to leave nothing under way.
    """
    if ends:
        return Kind.LAST
    if due and (asked is None or in_vain):
        return Kind.FILLING if filling else Kind.CLOCK
    return Kind.SAVEPOINT if filling and asked is Kind.ASKED else asked


@dataclass(frozen=True, slots=True)
class Pending:
    """A triggered epoch that is not decided yet."""

    id: EpochId
    expected: frozenset[int]
    triggered_at: float
    kind: Kind = Kind.CLOCK
    acked: frozenset[int] = frozenset()
    declined: str | None = None
    """Why somebody cannot acknowledge it: it will never be complete."""

    def ack(self, epoch: EpochId, subtask: int) -> Pending:
        """The same epoch with one more answer; unchanged if the answer is not for it."""
        if epoch != self.id or subtask not in self.expected:
            return self
        return replace(self, acked=self.acked | {subtask})

    def decline(self, epoch: EpochId, subtask: int, why: str) -> Pending:
        """The same epoch, which will never be complete; unchanged if the answer is not for it."""
        if epoch != self.id or subtask not in self.expected:
            return self
        return replace(self, declined=f"declined by subtask {subtask}: {why}")

    @property
    def complete(self) -> bool:
        return self.acked == self.expected

    @property
    def missing(self) -> frozenset[int]:
        """Who has not answered."""
        return self.expected - self.acked


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often: seconds between triggers, least pause after a completion, most time for one epoch."""

    interval: float
    min_pause: float
    timeout: float

    def next_trigger(self, last_triggered: float, last_completed: float) -> float:
        """The earliest time of the next trigger, in the clock of the arguments."""
        return max(last_triggered + self.interval, last_completed + self.min_pause)

    def expired(self, since: float, now: float) -> bool:
        """Tell whether an epoch that was triggered, or aborted, at ``since`` takes too long."""
        return now - since > self.timeout


@dataclass(frozen=True, slots=True)
class Aborting:
    """An epoch that was aborted, and that some subtasks may still work on."""

    id: EpochId
    kind: Kind
    missing: frozenset[int]
    """Subtasks that have not confirmed the abort."""
    since: float
    """When it was aborted, or last counted as overdue."""


@dataclass(frozen=True, slots=True)
class Flights:
    """The epochs of an attempt that are triggered and not finished.

    ``overlaps``    whether an epoch may be triggered while the one before it is committed
    ``last``        the epoch decided last
    ``committing``  that epoch as long as its receipt is not written
    ``current``     the epoch that is triggered and not decided, or aborted and not confirmed by every subtask
    ``leftovers``   whether an epoch was aborted since the last decision. Files of it may be stored that no manifest
                    names, and that subtasks will name in their next snapshot without storing them again
    """

    overlaps: bool = False
    last: EpochId | None = None
    committing: Pending | None = None
    current: Pending | Aborting | None = None
    leftovers: bool = False

    @property
    def none(self) -> bool:
        """Nothing is on its way: everything that was decided has its receipt."""
        return self.current is None and self.committing is None

    @property
    def full(self) -> bool:
        """May no other epoch be triggered now?"""
        return self.current is not None or (self.committing is not None and not self.overlaps)

    @property
    def pending(self) -> Pending | None:
        """The epoch that may still be decided."""
        return self.current if isinstance(self.current, Pending) else None

    @property
    def aborting(self) -> Aborting | None:
        """The aborted epoch that some subtasks may still work on."""
        return self.current if isinstance(self.current, Aborting) else None

    def trigger(self, epoch: EpochId, expected: frozenset[int], now: float, kind: Kind = Kind.CLOCK) -> Flights:
        """One more epoch. Raises Bug if it is not newer than the last decided one, or if none may be triggered now."""
        if self.full or (self.last is not None and epoch <= self.last):
            raise Bug(f"epoch {epoch} cannot be triggered after {self.last}, beside {self.current}")
        return replace(self, current=Pending(epoch, expected, now, kind))

    def ack(self, epoch: EpochId, subtask: int) -> Flights:
        """A subtask has answered. Changes nothing for an epoch that is decided, aborted or of another term."""
        return self if self.pending is None else replace(self, current=self.pending.ack(epoch, subtask))

    def decline(self, epoch: EpochId, subtask: int, why: str) -> Flights:
        """A subtask will never answer for this epoch, if it is in flight and expects the subtask. See ``hopeless``."""
        return self if self.pending is None else replace(self, current=self.pending.decline(epoch, subtask, why))

    def hopeless(self) -> Pending | None:
        """The epoch to abort now because it was declined."""
        return self.pending if self.pending is not None and self.pending.declined is not None else None

    def abort(self, epoch: EpochId, now: float) -> Flights:
        """Give an epoch up that is not decided yet. Its output goes into the next one that is: ``Decide.takes``.

        It stays in flight until every subtask has confirmed the abort. Raises Bug for any other than the pending one.
        """
        pending = self.pending
        if pending is None or pending.id != epoch:
            raise Bug(f"epoch {epoch} cannot be aborted: {self.current} is in flight")
        return replace(self, current=Aborting(epoch, pending.kind, pending.expected, now), leftovers=True)

    def confirm_abort(self, epoch: EpochId, subtask: int) -> Flights:
        """A subtask works on an aborted epoch no more. Changes nothing for any other epoch."""
        aborting = self.aborting
        if aborting is None or aborting.id != epoch:
            return self
        missing = aborting.missing - {subtask}
        return replace(self, current=replace(aborting, missing=missing) if missing else None)

    def wait_again(self, now: float) -> Flights:
        """The abort counts as overdue once; begin to wait for it anew."""
        return self if self.aborting is None else replace(self, current=replace(self.aborting, since=now))

    def expired(self, cadence: Cadence, now: float) -> Pending | None:
        """The pending epoch if it has taken too long. One that is complete only waits for the commit before it."""
        pending = self.pending
        late = pending is not None and not pending.complete and cadence.expired(pending.triggered_at, now)
        return pending if late else None

    def overdue(self, cadence: Cadence, now: float) -> Aborting | None:
        """The aborted epoch if subtasks have not confirmed the abort in time."""
        aborting = self.aborting
        return aborting if aborting is not None and cadence.expired(aborting.since, now) else None

    def ready(self) -> EpochId | None:
        """The epoch to decide now: complete, and everything decided before is committed."""
        if self.committing is not None or self.pending is None or not self.pending.complete:
            return None
        return self.pending.id

    def decided(self, epoch: EpochId) -> Flights:
        """Its manifest is published. Raises Bug for any other than ``ready()``."""
        if epoch != self.ready():
            raise Bug(f"epoch {epoch} was decided, but {self.ready()} was due")
        return replace(self, last=epoch, committing=self.pending, current=None, leftovers=False)

    def committed(self, epoch: EpochId) -> Flights:
        """Its receipt is written. Changes nothing for any other than the epoch decided last."""
        return replace(self, committing=None) if epoch == self.last else self


@dataclass(frozen=True, slots=True)
class Failures:
    """Consecutive failed checkpoints, and how many of them the job bears."""

    tolerated: int
    seen: int = 0

    def failed(self) -> Failures:
        return replace(self, seen=self.seen + 1)

    def succeeded(self) -> Failures:
        return replace(self, seen=0)

    @property
    def too_many(self) -> bool:
        return self.seen > self.tolerated


def works_again(*, unanswered: bool, moved: bool, seconds: float, patience: float) -> bool:
    """Does a committed epoch tell that what had failed in the environment works again?

    Not while a row waits for a service since the attempt began. Nor if nothing was read and nothing put out
    (``moved``), because each attempt may commit an epoch before it comes to what fails; but it does if the attempt has
    gone on for ``patience`` seconds: a job without input is well.
    """
    return not unanswered and (moved or seconds > patience)
