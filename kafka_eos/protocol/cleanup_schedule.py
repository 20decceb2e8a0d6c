"""The schedule of cleanup: deleting epochs that are not retained, and searching for left-over output.

Recovery aborts what older terms have staged. A process of an older term that was suspended meanwhile, or that nobody
can reach to kill, may stage output afterwards, so the search is repeated while the job runs.

Pure. Rule: cleanup runs only while no epoch is in flight, because no manifest names the files of an epoch in flight.
The next epoch waits until the epochs before it are cleaned up. It does not wait for a search that has become due.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.protocol.actions import RunCleanup


class CleanupSchedule(Struct, frozen=True):
    """The conditions for deleting old epochs and for searching for left-over output.

    ``search_interval``: seconds between two searches.
    """

    searched_at: float
    search_interval: float
    has_old_epochs: bool = False
    """True if an epoch was decided since the last cleanup."""
    running: RunCleanup | None = None
    """The cleanup that is running."""

    def is_due(self, now: float) -> bool:
        """Return whether to start a cleanup as soon as no epoch is in flight."""
        return self.running is None and (self.has_old_epochs or self._is_search_due(now))

    def record_epoch(self) -> CleanupSchedule:
        """Record one more decided epoch."""
        return replace(self, has_old_epochs=True)

    def start(self, now: float) -> tuple[CleanupSchedule, RunCleanup]:
        """Start the cleanup that is due."""
        cleanup = RunCleanup(self._is_search_due(now))
        return replace(self, running=cleanup), cleanup

    def finish(self, now: float) -> CleanupSchedule:
        """Record that the cleanup has finished."""
        if (cleanup := self.running) is None:
            return self
        done = replace(self, has_old_epochs=False, running=None)
        return replace(done, searched_at=now) if cleanup.find_leftovers else done

    def _is_search_due(self, now: float) -> bool:
        return now - self.searched_at >= self.search_interval
