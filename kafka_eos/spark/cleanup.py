"""What is done between two epochs of a term: old epochs go, and output that nobody will commit is aborted.

Rule: ``protocol.cleanup_schedule`` says when. Aborting fences every producer of the term, those of prepared output too,
so nothing may be on its way.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import Retryable
from kafka_eos.protocol.actions import Sweep
from kafka_eos.protocol.cleanup_schedule import Housekeeping

_EPOCHS = 8
"""Epochs after which old ones are dropped even if there is always more to read."""
_LOOK = 10.0
"""Seconds between two looks for what a task left that outlived its executor, or the driver before this one."""


def housekeeping(now: float) -> Housekeeping:
    """When upkeep is due."""
    return Housekeeping(_EPOCHS, now, _LOOK)


class Upkeep:
    """Of one term. ``generation`` counts how often its producers were fenced: the next epoch needs new ones."""

    def __init__(self, coordinator: Coordinator, observe: Callable[..., None]) -> None:
        self._coordinator, self._observe = coordinator, observe
        self.generation = 0

    def run(self, sweep: Sweep) -> None:
        """Drop old epochs; before that abort output that nobody will commit, if it was looked for and is there."""
        if sweep.fence or (sweep.thorough and self._left_over()):
            self._coordinator.abort_left_over()
            self.generation += 1
        self._coordinator.drop_old()

    def _left_over(self) -> bool:
        """Is output open, with nothing on its way?"""
        try:
            return bool(self._coordinator.staged())
        except Retryable as error:
            self._observe("notice", text=f"could not look for output that is left open: {error}")
            return False
