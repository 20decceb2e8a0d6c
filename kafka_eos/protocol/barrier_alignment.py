"""Barrier alignment of one operator chain: when it takes its snapshot, which inputs it blocks, and which rows it logs.

Pure: time is an argument, in seconds of any monotonic clock. Rule: a row that was sent before its channel's barrier
is in the state, in a log of the snapshot, or below the snapshot's offsets. A row that was sent after the barrier is in
none of them. (``AT_LEAST_ONCE`` guarantees only the first half.)

The algorithms are those of Carbone et al. 2015: Algorithm 1 aligns all inputs; Algorithm 2 aligns all inputs except
back-edges, and logs the rows that arrive on back-edges. ``UNALIGNED`` is the algorithm of Chandy and Lamport: the first
barrier triggers the snapshot, the other barriers end the logs. All three run on the same state machine. They differ in
when an epoch is captured (``InputGate._due``) and in whether an early channel is blocked until then
(``InputGate.blocked_channels``).

**The log of a channel in epoch n** is every row of the channel that was not processed before ``TakeSnapshot(n)`` and
precedes the channel's barrier n. These are the rows that the input queue holds before that barrier at the snapshot,
then the rows that are received while ``epochs_logging`` returns n. Aligned channels have nothing to log. Hence
barriers must be reported as follows (see ``InputGate.is_due_on_receipt``):
* Barriers of an epoch that is already captured: when they are received, and right after ``TakeSnapshot`` those in
  the queues.
* Barriers of any other epoch: when they are the next thing to process. With ``aligned_timeout`` 0: when they are
  received, except for epochs that are aligned in every mode.

**One epoch at a time.** The next epoch is triggered only when every subtask has acknowledged the previous one, or has
confirmed its abort (``checkpoint_schedule.PendingEpochs``). So a gate never receives a barrier of an epoch while it
waits for barriers of an older one. Barriers of an aborted epoch may still be in its channels; they change nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.errors import Bug

Channel: TypeAlias = Hashable
"""One input of an operator chain, e.g. ``("source", name)`` or ``(exchange, sender)``. First in, first out."""


class CheckpointMode(enum.Enum):
    """The way barriers treat the rows around them: aligned, unaligned, or at-least-once."""

    ALIGNED = "aligned"
    """A channel whose barrier has arrived is blocked until all have: exactly once, no in-flight rows are stored."""
    UNALIGNED = "unaligned"
    """Barriers overtake rows, and the overtaken rows are stored: exactly once, no channel is blocked."""
    AT_LEAST_ONCE = "at-least-once"
    """No channel is blocked and no rows are stored: early rows are processed again after a restart. Epochs that
    must leave no rows in flight are aligned in every mode."""


class TakeSnapshot(Struct, frozen=True):
    """Snapshot state, positions and writers now, then forward the barrier.

    With ``unaligned`` the barrier is sent before the rows in the output queues. Those rows are part of the snapshot, as
    are the rows in the input queues that precede the epoch's barrier. ``aligned`` is forwarded with the barrier.
    """

    epoch: int
    unaligned: bool
    aligned: bool = False


class CompleteSnapshot(Struct, frozen=True):
    """All barriers have arrived: the channel state is final, acknowledge the epoch."""

    epoch: int


GateAction: TypeAlias = TakeSnapshot | CompleteSnapshot


class BarrierAlignment(Struct, frozen=True):
    """An epoch whose first barrier has arrived and whose last has not. ``since``: when the first one arrived.

    ``aligned``: the epoch waits for all barriers, whatever the job's mode, because it must leave no rows in flight.
    """

    epoch: int
    since: float
    aligned: bool
    barriers_from: frozenset[Channel] = frozenset()
    captured: bool = False


class InputGate(Struct, frozen=True):
    """The inputs of one operator chain, and the alignment of their barriers.

    Each event returns the gate after it and the actions to execute, in order.
    ``aligned_timeout`` (seconds) applies to ``UNALIGNED`` only. 0 overtakes at once; x starts aligned and switches to
    unaligned after x; infinity never switches. ``feedback`` are the channels that are back-edges of the plan. Read
    ``blocked_channels`` and ``logged_channels`` after each event, not for each row.
    """

    channels: frozenset[Channel]
    mode: CheckpointMode = CheckpointMode.ALIGNED
    aligned_timeout: float = 0.0
    feedback: frozenset[Channel] = frozenset()
    pending: BarrierAlignment | None = None
    newest_epoch: int = -1
    """The newest epoch that ever began here. It is over unless it is pending; all older epochs are over."""

    def __post_init__(self) -> None:
        if not self.feedback <= self.channels:
            raise Bug(f"back-edges {set(self.feedback - self.channels)} are not inputs of the operator chain")

    # ------------------------------------------------------------ events

    def on_barrier(
        self, channel: Channel, epoch: int, now: float, aligned: bool = False
    ) -> tuple[InputGate, tuple[GateAction, ...]]:
        """Handle a barrier that arrived on a channel. Late and repeated barriers change nothing.

        ``aligned`` is a property of the epoch, the same in all of its barriers.
        Raises Bug for a newer epoch while this one is pending: it was triggered too early, or rows behind a barrier
        were read.
        """
        if channel not in self.channels:
            raise Bug(f"{channel!r} is not an input of the operator chain")
        if not self.is_barrier_awaited(channel, epoch):
            return self, ()
        current = self.pending or BarrierAlignment(epoch, now, aligned)
        if epoch != current.epoch:
            raise Bug(f"barrier {epoch} arrived on {channel!r} while epoch {current.epoch} is pending")
        current = replace(current, barriers_from=current.barriers_from | {channel})
        return replace(self, pending=current, newest_epoch=epoch)._advance(now)

    def on_tick(self, now: float) -> tuple[InputGate, tuple[GateAction, ...]]:
        """Handle the passing of time: alignments that take too long become unaligned snapshots."""
        return self._advance(now)

    def on_abort(self, epoch: int) -> tuple[InputGate, tuple[GateAction, ...]]:
        """Forget an aborted epoch, unblock its channels and ignore its late barriers."""
        pending = None if self.pending is not None and self.pending.epoch == epoch else self.pending
        return replace(self, pending=pending, newest_epoch=max(self.newest_epoch, epoch)), ()

    # ------------------------------------------------------------ current state

    @property
    def blocked_channels(self) -> frozenset[Channel]:
        """Return the channels that must not be processed now."""
        alignment = self.pending
        if alignment is None or alignment.captured:
            return frozenset()
        waits = alignment.aligned or self.mode is not CheckpointMode.AT_LEAST_ONCE
        return alignment.barriers_from if waits else frozenset()

    @property
    def logged_channels(self) -> frozenset[Channel]:
        """Return the channels whose arriving rows belong to at least one snapshot."""
        alignment = self.pending
        return self._missing(alignment) if alignment is not None and alignment.captured else frozenset()

    def epochs_logging(self, channel: Channel) -> int | None:
        """Return the epoch whose snapshot includes rows that arrive on this channel now, or None."""
        return self.pending.epoch if self.pending is not None and channel in self.logged_channels else None

    def is_due_on_receipt(self, epoch: int, aligned: bool = False) -> bool:
        """Return whether a barrier is reported on receipt rather than in queue order."""
        at_once = self.mode is CheckpointMode.UNALIGNED and self.aligned_timeout == 0 and not aligned
        return at_once or (self.pending is not None and self.pending.epoch == epoch and self.pending.captured)

    def is_barrier_awaited(self, channel: Channel, epoch: int) -> bool:
        """Return whether a barrier of this epoch on this channel would be new."""
        if self.pending is not None and self.pending.epoch == epoch:
            return channel not in self.pending.barriers_from
        return epoch > self.newest_epoch

    # ------------------------------------------------------------ inside

    def _advance(self, now: float) -> tuple[InputGate, tuple[GateAction, ...]]:
        """Capture and complete the pending epoch if that is due."""
        alignment, actions = self.pending, list[GateAction]()
        if alignment is None:
            return self, ()
        if not alignment.captured and self._due(alignment, now):
            actions.append(TakeSnapshot(alignment.epoch, self._overtakes(alignment, now), alignment.aligned))
            alignment = replace(alignment, captured=True)
        if self._missing(alignment):
            return replace(self, pending=alignment), tuple(actions)
        return replace(self, pending=None), (*actions, CompleteSnapshot(alignment.epoch))

    def _due(self, alignment: BarrierAlignment, now: float) -> bool:
        """Return whether to capture the epoch. Back-edges are not waited for: their barriers follow the snapshot."""
        return self._missing(alignment) <= self.feedback or self._overtakes(alignment, now)

    def _overtakes(self, alignment: BarrierAlignment, now: float) -> bool:
        if alignment.aligned or self.mode is not CheckpointMode.UNALIGNED:
            return False
        return now >= alignment.since + self.aligned_timeout

    def _missing(self, alignment: BarrierAlignment) -> frozenset[Channel]:
        return self.channels - alignment.barriers_from
