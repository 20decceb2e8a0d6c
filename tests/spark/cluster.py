"""A standalone Spark cluster on this machine: a master and workers as processes of their own, on loopback only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests import spark_java
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Cluster:
    """The address of a master, and the daemon of each machine, whose executors work in ``work-<number>``."""

    address: str
    directory: Path
    machines: list[subprocess.Popen[bytes]]

    def decommission(self) -> None:
        """Announce that a machine with a worker of a job will be shut down."""
        used = [
            machine
            for number, machine in enumerate(self.machines)
            if any(b"worker_main" in (process / "cmdline").read_bytes() for process in self.processes(number))
        ]
        used[0].send_signal(signal.SIGPWR)

    def processes(self, number: int) -> Iterator[Path]:
        """The executors of a machine and all that they have started, as directories of /proc."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").resolve().is_relative_to(self.directory / f"work-{number}"):
                    yield process


@contextmanager
def cluster(directory: Path, workers: int, cores: int = 1) -> Iterator[Cluster]:
    """A master with so many machines of so many cores each. All are gone afterwards."""
    directory.mkdir()
    port = _free_port()
    address = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        started.append(_start(directory, "master", master))
        _wait_for(directory / "master.log", "I have been elected leader", 1)
        for number in range(workers):
            worker = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores),
                      "--memory", "1g", "--work-dir", str(directory / f"work-{number}"), address]  # fmt: skip
            started.append(_start(directory, f"worker-{number}", worker))
        _wait_for(directory / "master.log", "Registering worker", workers)
        yield Cluster(address, directory, started[1:])
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(PATIENCE)


def environment(cores: int = 2) -> dict[str, str]:
    """For drivers, which get so many cores, and for the cluster itself."""
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Both executors take part from the first task on; and as on two machines, neither reads the other's disk.
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.cores.max={cores} --conf spark.scheduler.minRegisteredResourcesRatio=1.0 "
        "--conf spark.scheduler.maxRegisteredResourcesWaitingTime=120s "
        "--conf spark.shuffle.readHostLocalDisk=false --conf spark.decommission.enabled=true pyspark-shell",
        "SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true",
        "JAVA_TOOL_OPTIONS": spark_java.of_any(),
    }


def _start(directory: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    runner = Path(pyspark.__file__).parent / "bin" / "spark-class"
    what = [str(runner), f"org.apache.spark.deploy.{command[0]}", *command[1:]]
    # spark-class replaces itself by the JVM, so the process is the daemon.
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(what, env=environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _wait_for(log: Path, text: str, times: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while log.read_text(errors="replace").count(text) < times:
        assert time.monotonic() < deadline, f"no {text!r} in {log}:\n{log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
