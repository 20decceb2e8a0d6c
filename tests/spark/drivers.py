"""Drivers as processes of their own, that can be killed at named steps and told to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from kafka_eos.coordination.status_file import read_status
from tests.spark.cluster import environment
from tests.spark.kit import Job
from tests.waiting import PATIENCE


class Run:
    """``kafka-eos run`` of a job on Spark, as a process."""

    def __init__(
        self, job: Job, master: str, *options: str, failpoints: str = "", cores: int = 2, **environ: str
    ) -> None:
        self.job, self.log = job, job.directory / "driver.log"
        command = [sys.executable, "-m", "kafka_eos", "run", str(job.app), "--engine", "spark", "--master", master,
                   "-b", job.bootstrap, "--checkpoint-dir", str(job.checkpoints), *options]  # fmt: skip
        armed = {"KAFKA_EOS_FAILPOINTS": failpoints, "KAFKA_EOS_FAILPOINT_LOG": str(job.directory / "fired")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**environment(cores), **armed, **environ, "COLUMNS": "500"},
                stdout=log,
                stderr=log,
                cwd=job.directory,
            )

    def ended(self) -> int:
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the job hung:\n{self.tail()}") from None

    @property
    def status(self) -> Any:
        return read_status(self.job.checkpoints / self.job.name) or {"counts": {}, "last": {}}

    def until(self, event: str, times: int = 1) -> None:
        self.until_so(lambda: self.status["counts"].get(event, 0) >= times)

    def until_so(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self._process.poll() is None, self.tail()
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]


def fired(job: Job) -> list[str]:
    path = job.directory / "fired"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
