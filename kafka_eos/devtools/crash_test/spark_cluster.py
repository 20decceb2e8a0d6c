"""A standalone Spark cluster on this machine: a master and workers as processes of their own, on loopback only.

Rule: its processes die with the test (``devtools.broker.parent_death``), and executors, which are children of the
workers, with those. An executor is known by its parent and its main class.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from kafka_eos._util import parent_death
from kafka_eos._util.jvm.java import find_java
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.crash_test.directory import children_of
from kafka_eos.devtools.postgres import free_port

WORKERS, CORES = 2, 2
"""Two cores for each executor: a worker whose executor was killed has a core before another executor has started."""
_PATIENCE = 120.0
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class SparkCluster:
    """One cluster; ``address`` is its master's.

    ``workers``: the daemon of each machine, whose executors work in ``worker-<number>``. ``environment``: variables of
    the daemons beside those of every process.
    """

    def __init__(
        self, directory: Path, workers: int = WORKERS, cores: int = CORES, environment: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._port = free_port()
        self._wanted = workers
        self._cores = cores
        self._environment = environment or {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Return when all workers are registered. Raises ConfigError with the log's end if they do not come up."""
        self.directory.mkdir()
        self._spawn("master", "master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        self._await("I have been elected leader", 1)
        for _ in range(self._wanted):
            self.add_worker()
        self._await("Registering worker", self._wanted)

    def add_worker(self) -> None:
        """Start one more machine."""
        number = len(self.workers)
        home = ["--work-dir", str(self.directory / f"worker-{number}"), "--webui-port", "0"]
        size = ["--cores", str(self._cores), "--memory", "1g"]
        # All of 127.0.0.0/8 is this machine, but only on Linux.
        host = f"127.0.0.{number + 2}" if sys.platform == "linux" else "127.0.0.1"
        self.workers.append(
            self._spawn(f"worker-{number}", "worker.Worker", "--host", host, *home, *size, self.address)
        )

    def processes(self, number: int) -> list[int]:
        """Process ids of a machine's executors and of all that they have started."""
        found, home = [], self.directory / f"worker-{number}"
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").resolve().is_relative_to(home):
                    found.append(int(process.name))
        return found

    def executors(self) -> dict[int, int]:
        """Process ids of the executors that live, by the number of their worker."""
        found = {}
        for number, worker in enumerate(self.workers):
            running = [pid for pid in children_of(worker.pid) if _EXECUTOR in _command_of(pid)]
            if running:
                found[number] = running[-1]  # the others are of a driver that is gone
        return found

    def environment(self, armed: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a driver, with the variables ``armed`` for executors."""
        settings = {
            # Both executors take part from the first task on.
            "spark.cores.max": str(self._wanted * self._cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            **{f"spark.executorEnv.{name}": value for name, value in armed.items() if value},
        }
        options = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
        return {**_environment(), "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"}

    def end(self) -> None:
        """Stop everything; returns when it is gone. Workers end their executors."""
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait(_PATIENCE)

    def _spawn(self, name: str, daemon: str, *options: str) -> subprocess.Popen[bytes]:
        # spark-class replaces itself by the JVM, so the process is the daemon.
        command = [str(_spark() / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}", *options]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                parent_death.build_command(command),
                env={**os.environ, **_environment(), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _await(self, text: str, times: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        log = self.directory / "master.log"
        while log.read_text(errors="replace").count(text) < times:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._started):
                log_tail = "\n".join(file.read_text(errors="replace")[-1500:] for file in self.directory.glob("*.log"))
                raise ConfigError(f"a Spark cluster did not start on this machine:\n{log_tail}")
            time.sleep(0.1)


def _environment() -> dict[str, str]:
    """Return the environment of drivers and cluster: small JVMs that start fast, and this Python everywhere."""
    return {
        "JAVA_HOME": str(Path(find_java()).resolve().parents[1]),
        "SPARK_HOME": str(_spark()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def _spark() -> Path:
    """Return the directory of pyspark's Spark."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None  # checked before anything starts
    return Path(spec.origin).parent


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
