"""Background work of one attempt: commits, deletion of old files, checks of the input, searches for new splits.

Each of these may wait for a server. Commits and deletions share one thread, because no epoch may be committed while old
files are deleted. The check of the input uses it, too: no commit runs then. Searches have another thread, because an
outage of a broker must not delay a commit.
Rule: the result or error of background work becomes an event of the attempt's term. Only the main thread handles it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import InputLost, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.supervisor_events import BackgroundDone, BackgroundFailed, SplitsDiscovered, SupervisorEvent
from kafka_eos.protocol import events as facts
from kafka_eos.runtime.epoch_reports import CommitResult
from kafka_eos.storage.job_records import Manifest


class BackgroundWork:
    """The two background threads of an attempt: one commits and cleans up, one discovers splits."""

    def __init__(
        self,
        coordinator: Coordinator,
        term: int,
        events: queue.SimpleQueue[SupervisorEvent],
        observe: Callable[..., None],
    ) -> None:
        self._coordinator = coordinator
        self._term = term
        self._events = events
        self._observe = observe
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="discovery")
        self.finished = CommitResult()
        """The result of the last commit."""

    def commit(self, manifest: Manifest) -> None:
        """Let the sinks commit a decided epoch; ``EpochCommitted`` follows."""
        self._run(self._commits, lambda: self._commit(manifest))

    def clean_up(self, find_leftovers: bool) -> None:
        """Delete files that no checkpoint references, and abort output that workers of earlier terms have opened, if
        asked to; ``CleanupFinished`` follows.
        """
        self._run(self._commits, lambda: self._clean_up(find_leftovers))

    def discover(self, known: Mapping[str, Positions]) -> None:
        """Look for splits that are not known yet; ``SplitsDiscovered`` or ``InputLossFound`` follows."""
        self._run(self._searches, lambda: self._discover(known))

    def verify_input(self, epoch: EpochId, read: Mapping[str, Positions]) -> None:
        """Check that no input was replaced; ``InputVerified`` or ``InputLossFound`` follows."""
        self._run(self._commits, lambda: self._verify_input(epoch, read))

    def close(self) -> None:
        """Wait for a running commit. A running search ends by itself; its event is ignored."""
        self._commits.shutdown(wait=True, cancel_futures=True)
        self._searches.shutdown(wait=False, cancel_futures=True)

    def _run(self, thread: ThreadPoolExecutor, work: Callable[[], SupervisorEvent]) -> None:
        def run() -> None:
            try:
                event = work()
            except BaseException as error:  # noqa: BLE001 - handled by the main thread
                event = BackgroundFailed(self._term, error)
            self._events.put(event)

        thread.submit(run)

    def _commit(self, manifest: Manifest) -> SupervisorEvent:
        self.finished = self._coordinator.epochs.commit(manifest)
        for failed in self._coordinator.sources.report_offsets(manifest):
            self._observe("notice", text=failed)
        return BackgroundDone(self._term, facts.EpochCommitted(manifest.id))

    def _clean_up(self, find_leftovers: bool) -> SupervisorEvent:
        if find_leftovers:
            try:
                self._coordinator.abort_late_leftovers()
            except Retryable as error:
                self._observe("notice", text=f"could not look for left-over output: {error}")
        self._coordinator.drop_old_epochs()
        return BackgroundDone(self._term, facts.CleanupFinished())

    def _discover(self, known: Mapping[str, Positions]) -> SupervisorEvent:
        try:
            return SplitsDiscovered(self._term, self._coordinator.sources.discover_splits(known))
        except InputLost as error:
            return BackgroundDone(self._term, facts.InputLossFound(error.cause, str(error)))

    def _verify_input(self, epoch: EpochId, read: Mapping[str, Positions]) -> SupervisorEvent:
        try:
            self._coordinator.sources.ensure_same_input(read)
        except InputLost as error:
            return BackgroundDone(self._term, facts.InputLossFound(error.cause, str(error)))
        return BackgroundDone(self._term, facts.InputVerified(epoch))
