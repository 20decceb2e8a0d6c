"""When one subtask's segment takes its snapshot, which of its inputs it must not read, and what it must log.

Pure: time is an argument, in seconds of any monotonic clock. Rule: a row that was sent before its channel's
barrier is in the state, in a log of the snapshot, or below the snapshot's offsets; a row that was sent after it is
in none of them (``AT_LEAST_ONCE`` keeps the first half only).

The algorithms are those of Carbone et al. 2015: Algorithm 1 aligns all inputs; Algorithm 2 aligns all but the
back-edges, and logs what comes back on them. ``UNALIGNED`` is Chandy and Lamport's: the first barrier takes the
snapshot, the others end the logs. All three are the same machine: they differ in when an epoch is captured
(``Gate._due``) and in whether an early channel waits for that (``Gate.blocked``).

**The log of a channel in epoch n** is every row of the channel that was not processed before ``Snapshot(n)`` and
stands before the channel's barrier n: what the input queue holds before that barrier at the snapshot, then what is
received while ``logged_by`` names n. Aligned channels have nothing to log. So barriers are to be reported
(``Gate.on_receipt`` tells)

* of an epoch that is captured already: when they are received, and right after ``Snapshot`` those in the queues;
* of any other: when they are the next thing to process; with ``aligned_timeout`` 0, when they are received, but for
  epochs that are aligned in every mode.

The end of a channel is always reported when it is the next thing to process.

**One epoch at a time.** The next epoch is triggered only when every subtask has acknowledged the one before, or has
confirmed that it aborted it (``checkpoint.Flights``). So a gate never sees a barrier of an epoch while it waits for
those of an older one; barriers of an aborted epoch may still stand in its channels, and change nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TypeAlias

from kafka_eos.core.errors import Bug

Channel: TypeAlias = Hashable
"""One input of a segment, e.g. ``("source", name)`` or ``(exchange, sender)``. First in, first out."""


class Mode(enum.Enum):
    """What a barrier may do to the rows around it."""

    ALIGNED = "aligned"
    """Channels whose barrier is there wait for the others: exactly once, nothing in flight is stored."""
    UNALIGNED = "unaligned"
    """Barriers overtake rows, and the overtaken rows are stored: exactly once, nobody waits."""
    AT_LEAST_ONCE = "at-least-once"
    """Nobody waits and nothing is stored: rows that were early are processed again after a restart. But for epochs
    that must leave nothing under way, which are aligned in every mode."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Capture now, before any other row: state, positions, writers' output; then forward the barrier on every tail.

    With ``unaligned`` the barrier goes before the rows in the output queues, and these are part of the snapshot, as
    are the rows in the input queues that stand before the epoch's barrier. ``aligned`` goes on with the barrier.
    """

    epoch: int
    unaligned: bool
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Complete:
    """All barriers are there: the epoch's logs are final. Acknowledge."""

    epoch: int


Action: TypeAlias = Snapshot | Complete


