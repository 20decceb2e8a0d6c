"""The schedule of cleanup: deleting epochs that are not retained, and searching for left-over output.

Pure. Rule: cleanup runs only while no epoch is in flight. No manifest names the files of an epoch in flight, and a
search for left-over output may fence its producers. The next epoch waits for a cleanup that has a reason other than
elapsed time. Only elapsed time, or known left-over output, is a reason for a search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafka_eos.protocol.actions import RunCleanup


@dataclass(frozen=True, slots=True)
class CleanupSchedule:
    """The conditions for deleting old epochs and for searching for left-over output.

    ``max_interval``: seconds after which the search is due in any case.
    """

    epoch_interval: int
    looked_at: float
    max_interval: float = float("inf")
    epochs_since: int = 0
    """Epochs decided since the last cleanup."""
    has_leftovers: bool = False
    """True if output may be open that no process will commit."""
    running: RunCleanup | None = None
    """The cleanup that is running."""

    @property
    def blocks_epochs(self) -> bool:
        """True if no epoch may start before the cleanup has finished."""
        return self.running is not None or self.has_leftovers or self.epochs_since >= self.epoch_interval

    def is_due(self, now: float) -> bool:
        """Return whether to run as soon as no epoch is in flight. No epoch waits if only the interval has passed."""
        return (
            self.has_leftovers or self.epochs_since >= self.epoch_interval or now - self.looked_at >= self.max_interval
        )

    def force(self) -> CleanupSchedule:
        """Make the search for left-over output due now."""
        return replace(self, looked_at=-float("inf"))

    def record_epoch(self) -> CleanupSchedule:
        """Record one more decided epoch."""
        return replace(self, epochs_since=self.epochs_since + 1)

    def start(self, now: float) -> tuple[CleanupSchedule, RunCleanup]:
        """Start the cleanup that is due."""
        search = self.has_leftovers or now - self.looked_at >= self.max_interval
        cleanup = RunCleanup(search, self.has_leftovers)
        return replace(self, running=cleanup), cleanup

    def finish(self, now: float) -> CleanupSchedule:
        """Record that the cleanup has finished."""
        if (cleanup := self.running) is None:
            return self
        done = replace(self, epochs_since=0, running=None, has_leftovers=self.has_leftovers and not cleanup.fence)
        return replace(done, looked_at=now) if cleanup.find_leftovers else done
