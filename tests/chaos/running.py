"""A started job under a test's hands: look at it, wait for what it does, stop and continue its processes.

Rule: every wait is for a condition, has a deadline, and shows the job's log when it fails. Only processes that the
test started itself, or that its job reports as its worker, are signalled.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from confluent_kafka import KafkaException

from kafka_eos.coordination.status_file import read_status
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from tests.chaos.feeding import feeding
from tests.chaos.harness import APPS, KEPT, Job, check, create_topic, feed, open_transactions
from tests.chaos.positions import following
from tests.waiting import PATIENCE, eventually

T = TypeVar("T")
GLANCE_SECONDS = 0.05
"""Between two looks at a job: each reads its whole history, and takes time from it."""
MOST_STOPS = 500
"""More than any test makes a job stand still until it stands where it should."""


def make_job(bootstrap: str, directory: Path, records: int, app: str, **environment: object) -> Job:
    """A job with a name and topics of its own, whose input holds ``records`` payments."""
    name = f"fault-{uuid4().hex[:10]}"
    home = directory / name
    home.mkdir()
    settings = {"COLUMNS": "5000", **{key: str(value) for key, value in environment.items()}}
    job = Job(name, bootstrap, f"{name}-in", f"{name}-out", home, APPS / app, settings)
    create_topic(bootstrap, job.input, 3)
    create_topic(bootstrap, job.output, 3)
    feed(bootstrap, job.input, range(records))
    return job


class Running:
    """One supervisor of a job, started by the test."""

    def __init__(self, job: Job, failpoints: str = "", *options: str) -> None:
        self.job = job
        self._history_before = len(events(job))
        self._log_before = job.log.stat().st_size if job.log.exists() else 0
        self._process = job.start(failpoints, *options)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What has been written to the job's log since this start."""
        return self.job.log.read_bytes()[self._log_before :].decode(errors="replace")

    def count(self, event: str) -> int:
        """How often the job's history has this event since this start."""
        return len(self.events(event))

    def events(self, event: str) -> list[dict[str, Any]]:
        return [e for e in events(self.job)[self._history_before :] if e["event"] == event]

    def last(self, event: str) -> dict[str, Any]:
        """Facts of the latest event of this supervisor, from status.json; {} if there was none."""
        status: Any = read_status(self.job.checkpoints / self.job.name) or {}
        return dict(status["last"].get(event, {})) if status.get("pid") == self.pid else {}

    @property
    def worker(self) -> int:
        """Process id of the worker that runs now."""
        return int(self.until(lambda: self.last("running").get("workers"), "run")[0])

    def until(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        """Wait for a true value and return it. Fails if the supervisor ends first, or the time does."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            alive = self.alive
            if not alive and (found := condition()):
                break
            assert alive, f"the job ended ({self._process.returncode}) before it did {what}; log:\n{self.log[-6000:]}"
            assert time.monotonic() < deadline, f"the job did not {what} in {seconds:g} s; log:\n{self.log[-6000:]}"
            time.sleep(GLANCE_SECONDS)
        return found

    def until_output(self) -> None:
        """Wait until an epoch of this start is committed that has output."""
        self.until(self._epochs_with_output, "commit output")

    def until_committed(self, more: int = 1) -> None:
        """Wait until ``more`` further epochs that have output are committed. The test feeds the job meanwhile."""
        wanted = self._epochs_with_output() + more
        self.until(lambda: self._epochs_with_output() >= wanted, f"commit {more} more epochs")

    def _epochs_with_output(self) -> int:
        return sum(bool(sum(event["records"].values())) for event in self.events("committed"))

    def until_all_committed(self) -> None:
        """Wait until everything that is in the input now has been read and belongs to committed epochs."""
        job = self.job
        with following(job.bootstrap, job.input, job.name) as positions:
            wanted = _answered(positions.ends)

            def reached() -> bool:
                at = positions.shown()
                return all(at.get(partition, 0) >= end for partition, end in wanted.items())

            self.until(lambda: _answered(reached), "read everything")

    def until_stopped(self, fired: int = 1) -> None:
        """Wait until a ``stop`` failpoint has frozen the supervisor."""
        self.until(lambda: len(self.job.fired) >= fired and frozen(self.pid), "stop at its failpoint")

    def freeze_when(self, condition: Callable[[], T], what: str) -> T:
        """Freeze the supervisor at a moment at which ``condition`` holds; it stays frozen. Returns what it found."""
        while True:
            self.until(condition, what)
            self.send(signal.SIGSTOP)
            eventually(lambda: frozen(self.pid), "the supervisor stops")
            if found := condition():
                return found
            self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float = PATIENCE) -> int:
        """Wait for the end; the exit code."""
        self._process.wait(seconds)
        return int(self._process.returncode)

    def drain(self) -> None:
        """SIGTERM, and nothing less than a clean end."""
        self.send(signal.SIGTERM)
        assert self.ended() == 0, self.log[-6000:]

    def end(self) -> None:
        """Whatever state it is in: gone."""
        if self.alive:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(job: Job, failpoints: str = "", *options: str) -> Iterator[Running]:
    """A started job that is gone afterwards."""
    started = Running(job, failpoints, *options)
    try:
        yield started
    finally:
        started.end()


@contextmanager
def standing(job: Job, point: str, wanted: Callable[[], object], *options: str) -> Iterator[Running]:
    """A job that stands still at ``point``: the first time that it comes there and ``wanted`` holds.

    It is fed until then, and stopped each time that it comes there, so that nothing depends on how fast it is. When it
    is continued nothing stops it any more.
    """
    before = len(job.fired)
    with running(job, ";".join([f"{point}=stop"] * (before + MOST_STOPS)), *options) as started:
        with feeding(job):
            for turn in itertools.count(before + 1):
                started.until_stopped(turn)
                if wanted():
                    break
                started.send(signal.SIGCONT)
        job.skip(point, before + MOST_STOPS - len(job.fired))
        yield started


def has_output(job: Job) -> bool:
    """Whether the epoch that was decided last has output in both sinks."""
    return len(manifests(job)[-1].committables) > 1


def refused(job: Job, code: int, failpoints: str = "") -> str:
    """Start the job, which must end with ``code``; returns what it said."""
    with running(job, failpoints, "--until-caught-up") as started:
        assert started.ended() == code, started.log[-6000:]
        return started.log


def frozen(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def signal_worker(pid: int, number: signal.Signals) -> None:
    """Signal a job's worker, if it still is a worker of ours."""
    assert b"kafka_eos.embedded.worker_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    os.kill(pid, number)


def _answered(ask: Callable[[], T]) -> T:
    """What a broker answers that may just have been started: leaders and coordinators come a moment later."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


# ---------------------------------------------------------------- what a job left behind


def events(job: Job) -> list[dict[str, Any]]:
    """The job's history; [] before its first start."""
    return job.history()


def storage(job: Job) -> LocalStorage:
    return LocalStorage(job.checkpoints / job.name)


def manifests(job: Job) -> list[Manifest]:
    """The stored manifests, oldest first; those that the job drops meanwhile are left out."""
    found, kept = storage(job), []
    for name in found.list(paths.MANIFESTS):
        with suppress(FileNotFoundError):
            kept.append(records.load(found, Manifest, name, job.name))
    return kept


def outputs(job: Job) -> list[tuple[str, bytes]]:
    """Names and contents of the committed files."""
    return sorted((path.name, path.read_bytes()) for path in job.files.glob("part-*"))


def check_all(job: Job, **options: Any) -> None:
    """``harness.check``, and nothing is left over."""
    check(job, **options)
    nothing_left(job)


def audit_passes(job: Job) -> None:
    """``kafka-eos audit`` of the job, in a process of its own, finds nothing wrong."""
    command = [sys.executable, "-m", "kafka_eos", "audit", str(job.app), "--report-dir", str(job.directory / "audit")]
    done = subprocess.run(command, env=job.environ(), capture_output=True, text=True, timeout=PATIENCE)

    assert done.stdout.startswith(("PASS:", "PARTIAL:")), done.stdout + done.stderr[-3000:]


def nothing_left(job: Job) -> None:
    """After a clean end: nothing open, nothing staged, no stored file that no manifest names."""
    assert open_transactions(job) == []
    named = {f"{paths.SHARED}/{sha256}" for manifest in manifests(job) for sha256 in manifest.files}
    assert set(storage(job).list(paths.SHARED)) == named, "files in shared/ that no manifest names, or the reverse"
    temporary = [str(p) for d in paths.DIRECTORIES for p in (job.checkpoints / job.name / d).glob(".*")]
    assert temporary == [], "temporary files left"
    if job.files.exists():
        assert [p.name for p in job.files.glob(".*") if not p.name.startswith(KEPT)] == [], "staged files left"
