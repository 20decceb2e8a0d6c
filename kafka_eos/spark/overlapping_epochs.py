"""What runs beside the driver's thread: the Spark job of one epoch, and the commit of the one before it.

    quiet ── begin ─▶ running ── decided, commit ─▶ committing ── receipt ─▶ quiet
                         ▲                       │ begin
                         │ receipt               ▼
                         └──────────────── overlapped ── job ends ─▶ held ── receipt, decided ─▶ committing

Rule: ``protocol.attempt`` is that machine; here are the threads behind it, and what they have returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_eos.core.ids import EpochId
from kafka_eos.spark.messages import Spec
from kafka_eos.storage.job_records import Manifest

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult

_AGAIN = 0.1
"""Seconds between two tries to cancel: a job that is not submitted yet cannot be."""


@dataclass(frozen=True, slots=True)
class Running:
    """An epoch whose job was begun."""

    epoch: EpochId
    job: Future[EpochResult]


class Overlap:
    """Runs jobs on one thread, and commits on another. ``run``, ``cancel``: of jobs; ``commit``: until the receipt."""

    def __init__(
        self, run: Callable[[Spec], EpochResult], cancel: Callable[[], None], commit: Callable[[Manifest], None]
    ) -> None:
        self._run, self._cancel, self._commit = run, cancel, commit
        self._running: Running | None = None
        self._decided: Manifest | None = None
        self._receipt: Future[None] | None = None
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="spark-job")
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")

    def begin(self, epoch: EpochId, spec: Spec) -> None:
        self._running = Running(epoch, self._jobs.submit(self._run, spec))

    def ended(self) -> EpochId | None:
        """The epoch whose job has ended, until it is decided. Raises what ended the job."""
        if (running := self._running) is None or not running.job.done():
            return None
        running.job.result()
        return running.epoch

    def result(self) -> EpochResult:
        """Of the job that has ended."""
        assert self._running is not None
        return self._running.job.result()

    def decided(self, manifest: Manifest) -> None:
        """The manifest of the epoch whose job has ended is published."""
        self._running, self._decided = None, manifest

    def commit(self) -> None:
        """Commit what was decided last, beside."""
        manifest = self.manifest
        self._receipt = self._commits.submit(self._commit, manifest)

    @property
    def manifest(self) -> Manifest:
        """Of the epoch that was decided last."""
        assert self._decided is not None
        return self._decided

    def committed(self) -> Manifest | None:
        """The epoch whose receipt was written since the last call. Raises what kept it from being committed."""
        if self._receipt is None or not self._receipt.done():
            return None
        self._receipt.result()
        self._receipt = None
        return self.manifest

    def wait(self, seconds: float) -> None:
        """Until something ends, at most so long."""
        awaited: list[Future[Any]] = []
        if self._receipt is not None:
            awaited.append(self._receipt)
        if self._running is not None and not self._running.job.done():
            awaited.append(self._running.job)
        if awaited:
            wait(awaited, seconds, FIRST_COMPLETED)
        else:
            time.sleep(seconds)

    def cancel(self) -> None:
        """End what runs, and return when it has ended."""
        while self._running is not None and not self._running.job.done():
            self._cancel()
            wait([self._running.job], _AGAIN)

    def close(self) -> None:
        """Return when nothing is under way."""
        self._jobs.shutdown(wait=True, cancel_futures=True)
        self._commits.shutdown(wait=True, cancel_futures=True)
