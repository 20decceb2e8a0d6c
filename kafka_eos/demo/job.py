"""The job under fault: the real command in a process of its own, started, watched and signalled.

Rule: the supervisor is signalled through its Popen object only; the worker only after it was seen to be the
supervisor's child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kafka_eos.demo.home import Home, parent_of
from kafka_eos.devbroker import leash

APP = Path(__file__).with_name("orders.py")
CHECKPOINT_INTERVAL = "500ms"


class Job:
    """One job of one demo; it may live several times. At most one process at a time."""

    def __init__(self, home: Home, bootstrap: str) -> None:
        self._home, self._bootstrap = home, bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, failpoints: str = "", *options: str) -> None:
        """Start the supervisor. It dies with this process; its output goes to the job's log."""
        run = [sys.executable, "-m", "kafka_eos", "run", str(APP), "--bootstrap-servers", self._bootstrap]
        run += ["--checkpoint-dir", str(self._home.checkpoints), "--checkpoint-interval", CHECKPOINT_INTERVAL]
        command = [sys.executable, "-ISs", str(leash.__file__), str(os.getpid()), *run, *options]
        with self._home.job_log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for the demo, which then ends its job.
            self._process = subprocess.Popen(
                command,
                env=self._environment(failpoints),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._home.remember(self._process.pid)

    def _environment(self, failpoints: str) -> dict[str, str]:
        return {
            **os.environ,
            "KAFKA_EOS_FAILPOINTS": failpoints,
            "KAFKA_EOS_FAILPOINT_LOG": str(self._home.fired),
            "KAFKA_EOS_RESTART_BACKOFF_INITIAL": "0.2",
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def fired(self) -> list[str]:
        """Failpoints that acted so far, in order."""
        lines = self._home.fired.read_text().splitlines() if self._home.fired.exists() else []
        return [line.split()[0] for line in lines]

    def kill_worker(self, pid: int) -> bool:
        """SIGKILL the worker ``pid``. False, and nothing done, if it is no child of the supervisor (any more)."""
        if self.code is not None or parent_of(pid) != self.pid:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def terminate(self) -> None:
        """Ask it to drain."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """SIGKILL it if it still runs. The workers go with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        log = self._home.job_log
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
