"""What one attempt does beside its main thread: commits, sweeps of old files, searches for new splits.

Each of these may wait for a server. Commits and sweeps share one thread, because no epoch may be committed while old
files are dropped; searches have another, because an outage of a broker must not hold a commit.

Rule: what a piece of work returns or raises becomes an event of the attempt's term. Only the main thread acts on it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import InputLost
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.supervisor_events import BackgroundDone, Broken, Event, SplitsDiscovered
from kafka_eos.protocol import events as facts
from kafka_eos.runtime.epoch_reports import Finished
from kafka_eos.storage.job_records import Manifest


class Beside:
    """The two threads of one attempt."""

    def __init__(
        self, coordinator: Coordinator, term: int, events: queue.SimpleQueue[Event], observe: Callable[..., None]
    ) -> None:
        self._coordinator, self._term, self._events, self._observe = coordinator, term, events, observe
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="discovery")
        self.finished = Finished()
        """How the epoch that was committed last went."""

    def commit(self, manifest: Manifest) -> None:
        """Let the sinks commit a decided epoch: ``Committed`` follows."""
        self._run(self._commits, lambda: self._commit(manifest))

    def sweep(self) -> None:
        """Drop the files that no checkpoint needs any more: ``Swept`` follows."""
        self._run(self._commits, self._sweep)

    def discover(self, known: Mapping[str, Positions]) -> None:
        """Look for splits beside those that are known: ``SplitsDiscovered`` follows."""
        self._run(self._searches, lambda: self._discover(known))

    def close(self) -> None:
        """Wait for the commit that runs. A search that runs ends by itself; its event is of no use any more."""
        self._commits.shutdown(wait=True, cancel_futures=True)
        self._searches.shutdown(wait=False, cancel_futures=True)

    def _run(self, thread: ThreadPoolExecutor, work: Callable[[], Event]) -> None:
        def run() -> None:
            try:
                event = work()
            except BaseException as error:  # noqa: BLE001 - handled by the main thread
                event = Broken(self._term, error)
            self._events.put(event)

        thread.submit(run)

    def _commit(self, manifest: Manifest) -> Event:
        self.finished = self._coordinator.finish(manifest)
        for failed in self._coordinator.tell_sources(manifest):
            self._observe("notice", text=failed)
        return BackgroundDone(self._term, facts.Committed(manifest.id))

    def _sweep(self) -> Event:
        self._coordinator.drop_old()
        return BackgroundDone(self._term, facts.Swept())

    def _discover(self, known: Mapping[str, Positions]) -> Event:
        try:
            return SplitsDiscovered(self._term, known, self._coordinator.discover(known))
        except InputLost as error:
            return SplitsDiscovered(self._term, known, error)
