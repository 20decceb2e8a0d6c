"""Storms over a job of several workers: faults one after another, under input that goes on.

Rule: a storm is over when every planned fault has acted and something was committed after the last one. The job runs
on; what becomes of it is the test's choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.chaos.harness import Invalid, Job, feed
from tests.chaos.running import GLANCE_SECONDS, Running, events
from tests.marks import campaign
from tests.waiting import PATIENCE

PAYMENTS = 300
"""What a job of ``rescaled`` begins with."""
PAYMENTS_A_FAULT = 150
Steps = tuple[tuple[int, tuple[str, ...]], ...]
"""Number of workers, and the faults that they meet."""
FEED_AGAIN = 2.0
"""Seconds without the awaited fault until more is fed: some need an epoch in which several workers had output."""


@dataclass
class Storm:
    """Faults over all runs of one job; the script of failpoints grows with each call of ``through``."""

    job: Job
    fed: int
    """Ids below this number are in the input."""
    script: list[str] = field(default_factory=list)

    @contextmanager
    def through(self, *faults: str, **environment: object) -> Iterator[Running]:
        """Run the job, with these settings from now on, until ``faults`` have acted; it is gone afterwards."""
        self.job.environment.update({name: str(value) for name, value in environment.items()})
        before = len(self.job.fired)
        self.script += faults
        self._running = self._begin()
        try:
            for number in range(before + 1, len(self.script) + 1):
                self._fed_until(lambda n=number: len(self.job.fired) >= n, f"reach {self.script[number - 1]}")
            self.feed()
            commits = self._commits()
            self._until(lambda: self._commits() > commits, "commit an epoch after the storm")
            yield self._running
        finally:
            self._running.end()
        if self.job.fired != [fault.partition("=")[0] for fault in self.script]:
            raise Invalid(f"planned {self.script}, fired {self.job.fired}")

    def feed(self, payments: int = PAYMENTS_A_FAULT) -> None:
        feed(self.job.bootstrap, self.job.input, range(self.fed, self.fed + payments))
        self.fed += payments

    def _begin(self) -> Running:
        return Running(self.job, ";".join(self.script))

    def _commits(self) -> int:
        """Epochs with output that are committed, in the whole life of the job."""
        return sum(e["event"] == "committed" and any(e["records"].values()) for e in events(self.job))

    def _fed_until(self, condition: Callable[[], bool], what: str) -> None:
        next_feed = time.monotonic()

        def fed() -> bool:
            nonlocal next_feed
            if done := condition():
                return done
            if time.monotonic() >= next_feed:
                self.feed()
                next_feed = time.monotonic() + FEED_AGAIN
            return False

        self._until(fed, what)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it, and start the supervisor again whenever a fault has killed it. Any other end is a failure."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            running = self._running
            if not running.alive:
                assert running.ended() == -9, f"the job ended with {running.ended()}; log:\n{running.log[-6000:]}"
                self._running = self._begin()
            assert time.monotonic() < deadline, f"the job did not {what}; log:\n{running.log[-6000:]}"
            time.sleep(GLANCE_SECONDS)


def in_storms(few: Steps, every: Steps) -> pytest.MarkDecorator:
    """``mode``, ``backend`` and ``steps``: a few faults, and in the campaign every one in each of the settings."""
    return pytest.mark.parametrize(
        ("mode", "backend", "steps"),
        [
            pytest.param("unaligned", "rocksdb", few, id="few"),
            campaign("unaligned", "rocksdb", every, named="unaligned-rocksdb"),
            campaign("aligned", "rocksdb", every, named="aligned-rocksdb"),
            campaign("unaligned", "memory", every, named="unaligned-memory"),
        ],
    )


def rescaled(job: Job, steps: Steps) -> None:
    """A storm over a job whose number of workers changes with each step."""
    storm = Storm(job, PAYMENTS)
    for workers, faults in steps:
        with storm.through(*faults, KAFKA_EOS_PARALLELISM=workers):
            storm.feed(1000)
