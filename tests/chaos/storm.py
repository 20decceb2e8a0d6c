"""Storms over a job of several workers: faults one after another, under input that goes on.

Rule: a storm is over when every planned fault has acted and something was committed after the last one. The job runs
on; what becomes of it is the test's choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.chaos.harness import Invalid, Job, feed
from tests.chaos.running import PATIENCE, Running

PAYMENTS_A_FAULT = 150


@dataclass
class Storm:
    """Faults over the life of one job; the script of failpoints grows with each call of ``through``."""

    job: Job
    fed: int
    """Ids below this number are in the input."""
    script: list[str] = field(default_factory=list)

    @contextmanager
    def through(self, *faults: str, **environment: object) -> Iterator[Running]:
        """Run the job, with these settings from now on, until ``faults`` have acted; it is gone afterwards."""
        self.job.environment.update({name: str(value) for name, value in environment.items()})
        self.script += faults
        running = self._begin()
        try:
            while len(self.job.fired) < len(self.script):
                running = self._next_fault(running)
            if not running.alive:
                running = self._again(running)
            running.until_committed(1)
            yield running
        finally:
            running.end()
        if self.job.fired != [fault.partition("=")[0] for fault in self.script]:
            raise Invalid(f"planned {self.script}, fired {self.job.fired}")

    def feed(self, payments: int = PAYMENTS_A_FAULT) -> None:
        feed(self.job.bootstrap, self.job.input, range(self.fed, self.fed + payments))
        self.fed += payments

    def _begin(self) -> Running:
        return Running(self.job, ";".join(self.script))

    def _next_fault(self, running: Running) -> Running:
        before = len(self.job.fired)
        self.feed()
        for _ in itertools.count():
            if not running.alive:
                running = self._again(running)
            try:
                running.until(lambda: len(self.job.fired) > before, f"reach {self.script[before]}", PATIENCE)
                return running
            except AssertionError:
                if running.alive:
                    raise
        raise AssertionError("not reached")

    def _again(self, dead: Running) -> Running:
        """A supervisor that a fault has killed is started again; any other end is a failure."""
        assert dead.ended() == -9, f"the job ended with {dead.ended()}; log:\n{dead.log[-6000:]}"
        return self._begin()
