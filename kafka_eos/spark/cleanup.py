"""Cleanup between two epochs of a term: old epochs are deleted, left-over output is aborted.

Rule: ``protocol.cleanup_schedule`` says when. Aborting fences every producer of the term, including those of prepared
output. So no epoch may be running or committing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import Retryable
from kafka_eos.protocol.actions import RunCleanup
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule

_EPOCHS = 8
"""Epochs after which old ones are dropped even if there is always more to read."""
_LOOK = 10.0
"""Seconds between two looks for what a task left that outlived its executor, or the driver before this one."""


def create_cleanup_schedule(now: float) -> CleanupSchedule:
    """Return the schedule of cleanups, with none due before the first epoch."""
    return CleanupSchedule(_EPOCHS, now, _LOOK)


class CleanupRunner:
    """Carries out the cleanup of one term between two epochs.

    ``generation`` counts how often its producers were fenced: the next epoch needs new ones.
    """

    def __init__(self, coordinator: Coordinator, observe: Callable[..., None]) -> None:
        self._coordinator, self._observe = coordinator, observe
        self.generation = 0

    def run(self, cleanup: RunCleanup) -> None:
        """Abort left-over output, if the search found any, and drop old epochs."""
        if cleanup.fence or (cleanup.find_leftovers and self._has_left_over_output()):
            self._coordinator.abort_own_leftovers()
            self.generation += 1
        self._coordinator.drop_old_epochs()

    def _has_left_over_output(self) -> bool:
        """Return whether there is left-over output that no epoch will commit."""
        try:
            return bool(self._coordinator.list_staged())
        except Retryable as error:
            self._observe("notice", text=f"could not look for left-over output: {error}")
            return False
