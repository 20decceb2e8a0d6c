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
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TypeAlias

from kafka_eos.errors import Bug

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


@dataclass(frozen=True, slots=True)
class Abandon:
    """The epoch can never be completed here: drop what was captured and logged of it, and decline."""

    epoch: int


Action: TypeAlias = Snapshot | Complete | Abandon


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
    pending: tuple[Alignment, ...] = ()
    """Oldest first."""
    newest: int = -1
    """The newest epoch that ever began here. Older ones that are not pending are over."""
    aborted: frozenset[int] = frozenset()
    """Epochs above ``newest`` that were given up before their first barrier came."""

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
        Raises Bug for a newer barrier on a channel that is blocked: somebody has read on.
        """
        self._check(channel)
        current = self._alignment(epoch) or Alignment(epoch, now, aligned)
        if not self.awaits(channel, epoch):
            return self, ()
        waits = not self._overtakes(current, now)
        if waits and channel in self.blocked:
            raise Bug(f"barrier {epoch} was read from {channel!r}, which is blocked")
        # First in, first out: what this channel has skipped it will never bring. And an epoch that is aligned in a job
        # that does not wait travels alone: if another one overtakes it, it was given up.
        older = [a for a in self.pending if a.epoch < epoch]
        skipped = [a for a in older if channel not in a.arrived | self.finished or not (waits or a.captured)]
        kept = [a for a in self.pending if a is not current and a not in skipped]
        current = replace(current, arrived=current.arrived | {channel})
        newest = max(self.newest, epoch)
        begun = replace(
            self,
            pending=tuple(sorted([*kept, current], key=lambda a: a.epoch)),
            newest=newest,
            aborted=frozenset(e for e in self.aborted if e > newest),
        )
        gate, actions = begun._advance(now)
        return gate, (*(Abandon(a.epoch) for a in skipped), *actions)

    def ended(self, channel: Channel, now: float) -> tuple[Gate, tuple[Action, ...]]:
        """No row will come on ``channel`` any more: it counts as having brought every later barrier."""
        self._check(channel)
        return replace(self, finished=self.finished | {channel})._advance(now)

    def tick(self, now: float) -> tuple[Gate, tuple[Action, ...]]:
        """Time has passed: alignment that drags is given up for an unaligned snapshot."""
        return self._advance(now)

    def abort(self, epoch: int) -> tuple[Gate, tuple[Action, ...]]:
        """The coordinator gave the epoch up: forget it, unblock, ignore its late barriers."""
        pending = tuple(a for a in self.pending if a.epoch != epoch)
        aborted = self.aborted | {epoch} if epoch > self.newest else self.aborted
        return replace(self, pending=pending, aborted=aborted), ()

    # ------------------------------------------------------------ what holds now

    @property
    def blocked(self) -> frozenset[Channel]:
        """Channels that must not be processed now."""
        waiting = (a for a in self.pending if not a.captured and (a.aligned or self.mode is not Mode.AT_LEAST_ONCE))
        return frozenset(c for a in waiting for c in a.arrived) - self.finished

    @property
    def logging(self) -> frozenset[Channel]:
        """Channels of which every row that arrives now belongs to the log of at least one epoch."""
        return frozenset(c for a in self.pending if a.captured for c in self._missing(a))

    def logged_by(self, channel: Channel) -> tuple[int, ...]:
        """The epochs whose logs a row that arrives on ``channel`` now belongs to, oldest first."""
        return tuple(a.epoch for a in self.pending if a.captured and channel in self._missing(a))

    def on_receipt(self, epoch: int, aligned: bool = False) -> bool:
        """Is a barrier of ``epoch`` to be reported when it is received, rather than when it is next to process?"""
        alignment = self._alignment(epoch)
        at_once = self.mode is Mode.UNALIGNED and self.aligned_timeout == 0 and not aligned
        return at_once or (alignment is not None and alignment.captured)

    def awaits(self, channel: Channel, epoch: int) -> bool:
        """Would a barrier of ``epoch`` on ``channel`` say anything new?"""
        alignment = self._alignment(epoch)
        return channel not in alignment.arrived if alignment is not None else not self._over(epoch)

    @property
    def deadline(self) -> float | None:
        """When ``tick`` will next have something to do; None if never."""
        if self.mode is not Mode.UNALIGNED or self.aligned_timeout == math.inf:
            return None
        dragging = (a.since for a in self.pending if not (a.captured or a.aligned))
        return min((since + self.aligned_timeout for since in dragging), default=None)

    # ------------------------------------------------------------ inside

    def _advance(self, now: float) -> tuple[Gate, tuple[Action, ...]]:
        """Capture and complete what is due, oldest epoch first."""
        actions: list[Action] = []
        pending: list[Alignment] = []
        for alignment in self.pending:
            if not alignment.captured and self._due(alignment, now):
                actions.append(Snapshot(alignment.epoch, self._overtakes(alignment, now), alignment.aligned))
                alignment = replace(alignment, captured=True)
            if not self._missing(alignment):  # then it is captured
                actions.append(Complete(alignment.epoch))
            else:
                pending.append(alignment)
        return replace(self, pending=tuple(pending)), tuple(actions)

    def _due(self, alignment: Alignment, now: float) -> bool:
        """Back-edges are never waited for: their barriers come back only after the snapshot."""
        return self._missing(alignment) <= self.feedback or self._overtakes(alignment, now)

    def _overtakes(self, alignment: Alignment, now: float) -> bool:
        if alignment.aligned or self.mode is not Mode.UNALIGNED:
            return False
        return now >= alignment.since + self.aligned_timeout

    def _missing(self, alignment: Alignment) -> frozenset[Channel]:
        return self.channels - alignment.arrived - self.finished

    def _alignment(self, epoch: int) -> Alignment | None:
        return next((a for a in self.pending if a.epoch == epoch), None)

    def _over(self, epoch: int) -> bool:
        """Of one that is not pending."""
        return epoch in self.aborted or epoch <= self.newest

    def _check(self, channel: Channel) -> None:
        if channel not in self.channels:
            raise Bug(f"{channel!r} is not an input of the segment")
