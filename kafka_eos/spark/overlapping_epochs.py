"""Threads beside the driver's: the Spark job of one epoch, and the commit of the epoch before it.

    quiet ── begin ─▶ running ── decided, commit ─▶ committing ── receipt ─▶ quiet
                         ▲                       │ begin
                         │ receipt               ▼
                         └──────────────── overlapped ── job ends ─▶ held ── receipt, decided ─▶ committing

Rule: ``protocol.attempt`` is that state machine. This module holds its threads and their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_eos.core.ids import EpochId
from kafka_eos.spark.messages import StageSpec
from kafka_eos.storage.job_records import Manifest

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult

_AGAIN = 0.1
"""Seconds between two tries to cancel: a job that is not submitted yet cannot be."""


@dataclass(frozen=True, slots=True)
class RunningEpoch:
    """An epoch whose Spark job has started."""

    epoch: EpochId
    job: Future[EpochResult]


class EpochThreads:
    """Runs Spark jobs on one thread and commits on another.

    ``run``, ``cancel``: of jobs; ``start_commit``: until the receipt.
    """

    def __init__(
        self, run: Callable[[StageSpec], EpochResult], cancel: Callable[[], None], commit: Callable[[Manifest], None]
    ) -> None:
        self._run = run
        self._cancel = cancel
        self._commit = commit
        self._running: RunningEpoch | None = None
        self._decided: Manifest | None = None
        self._receipt: Future[None] | None = None
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="spark-job")
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")

    def start_job(self, epoch: EpochId, spec: StageSpec) -> None:
        self._running = RunningEpoch(epoch, self._jobs.submit(self._run, spec))

    @property
    def is_running(self) -> bool:
        """Return whether a Spark job is running."""
        return self._running is not None and not self._running.job.done()

    def poll_finished(self) -> EpochId | None:
        """Return the epoch whose job has finished but is not decided; raises what failed it."""
        if (running := self._running) is None or not running.job.done():
            return None
        running.job.result()
        return running.epoch

    def result(self) -> EpochResult:
        """Return the result of the job that has ended."""
        assert self._running is not None
        return self._running.job.result()

    def set_decided(self, manifest: Manifest) -> None:
        """Set the published manifest of the finished epoch."""
        self._running, self._decided = None, manifest

    def start_commit(self) -> None:
        """Start the commit of the decided epoch on the commit thread."""
        manifest = self.manifest
        self._receipt = self._commits.submit(self._commit, manifest)

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of the epoch that was decided last."""
        assert self._decided is not None
        return self._decided

    def poll_committed(self) -> Manifest | None:
        """Return the manifest whose receipt was written since the last call.

        Raises what kept it from being committed.
        """
        if self._receipt is None or not self._receipt.done():
            return None
        self._receipt.result()
        self._receipt = None
        return self.manifest

    def wait(self, seconds: float) -> None:
        """Wait until a thread ends, for at most ``seconds``."""
        awaited: list[Future[Any]] = []
        if self._receipt is not None:
            awaited.append(self._receipt)
        if self._running is not None and self.is_running:
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
        """Wait until no job and no commit is running."""
        self._jobs.shutdown(wait=True, cancel_futures=True)
        self._commits.shutdown(wait=True, cancel_futures=True)
