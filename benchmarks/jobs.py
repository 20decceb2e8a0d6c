"""One run of a job with a generated input: start it, let it warm up, measure for a while, kill it.

Rates come from the counters of the job's own source and sink, CPU from /proc, checkpoints from the job's history.
Rule: a job that failed, restarted or stood still gives no figures.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.apps.generated import Counter, latencies
from benchmarks.processes import usage
from kafka_eos.coordination import job_requests as requests

APPS = Path(__file__).parent / "apps"
NEVER = "1h"
"""A checkpoint interval that does not pass while anything is measured: no fault tolerance."""
_ROOT = Path(__file__).parents[1]
_PATIENCE = 120.0


class Unusable(Exception):
    """The job did not do what was to be measured. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen for ``seconds``. Rates in rows a second, CPU in seconds a million input rows, memory in MB."""

    seconds: float
    rate_in: float
    rate_out: float
    cpu: float
    memory: float
    load: float
    checkpoints: list[dict[str, Any]]
    """Those decided in the window: ``seconds`` they took, ``blocked_ms``, ``aligning_ms``, ``state_bytes`` …"""
    latencies: list[float]
    """Seconds from the moment a row was due to the sink, sorted; only of jobs that write them down."""

    def median(self, of: str) -> float | None:
        """Of a fact of the checkpoints; None without any."""
        return statistics.median(c[of] for c in self.checkpoints) if self.checkpoints else None

    def quantile(self, share: float) -> float | None:
        """Of the latencies, in seconds."""
        return (
            self.latencies[min(int(share * len(self.latencies)), len(self.latencies) - 1)] if self.latencies else None
        )


def measure(
    app: str, home: Path, settings: Mapping[str, object], *, seconds: float, warm_up: float, epochs: bool = False
) -> Window:
    """Run ``apps/<app>.py`` once. ``settings`` with small letters are settings of the job, others its environment.

    ``epochs``: begin and end with a checkpoint, for jobs that do much of their work there; so it takes a bit longer.
    """
    load = os.getloadavg()[0]
    with started(app, home, settings) as job:
        job.until(lambda: Counter.total(job.counters, "out") > 0)
        job.pause(warm_up)
        return job.window(seconds, load, epochs)


@contextmanager
def started(app: str, home: Path, settings: Mapping[str, object], *options: str) -> Iterator[Run]:
    """The job as processes of its own; killed and cleared away at the end."""
    directory = home / f"job-{time.time_ns()}"
    directory.mkdir(parents=True)
    job = Run(app, directory, settings, options)
    try:
        yield job
    finally:
        job.kill()
        shutil.rmtree(directory)


class Run:
    """A running job."""

    def __init__(self, app: str, directory: Path, settings: Mapping[str, object], options: tuple[str, ...]) -> None:
        self.counters = directory / "counters"
        self._directory, self._log = directory / "bench", directory / "log"
        self._history = self._directory / "history.jsonl"
        named = {f"KAFKA_EOS_{key.upper()}" if key.islower() else key: str(value) for key, value in settings.items()}
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "KAFKA_EOS_CHECKPOINT_DIR": str(directory),
            "BENCH_DIRECTORY": str(directory),
            "KAFKA_EOS_TAKE_OVER": "true",  # from the job that was measured before, whose directory is gone
            **named,
        }
        command = [sys.executable, "-m", "kafka_eos", "run", str(APPS / f"{app}.py"), *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=directory)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Of the job's history, oldest first."""
        if not self._history.exists():
            return []
        lines = self._history.read_text().splitlines(keepends=True)
        return [
            event for line in lines if line.endswith("\n") for event in [json.loads(line)] if event["event"] == name
        ]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise Unusable(f"nothing happened for {_PATIENCE:.0f} s:\n{self._tail()}")
            time.sleep(0.02)

    def pause(self, seconds: float) -> None:
        """Let the job work."""
        time.sleep(seconds)
        self._check()

    def checkpoints(self, interval: float, seconds: float) -> None:
        """Let the job work, and ask it for a checkpoint now and after each interval; one at a time."""
        end = time.monotonic() + seconds
        while (started := time.monotonic()) < end:
            requests.wait(self._directory, requests.submit(self._directory, requests.TakeCheckpoint()), _PATIENCE)
            self.pause(max(0.0, min(started + interval, end) - time.monotonic()))

    def window(
        self, seconds: float, load: float, epochs: bool = False, work: Callable[[float], None] | None = None
    ) -> Window:
        """Measure what the job does for so long, and then to the end of the epoch if it began with one.

        ``work`` is what is done to it meanwhile, and takes that time; nothing, if not given.
        """
        if epochs:
            self._next_epoch()
        first = self._look()
        (work or self.pause)(seconds)
        if epochs:
            self._next_epoch()
        last = self._look()
        past, rows, out, cpu = (after - before for before, after in zip(first[:4], last[:4], strict=True))
        if not rows or self.events("restarting"):
            raise Unusable(f"{rows} rows read in {past:.1f} s:\n{self._tail()}")
        until = (time.time() - (time.monotonic() - last[0])) * 1000
        decided = [e for e in self.events("decided") if until - past * 1000 <= e["at"] <= until]
        ages = latencies(self.counters, first[0], last[0])
        memory = usage(self.process.pid).memory / 1e6
        return Window(past, rows / past, out / past, cpu / rows * 1e6, memory, load, decided, ages)

    def kill(self) -> None:
        """End the job and wait for its workers, which end with it."""
        workers = [pid for event in self.events("running") for pid in event["workers"]]
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + _PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            if time.monotonic() > deadline:
                raise Unusable(f"workers {workers} outlive their supervisor")
            time.sleep(0.01)

    def _next_epoch(self) -> None:
        before = len(self.events("decided"))
        self.until(lambda: len(self.events("decided")) > before)

    def _look(self) -> tuple[float, int, int, float]:
        """Now: the moment, rows read, rows written, CPU seconds used."""
        cpu = usage(self.process.pid).cpu
        rows, out = (Counter.total(self.counters, kind) for kind in ("in", "out"))
        return time.monotonic(), rows, out, cpu

    def _check(self) -> None:
        if self.process.poll() is not None:
            raise Unusable(f"the job ended with exit code {self.process.returncode}:\n{self._tail()}")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]
