"""The response to lost input, in a reader, in a running attempt and before a decision.

    NONE ── records expired ──▶ DUE ── trigger ──▶ PENDING ── decided ──▶ DECIDED ── discovery ──▶ CONFIRMING ──▶ NONE
                                 ▲                    │                                               │
                                 └────── aborted ─────┘                        records expired ───────┴──▶ restart

Pure. Rules:
- A running attempt does not end the job while a restart could show more. It restarts, and the next recovery verifies
  every position again, with every broker. A loss that recovery finds is final.
- Records that were read are not needed any more. So if records expired in front of the last decided positions, a
  checkpoint is taken at once. The loss counts if the positions of that checkpoint are still behind.
- Input that was altered is final at once. After a restart it could look intact, and records would be skipped.
"""

from __future__ import annotations

import enum

from kafka_eos.core.errors import LossCause


class LossResponse(enum.Enum):
    """The action to take."""

    TAKE_CHECKPOINT = "take a checkpoint at once, then look again"
    RESTART_ATTEMPT = "restart the attempt; recovery verifies all positions"
    END_JOB = "end the job"


def respond(cause: LossCause, *, read_since: bool) -> LossResponse:
    """Return the response to a loss that was found outside of recovery.

    ``read_since``: records may have been read since the positions that cannot be served.
    """
    if cause is LossCause.ALTERED:
        return LossResponse.END_JOB
    if cause is LossCause.EXPIRED and read_since:
        return LossResponse.TAKE_CHECKPOINT
    return LossResponse.RESTART_ATTEMPT


class LossCheck(enum.Enum):
    """The progress of the checkpoint that shows whether expired records were read."""

    NONE = "no loss was found"
    DUE = "a checkpoint is to be triggered"
    PENDING = "it is triggered"
    DECIDED = "it is decided"
    CONFIRMING = "a search for splits verifies its positions"

    @property
    def blocks_discovery(self) -> bool:
        """True while a search would verify positions from before the checkpoint."""
        return self in (LossCheck.DUE, LossCheck.PENDING)

    def on_trigger(self) -> LossCheck:
        return LossCheck.PENDING if self is LossCheck.DUE else self

    def on_abort(self) -> LossCheck:
        return LossCheck.DUE if self is LossCheck.PENDING else self

    def on_decision(self) -> LossCheck:
        return LossCheck.DECIDED if self is LossCheck.PENDING else self

    def on_discovery(self) -> LossCheck:
        return LossCheck.CONFIRMING if self is LossCheck.DECIDED else self

    def on_all_found(self) -> LossCheck:
        return LossCheck.NONE if self is LossCheck.CONFIRMING else self
