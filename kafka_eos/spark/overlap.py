"""The epochs of one attempt that are on their way: one whose Spark job runs, and before it one that is committed.

    quiet ── begin ─▶ running ── decided ─▶ committing ── receipt ─▶ quiet
                         ▲                       │ begin
                         │ receipt               ▼
                         └──────────────── overlapped ── job ends ─▶ held ── receipt ─▶ decided: committing

``protocol.checkpoint.Flights`` is that machine, shared with the embedded engine; here are the threads behind it.
Rule: an epoch begins only on what is decided, and is decided only when the one before it has its receipt. So at most
one decided epoch is unfinished, which is what a recovery finishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.ids import EpochId
from kafka_eos.interfaces import Positions
from kafka_eos.protocol.checkpoint import Cadence, Flights
from kafka_eos.spark.messages import Spec

if TYPE_CHECKING:
    from kafka_eos.spark.epochs import Outcome

_JOB = 0
"""Who answers for an epoch: its Spark job, for all its tasks."""
_AGAIN = 0.1
"""Seconds between two tries to cancel: a job that is not submitted yet cannot be."""


@dataclass(frozen=True, slots=True)
class Flight:
    """An epoch whose job was begun. ``ends``: up to where it was to read; ``began``: by the monotonic clock."""

    epoch: EpochId
    ends: Mapping[str, Positions]
    began: float
    job: Future[Outcome]


@dataclass(frozen=True, slots=True)
class Committing:
    """A decided epoch on its way to its receipt."""

    manifest: Manifest
    began: float
    receipt: Future[None]


class Overlap:
    """Runs jobs on one thread, and commits on another. ``run``, ``cancel``: of jobs; ``commit``: until the receipt."""

    def __init__(
        self,
        run: Callable[[Spec], Outcome],
        cancel: Callable[[], None],
        commit: Callable[[Manifest], None],
        cadence: Cadence,
    ) -> None:
        self._run, self._cancel, self._commit, self._cadence = run, cancel, commit, cadence
        self._flights = Flights(limit=2)
        self._flight: Flight | None = None
        self._committing: Committing | None = None
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="spark-job")
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")

    @property
    def quiet(self) -> bool:
        """Nothing is on its way: nothing of the job runs, and everything decided has its receipt."""
        return not self._flights.pending and not self._flights.committing

    @property
    def may_begin(self) -> bool:
        """Is everything that was begun decided?"""
        return not self._flights.pending

    def begin(self, epoch: EpochId, ends: Mapping[str, Positions], spec: Spec) -> None:
        now = time.monotonic()
        self._flights = self._flights.trigger(epoch, frozenset({_JOB}), now)
        self._flight = Flight(epoch, ends, now, self._jobs.submit(self._run, spec))

    def ready(self) -> Flight | None:
        """The epoch to decide now. Raises what ended its job."""
        if (flight := self._flight) is None or not flight.job.done():
            return None
        flight.job.result()
        self._flights = self._flights.ack(flight.epoch, _JOB)
        return flight if self._flights.ready() == flight.epoch else None

    def decided(self, flight: Flight, manifest: Manifest) -> None:
        """Its manifest is published: commit it beside."""
        self._flights, self._flight = self._flights.decided(flight.epoch), None
        self._committing = Committing(manifest, flight.began, self._commits.submit(self._commit, manifest))

    def committed(self) -> Committing | None:
        """The epoch whose receipt was written since the last call. Raises what kept it from being committed."""
        if (done := self._committing) is None or not done.receipt.done():
            return None
        done.receipt.result()
        self._flights, self._committing = self._flights.committed(done.manifest.id), None
        return done

    def late(self, now: float) -> bool:
        """Does a job take too long? One that only waits for the commit before it does not."""
        return any(not each.complete and self._cadence.expired(each, now) for each in self._flights.pending)

    def wait(self, seconds: float) -> None:
        """Until something ends, at most so long."""
        awaited: list[Future[Any]] = []
        if self._committing is not None:
            awaited.append(self._committing.receipt)
        if self._flight is not None and not self._flight.job.done():
            awaited.append(self._flight.job)
        if awaited:
            wait(awaited, seconds, FIRST_COMPLETED)
        else:
            time.sleep(seconds)

    def cancel(self) -> None:
        """End what runs, and return when it has ended."""
        while self._flight is not None and not self._flight.job.done():
            self._cancel()
            wait([self._flight.job], _AGAIN)

    def close(self) -> None:
        """Return when nothing is under way."""
        self._jobs.shutdown(wait=True, cancel_futures=True)
        self._commits.shutdown(wait=True, cancel_futures=True)
