"""The one broker, the one PostgreSQL and the one schema registry that all processes of a test run share.

    <temporary directory>/kafka-eos-tests-<user>/<run>/
        run.lock     locked by the process that leads the run as long as it lives
        start.lock   held by the worker that starts the broker
        kafka/       the broker, or a cluster
        postgres     leads to the directory of the PostgreSQL
        registry/    the schema registry

Rule: the leader stops all when the run ends. A leader that was killed could not: the next run finds the
directory with its lock free, stops what runs there and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Self

from kafka_eos.devtools.broker import Broker
from tests.cluster.brokers import Brokers
from tests.postgres_server import remove_shared
from tests.registry_server import RegistryServer

_KEEPS = {"log.retention.ms": "-1"}
"""Tests write records with timestamps of long ago, and read them. A broker deletes old ones 30 seconds after its start
for the first time, whatever ``log.retention.check.interval.ms`` says.
"""


class SharedBroker:
    """A place in the file system where a run's broker is, or will be once someone needs it."""

    def __init__(self, directory: Path, lock: IO[str] | None) -> None:
        self.directory, self._lock = directory, lock

    @classmethod
    def led(cls) -> Self:
        """For the process that leads the run: a new place. Clears up after runs whose leader is dead."""
        home = Path(tempfile.gettempdir()) / f"kafka-eos-tests-{os.getuid()}"
        home.mkdir(mode=0o700, exist_ok=True)
        with (home / "lock").open("w") as everyone:
            fcntl.flock(everyone, fcntl.LOCK_EX)
            for left in home.glob("run-*"):
                _remove_if_abandoned(left)
            directory = Path(tempfile.mkdtemp(prefix="run-", dir=home))
            lock = (directory / "run.lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(directory, lock)

    @classmethod
    def joined(cls, directory: Path) -> Self:
        """For a worker of the run."""
        return cls(directory, None)

    def bootstrap(self, brokers: int = 1, release: str = "") -> str:
        """``host:port`` of the broker, or of each of several; the first one who asks starts them."""
        home = self.directory / "kafka"
        with (self.directory / "start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            started: Broker | Brokers
            if brokers == 1:
                started = Broker(home, daemon=True, release=release, overrides=_KEEPS)
            else:
                started = Brokers(home, brokers, daemon=True, release=release)
            if not started.running:
                started.start()
            return started.bootstrap

    def close(self) -> None:
        """The leader's end: stops the broker, removes everything. A worker's end: nothing."""
        if self._lock is not None:
            _remove(self.directory)
            self._lock.close()


def _remove_if_abandoned(directory: Path) -> None:
    with (directory / "run.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # its run goes on
        _remove(directory)


def _remove(directory: Path) -> None:
    remove_shared(directory)
    RegistryServer(directory / "registry").kill()
    home = directory / "kafka"
    for each in (home, *home.glob("broker-*")):
        Broker(each).kill()
    shutil.rmtree(directory)
