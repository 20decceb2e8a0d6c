"""Two hosts of a job, each a directory with a disk of its own, and a service manager that starts what ended.

Rule: a service is started again as systemd does with ``Restart=on-failure``: when it ended badly, and not when it was
told to end. A lost host starts nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.harness import Job
from tests.waiting import PATIENCE

_LOOK_SECONDS = 0.1


class Host:
    """``version`` is that of the code on it."""

    def __init__(self, job: Job, home: Path, port: int, environment: Mapping[str, str]) -> None:
        self.job, self.home, self.version = job, home, "1"
        self.address, self.log = f"127.0.0.1:{port}", home / "log"
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted, self._over, self._lock = False, threading.Event(), threading.Lock()
        threading.Thread(target=self._keep, daemon=True, name=f"service manager of {home.name}").start()

    @property
    def name(self) -> str:
        return self.home.name

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self, version: str) -> None:
        """Start the service with that version of the code."""
        with self._lock:
            self.version, self._wanted = version, True
            self._begin()

    def lose(self) -> None:
        """All processes of the host are gone at once: workers die with their supervisor."""
        with self._lock:
            self._wanted = False
            assert self._process is not None
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """As ``systemctl stop``: SIGTERM, and it drains."""
        with self._lock:
            self._wanted, process = False, self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, self.said[-6000:]

    def close(self) -> None:
        self._over.set()
        with self._lock:
            self._wanted = False
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "kafka_eos", "run", str(self.job.app), "--standby", "--http", self.address]
        environment = {**self.job.environ(), **self._environment, "TEST_VERSION": self.version}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, cwd=self.home, stdout=log, stderr=log)

    def _keep(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            with self._lock:
                if self._wanted and self._process is not None and self._process.poll() not in (None, 0):
                    self._begin()

    def environ(self) -> dict[str, str]:
        """For commands that are given on this host."""
        return {**os.environ, **self.job.environ(), **self._environment, "TEST_VERSION": self.version}
