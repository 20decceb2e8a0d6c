"""The background threads of one attempt, for calls that may wait for a server.

Commits, checks of the input and deletions share one thread, because no epoch may be committed while old files are
deleted. Searches for new splits have another one, because an outage of a broker must not delay a commit.
Rule: the result or error of background work becomes an event of the attempt's term. Only the main thread handles it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kafka_eos.embedded.supervisor_events import BackgroundFailed, SupervisorEvent


class BackgroundWork:
    """The two background threads of an attempt: one commits and cleans up, one searches for splits."""

    def __init__(self, term: int, events: queue.SimpleQueue[SupervisorEvent]) -> None:
        self._term = term
        self._events = events
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="discovery")

    def submit(self, work: Callable[[], SupervisorEvent]) -> None:
        """Run ``work`` after the work that was submitted before; the event that it returns follows."""
        self._commits.submit(self._run, work)

    def search(self, work: Callable[[], SupervisorEvent]) -> None:
        """Run ``work`` beside that; the event that it returns follows."""
        self._searches.submit(self._run, work)

    def close(self) -> None:
        """Wait for a running commit. A running search ends by itself; its event is ignored."""
        self._commits.shutdown(wait=True, cancel_futures=True)
        self._searches.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], SupervisorEvent]) -> None:
        try:
            event = work()
        except BaseException as error:  # noqa: BLE001 - handled by the main thread
            event = BackgroundFailed(self._term, error)
        self._events.put(event)