@dataclass(frozen=True, slots=True)
class Alignment:
    """An epoch whose first barrier has come, and whose last has not. ``since`` is when the first one came.

    ``aligned``: it waits for all of them, whatever the mode of the job, because it must leave nothing under way.
    """

    epoch: int
    since: float
    aligned: bool
    arrived: frozenset[Channel] = frozenset()
    captured: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """The inputs of one segment in one subtask. Each event returns the gate after it, and what to do, in order.

    ``aligned_timeout`` (seconds) counts with ``UNALIGNED`` only: 0 overtakes at once, x begins aligned and switches
    over after x, infinity never switches. ``feedback`` are the channels that are back-edges of the plan. Ask for
    ``blocked`` and ``logging`` after each event, not for each row.
    """

    channels: frozenset[Channel]
    mode: Mode = Mode.ALIGNED
    aligned_timeout: float = 0.0
    feedback: frozenset[Channel] = frozenset()
    finished: frozenset[Channel] = frozenset()
    pending: Alignment | None = None
    newest: int = -1
    """The newest epoch that began or was aborted here. Unless it is pending, it is over, as all older ones are."""

    def __post_init__(self) -> None:
        if not self.feedback <= self.channels:
            raise Bug(f"back-edges {set(self.feedback - self.channels)} are no inputs of the segment")

    # ------------------------------------------------------------ events

    def barrier(
        self, channel: Channel, epoch: int, now: float, aligned: bool = False
    ) -> tuple[Gate, tuple[Action, ...]]:
        """The barrier of ``epoch`` has come on ``channel``. Late and repeated ones change nothing.

        ``aligned`` is the epoch's, as it began: the same in all of its barriers.
        An ended channel may bring barriers, too: so the engine begins an epoch where every input has ended.
        Raises Bug for a newer epoch while this one is pending: it was triggered too early, or somebody has read on
        behind a barrier.
        """
        self._check(channel)
        if not self.awaits(channel, epoch):
            return self, ()
        current = self.pending or Alignment(epoch, now, aligned)
        if epoch != current.epoch:
            raise Bug(f"barrier {epoch} came on {channel!r} while epoch {current.epoch} is pending")
        current = replace(current, arrived=current.arrived | {channel})
        return replace(self, pending=current, newest=epoch)._advance(now)

    def ended(self, channel: Channel, now: float) -> tuple[Gate, tuple[Action, ...]]:
        """No row will come on ``channel`` any more: it counts as having brought every later barrier."""
        self._check(channel)
        return replace(self, finished=self.finished | {channel})._advance(now)

    def tick(self, now: float) -> tuple[Gate, tuple[Action, ...]]:
        """Time has passed: alignment that drags is given up for an unaligned snapshot."""
        return self._advance(now)

    def abort(self, epoch: int) -> tuple[Gate, tuple[Action, ...]]:
        """The coordinator gave the epoch up: forget it, unblock, ignore its late barriers."""
        pending = None if self.pending is not None and self.pending.epoch == epoch else self.pending
        return replace(self, pending=pending, newest=max(self.newest, epoch)), ()

    # ------------------------------------------------------------ what holds now

    @property
    def blocked(self) -> frozenset[Channel]:
        """Channels that must not be processed now."""
        alignment = self.pending
        if alignment is None or alignment.captured:
            return frozenset()
        waits = alignment.aligned or self.mode is not Mode.AT_LEAST_ONCE
        return alignment.arrived - self.finished if waits else frozenset()

    @property
    def logging(self) -> frozenset[Channel]:
        """Channels of which every row that arrives now belongs to the log of the pending epoch."""
        alignment = self.pending
        return self._missing(alignment) if alignment is not None and alignment.captured else frozenset()

    def logged_by(self, channel: Channel) -> int | None:
        """The epoch whose log a row that arrives on ``channel`` now belongs to."""
        return self.pending.epoch if self.pending is not None and channel in self.logging else None

    def on_receipt(self, epoch: int, aligned: bool = False) -> bool:
        """Is a barrier of ``epoch`` to be reported when it is received, rather than when it is next to process?"""
        at_once = self.mode is Mode.UNALIGNED and self.aligned_timeout == 0 and not aligned
        return at_once or (self.pending is not None and self.pending.epoch == epoch and self.pending.captured)

    def awaits(self, channel: Channel, epoch: int) -> bool:
        """Would a barrier of ``epoch`` on ``channel`` say anything new?"""
        if self.pending is not None and self.pending.epoch == epoch:
            return channel not in self.pending.arrived
        return epoch > self.newest

    @property
    def deadline(self) -> float | None:
        """When ``tick`` will next have something to do; None if never."""
        if self.mode is not Mode.UNALIGNED or self.aligned_timeout == math.inf:
            return None
        alignment = self.pending
        if alignment is None or alignment.captured or alignment.aligned:
            return None
        return alignment.since + self.aligned_timeout

    # ------------------------------------------------------------ inside

    def _advance(self, now: float) -> tuple[Gate, tuple[Action, ...]]:
        """Capture and complete the pending epoch if that is due."""
        alignment, actions = self.pending, list[Action]()
        if alignment is None:
            return self, ()
        if not alignment.captured and self._due(alignment, now):
            actions.append(Snapshot(alignment.epoch, self._overtakes(alignment, now), alignment.aligned))
            alignment = replace(alignment, captured=True)
        if self._missing(alignment):
            return replace(self, pending=alignment), tuple(actions)
        return replace(self, pending=None), (*actions, Complete(alignment.epoch))  # then it is captured

    def _due(self, alignment: Alignment, now: float) -> bool:
        """Back-edges are never waited for: their barriers come back only after the snapshot."""
        return self._missing(alignment) <= self.feedback or self._overtakes(alignment, now)

    def _overtakes(self, alignment: Alignment, now: float) -> bool:
        if alignment.aligned or self.mode is not Mode.UNALIGNED:
            return False
        return now >= alignment.since + self.aligned_timeout

    def _missing(self, alignment: Alignment) -> frozenset[Channel]:
        return self.channels - alignment.arrived - self.finished

    def _check(self, channel: Channel) -> None:
        if channel not in self.channels:
            raise Bug(f"{channel!r} is not an input of the segment")
