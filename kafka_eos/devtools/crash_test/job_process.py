"""The job under fault: the real command in a process of its own, started, watched and signalled.

Rule: the process that leads the job is signalled through its Popen object only; another one only after it was seen
to be the child of a process of this test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kafka_eos._util import parent_death
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.crash_test.directory import CrashTestDirectory, parent_of
from kafka_eos.devtools.crash_test.faults import Victim
from kafka_eos.devtools.crash_test.job_history import HistoryFollower
from kafka_eos.devtools.crash_test.spark_cluster import SparkCluster
from kafka_eos.runtime import call_counts
from kafka_eos.storage import object_names as paths


class JobProcess(ABC):
    """The job under test, run as a process; at most one leader at a time."""

    LEADER: Victim

    def __init__(self, home: CrashTestDirectory, app: AppRef, bootstrap: str, interval: str) -> None:
        self._home, self._app = home, app
        self._bootstrap, self._interval = bootstrap, interval
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, parallelism: int, failpoints: str = "", *options: str) -> None:
        """Start the job. It dies with this process; its output goes to the job's log."""
        run = [sys.executable, "-m", "kafka_eos", "run", str(self._app), "--bootstrap-servers", self._bootstrap]
        run += ["--checkpoint-dir", str(self._home.checkpoints), "--checkpoint-interval", self._interval]
        run += ["--parallelism", str(parallelism), *self._options(), *options]
        armed = {
            "KAFKA_EOS_FAILPOINTS": failpoints,
            "KAFKA_EOS_FAILPOINT_LOG": str(self._home.fired),
            call_counts.VARIABLE: str(self._home.calls),
            "KAFKA_EOS_RESTART_BACKOFF_INITIAL": "0.2",
            "KAFKA_EOS_RESTART_BACKOFF_RESET": "0",  # it kills faster than production does
        }
        with self._home.job_log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for the demo, which then ends its job.
            self._process = subprocess.Popen(
                parent_death.build_command(run),
                env={**os.environ, **armed, **self._environment(armed)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._home.remember(self._process.pid)

    def _options(self) -> list[str]:
        return []

    def _environment(self, armed: Mapping[str, str]) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def _members(self) -> dict[str, int]:
        """Return the running processes besides the leader, by name."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def fired(self) -> list[int]:
        """Return the ids of the processes on which failpoints have acted, in order."""
        lines = self._home.fired.read_text().splitlines() if self._home.fired.exists() else []
        return [int(line.rpartition("pid=")[2]) for line in lines]

    def processes(self) -> dict[str, int]:
        """Return the running processes of the job, by name."""
        leader = {self.LEADER.value: self.pid} if self._process is not None and self.code is None else {}
        return {**leader, **self._members()}

    def kill(self, name: str) -> bool:
        """Kill a process (SIGKILL). Return False if it does not run."""
        pid = self.processes().get(name)
        if pid is None:
            return False
        if pid == self.pid:
            self._signal(signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
        return True

    def terminate(self) -> None:
        """Ask it to drain."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill the leader (SIGKILL) if it still runs. The other processes end with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        log = self._home.job_log
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class EmbeddedJob(JobProcess):
    """A supervisor, and workers that are its children."""

    LEADER = Victim.SUPERVISOR

    def __init__(
        self, home: CrashTestDirectory, app: AppRef, bootstrap: str, interval: str, diary: HistoryFollower
    ) -> None:
        super().__init__(home, app, bootstrap, interval)
        self._diary = diary

    def freeze(self) -> FrozenJob:
        """Freeze all processes (SIGSTOP) and give up the job's lock, as if they were on another machine."""
        assert self._process is not None
        self._signal(signal.SIGSTOP)
        workers = list(self._members().values())
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        self._diary.directory.joinpath(paths.LOCK).unlink()
        frozen, self._process = FrozenJob(self._process, workers), None
        return frozen

    def _members(self) -> dict[str, int]:
        workers = {f"worker {number}": pid for number, pid in enumerate(self._diary.workers)}
        return {name: pid for name, pid in workers.items() if self._process and parent_of(pid) == self.pid}


@dataclass(frozen=True, slots=True)
class FrozenJob:
    """A job whose processes are all frozen: a zombie as soon as another one has taken its place."""

    leader: subprocess.Popen[bytes]
    workers: list[int]

    def resume(self, seconds: float) -> int | None:
        """Resume all processes and wait for the end of the leader. Return its exit code; None if it continues."""
        for pid in self.workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.leader.send_signal(signal.SIGCONT)
        try:
            return self.leader.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill the leader, and with it its workers."""
        self.leader.kill()
        self.leader.wait()


class SparkJob(JobProcess):
    """A driver, and executors that a cluster runs for it, with workers in their tasks."""

    LEADER = Victim.DRIVER

    def __init__(
        self,
        home: CrashTestDirectory,
        app: AppRef,
        bootstrap: str,
        interval: str,
        diary: HistoryFollower,
        cluster: SparkCluster,
    ) -> None:
        super().__init__(home, app, bootstrap, interval)
        self._diary, self._cluster = diary, cluster

    def _options(self) -> list[str]:
        return ["--engine", "spark", "--master", self._cluster.address]

    def _environment(self, armed: Mapping[str, str]) -> Mapping[str, str]:
        return self._cluster.environment(armed)

    def _members(self) -> dict[str, int]:
        executors = {f"executor {number}": pid for number, pid in self._cluster.executors().items()}
        workers = {f"worker {number}": pid for number, pid in enumerate(self._diary.workers) if parent_of(pid)}
        return {**executors, **workers}
