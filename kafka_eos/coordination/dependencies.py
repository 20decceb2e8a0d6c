"""The systems that a job depends on: when each last answered, and since when it has not answered.

The facts come from the requests that the job makes anyway: searches for splits, registrations, commits, records in the
checkpoint store. An idle job makes them too, every few seconds.

Rule: only status, readiness and metrics use these facts; no decision depends on them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from kafka_eos.core.errors import PartialProgress, Retryable


class Outage(Struct, frozen=True):
    """The outage of a system: for how many seconds it has not answered, and the first error."""

    seconds: float
    reason: str

    def describe(self, name: str) -> str:
        """Describe the outage of the system of this name in one line."""
        return f"{name} has not responded for {self.seconds:,.0f} s: {self.reason}"


class _Dependency(Struct):
    answered_at: float | None = None
    """The time of the last answer, by the wall clock."""
    silent_since: float | None = None
    """The time of the last answer before requests began to fail; None while they succeed."""
    reason: str = ""


def _unobserved(**_: object) -> None:
    """Discard the report."""


class DependencyMonitor:
    """The last answers of all systems that a job depends on. Thread-safe.

    ``report`` receives the facts of the event ``dependencies`` whenever a system is new, stops or resumes answering.
    """

    def __init__(self, report: Callable[..., None] = _unobserved, wall: Callable[[], float] = time.time) -> None:
        self._report, self._wall = report, wall
        self._lock = threading.Lock()
        self._known: dict[str, _Dependency] = {}

    @contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """Record whether the requests in the context are answered. Errors propagate unchanged."""
        try:
            yield
        except PartialProgress:
            self.record_answer(name)
            raise
        except (Retryable, OSError) as error:
            self.record_failure(name, str(error))
            raise
        self.record_answer(name)

    def record_answer(self, name: str) -> None:
        with self._lock:
            known = self._known.get(name)
            is_news = known is None or known.silent_since is not None
            self._known[name] = _Dependency(self._wall())
            facts = self._facts() if is_news else None
        if facts is not None:
            self._report(**facts)

    def record_failure(self, name: str, reason: str) -> None:
        with self._lock:
            known = self._known.setdefault(name, _Dependency())
            is_news = known.silent_since is None
            if is_news:
                known.silent_since = self._wall() if known.answered_at is None else known.answered_at
                known.reason = reason
            facts = self._facts() if is_news else None
        if facts is not None:
            self._report(**facts)

    def is_quiet(self, name: str, seconds: float) -> bool:
        """Return whether the system has not answered within the last ``seconds``."""
        with self._lock:
            known = self._known.get(name)
            return known is None or known.answered_at is None or self._wall() - known.answered_at >= seconds

    def _facts(self) -> dict[str, object]:
        return {
            "answering": sorted(name for name, of in self._known.items() if of.silent_since is None),
            "silent": {
                name: {"since": int(of.silent_since * 1000), "reason": of.reason}
                for name, of in sorted(self._known.items())
                if of.silent_since is not None
            },
        }
