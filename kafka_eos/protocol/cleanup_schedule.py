"""When epochs that are not retained are dropped, and when to look for output that nobody will commit.

Pure. Rule: only while nothing is on its way. No manifest names the files of an epoch that is, and whoever looks for
output fences its producers. So the next epoch waits where there is a reason, and not only time has passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafka_eos.protocol.actions import Sweep


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """``every``: epochs after which it is due. ``look_every``: seconds after which it is in any case."""

    every: int
    looked_at: float
    look_every: float = float("inf")
    unswept: int = 0
    """Epochs since old ones were dropped."""
    littered: bool = False
    """Something may have been left open that nobody will commit."""
    sweeping: Sweep | None = None
    """What is being done now."""

    @property
    def holds(self) -> bool:
        """May no epoch begin before it is done?"""
        return self.sweeping is not None or self.littered or self.unswept >= self.every

    def due(self, now: float) -> bool:
        """Is it to be done as soon as nothing is on its way? By the clock alone, no epoch waits for it."""
        return self.littered or self.unswept >= self.every or now - self.looked_at >= self.look_every

    def looks_once_more(self) -> Housekeeping:
        """The look is due now, whenever the last one was."""
        return replace(self, looked_at=-float("inf"))

    def decided(self) -> Housekeeping:
        """One more epoch is."""
        return replace(self, unswept=self.unswept + 1)

    def begun(self, now: float) -> tuple[Housekeeping, Sweep]:
        """What is to be done now; by then nothing is on its way."""
        sweep = Sweep(self.due(now), self.littered)
        return replace(self, sweeping=sweep), sweep

    def swept(self, now: float) -> Housekeeping:
        """It is done."""
        if (sweep := self.sweeping) is None:
            return self
        done = replace(self, unswept=0, sweeping=None, littered=self.littered and not sweep.fence)
        return replace(done, looked_at=now) if sweep.thorough else done
