"""Recovery on a Spark cluster: ``python -m benchmarks.spark_recovery``. From each fault to new output.

A standalone cluster of three machines, which share no directory but that of the checkpoints, runs a running sum over
many keys with four workers. Each machine has two cores, so two are spare. One fault follows the other, while new
records keep coming. The clock stops when an epoch of a later term with output is committed. Then the state files are
counted that were not on the disk of their worker's machine, so that they had to be fetched.

A machine is lost with all of its processes. One is frozen for longer than ``worker_timeout`` and goes on when it was
replaced; then it is watched until no transaction of an older term is open. At the end the output is compared with the
input.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks.command import Benchmark, middle, shown, table, tell, where
from benchmarks.contenders import environment_of
from benchmarks.kafka import BrokerClient
from benchmarks.plots import Row
from benchmarks.recovery import INPUT, OUTPUT, Job, everything, new_records, until
from benchmarks.run import own_broker
from benchmarks.trial import WrongOutput
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.core.ids import Term
from kafka_eos.devtools.crash_test.spark_cluster import SparkCluster
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import newest_committed

MACHINES, CORES, WORKERS = 3, 2, 4
_TIMEOUT = 10
"""Seconds without a sign of life after which a worker is given up."""
_JOB = "bench"


class FaultyCluster:
    """The job on its cluster, and the faults."""

    def __init__(self, cluster: SparkCluster, job: Job, bootstrap: str, checkpoints: Path) -> None:
        self._cluster, self._job = cluster, job
        self._storage = LocalStorage(checkpoints / _JOB)
        context = JobContext(_JOB, Term(1), {"bootstrap_servers": bootstrap})
        self._list_open = lambda: KafkaSink(OUTPUT, value=bytes).committer(context).list_staged(context)

    def settle(self, workers: int) -> None:
        """Wait until so many workers run, and two epochs with output were committed since."""
        until(lambda: len(self._running["workers"]) == workers)
        epochs = len(self._job.events("committed"))
        until(lambda: len(self._job.events("committed")) > epochs + 1)

    def machines(self) -> list[int]:
        """Return the machines that have workers of the job."""
        pids = {*self._running["workers"]}
        return [n for n in range(len(self._cluster.workers)) if pids & {*self._cluster.processes(n)}]

    def python_worker(self) -> int:
        """Return the Python worker of Spark in which a worker runs."""
        stat = Path(f"/proc/{self._running['workers'][0]}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def executor(self) -> int:
        return self._cluster.executors()[self.machines()[0]]

    def lose(self, machine: int) -> None:
        self._signal(self._cluster.processes(machine), signal.SIGKILL)
        self._cluster.workers[machine].kill()

    def join(self) -> None:
        """Add a machine to the cluster."""
        self._cluster.add_worker()

    def measure(self, what: str, strike: Callable[[], object]) -> Row:
        """Return the seconds from a fault to output of a later term, and the share of the state that was fetched."""
        before, runs, term = self._tables(), len(self._job.events("running")), self._running["term"]
        began = time.time()
        strike()
        until(lambda: len(self._job.events("running")) > runs)
        fetched, size = self._fetched(before)
        committed = self._first_output(term)
        row = {"what": what, "seconds": committed / 1000 - began, "fetched": fetched, "state": size,
               "workers": len(self._running["workers"]), "load": os.getloadavg()[0]}  # fmt: skip
        tell(f"{what}: {row['seconds']:.1f} s, {fetched:,} of {size:,} bytes fetched")
        return row

    def grow(self, what: str, workers: int, strike: Callable[[], object]) -> Row:
        """Return the seconds from a change to a session with so many workers."""
        began = time.time()
        strike()
        until(lambda: len(self._running["workers"]) == workers)
        row = {"what": what, "seconds": time.time() - began, "workers": workers, "load": os.getloadavg()[0]}
        tell(f"{what}: {row['seconds']:.1f} s")
        return row

    def freeze(self) -> list[Row]:
        """Freeze a machine until it was replaced, and wait for the end of all transactions of older terms."""
        frozen = self._cluster.processes(self.machines()[0])
        try:
            row = self.measure(
                f"machine frozen, worker_timeout {_TIMEOUT} s", lambda: self._signal(frozen, signal.SIGSTOP)
            )
        finally:
            self._signal(frozen, signal.SIGCONT)
        began, last = time.time(), 0.0
        while time.time() - began < 30:
            if any(each.term.n < self._running["term"] for each in self._list_open()):
                last = time.time() - began
            time.sleep(0.5)
        what = "thawed: the last transaction of an older term is closed"
        tell(f"{what}: {last:.1f} s")
        return [row, {"what": what, "seconds": last, "load": os.getloadavg()[0]}]

    @property
    def _running(self) -> Row:
        return self._job.events("running")[-1]

    def _first_output(self, term: int) -> float:
        def later() -> list[Row]:
            found = self._job.events("committed")
            return [each for each in found if each["term"] > term and any(each["records"].values())]

        until(lambda: bool(later()))
        return float(later()[0]["at"])

    def _tables(self) -> set[tuple[Path, int]]:
        """Return the inodes of all tables on the disks of the machines, each with its machine."""
        return {(self._machine(path), path.stat().st_ino) for path in self._all_tables()}

    def _machine(self, path: Path) -> Path:
        return self._cluster.directory / path.relative_to(self._cluster.directory).parts[0]

    def _all_tables(self) -> Iterable[Path]:
        for path in self._cluster.directory.glob("worker-*/**/*.sst"):
            with suppress(FileNotFoundError):
                path.stat()
                yield path

    def _fetched(self, before: set[tuple[Path, int]]) -> tuple[int, int]:
        """Return the bytes of the newest epoch's tables that their machine did not have, and of all files."""
        tables = [file for state in newest_committed(self._storage, _JOB).states for file in state.files]
        known = {(file.name, file.size) for file in tables if file.name.endswith(".sst")}
        term = str(self._running["term"])
        found = {path: path.stat() for path in self._all_tables() if f"/{term}/" in str(path)}
        new = {path: stat.st_size for path, stat in found.items() if (self._machine(path), stat.st_ino) not in before}
        fetched = sum(size for path, size in new.items() if (path.name, size) in known)
        return fetched, sum(file.size for file in tables)

    @staticmethod
    def _signal(processes: Iterable[int], number: signal.Signals) -> None:
        for process in processes:
            with suppress(OSError):
                os.kill(process, number)


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    checkpoints = home / "shared"
    checkpoints.mkdir()
    with own_broker(home) as broker:
        client = BrokerClient(broker.bootstrap)
        for topic in (INPUT, OUTPUT):
            client.create(topic)
        client.load(INPUT, everything(int(options.keys)))
        environment = environment_of(
            broker.bootstrap, INPUT, OUTPUT, checkpoints, "W2", {"BENCH_INTERVAL": str(options.interval)}
        )
        cluster = SparkCluster(home / "cluster", MACHINES, CORES, environment)
        cluster.start()
        try:
            settings = {
                **cluster.environment({}),
                "BENCH_INTERVAL": str(options.interval),
                "KAFKA_EOS_PARALLELISM": str(WORKERS),
                "KAFKA_EOS_STATE_DIR": "../../state",  # executors work two directories below their machine's
                "KAFKA_EOS_WORKER_TIMEOUT": str(_TIMEOUT),
            }
            job = Job(broker.bootstrap, checkpoints, home / "log", "--engine", "spark", "--master", cluster.address,
                      **settings)  # fmt: skip
            try:
                until(lambda: client.visible(OUTPUT) >= options.keys)
                with new_records(broker.bootstrap, int(options.rate), int(options.keys)):
                    rows = _strike_all(FaultyCluster(cluster, job, broker.bootstrap, checkpoints), int(options.turns))
                until(lambda: _count(client, OUTPUT) == _count(client, INPUT))
            finally:
                job.stop()
        finally:
            cluster.end()
        _check(client)
    return rows


def _strike_all(on: FaultyCluster, turns: int) -> list[Row]:
    rows = []
    on.settle(WORKERS)
    for _ in range(turns):
        rows.append(on.measure("Python worker killed", lambda: os.kill(on.python_worker(), signal.SIGKILL)))
        on.settle(WORKERS)
    for _ in range(turns):
        rows.append(on.measure("executor killed", lambda: os.kill(on.executor(), signal.SIGKILL)))
        on.settle(WORKERS)
    rows += on.freeze()
    on.settle(WORKERS)
    rows.append(on.measure("machine lost, its workers find other cores", lambda: on.lose(on.machines()[0])))
    on.settle(WORKERS)
    rows.append(on.measure("machine lost, no core is left for its workers", lambda: on.lose(on.machines()[0])))
    rows.append(on.grow("a machine joins: all workers run again", WORKERS, on.join))
    return rows


def _count(client: BrokerClient, topic: str) -> int:
    return sum(1 for _ in client.committed(topic))


def _check(client: BrokerClient) -> None:
    """Raise WrongOutput unless each account has an output for each payment, and their sum as its highest total."""
    wanted: dict[str, tuple[int, int]] = {}
    for payment in map(json.loads, client.committed(INPUT)):
        count, total = wanted.get(payment["account"], (0, 0))
        wanted[payment["account"]] = count + 1, total + payment["amount"]
    found: dict[str, tuple[int, int]] = {}
    for each in map(json.loads, client.committed(OUTPUT)):
        count, total = found.get(each["account"], (0, 0))
        found[each["account"]] = count + 1, max(total, each["total"])
    if wrong := [account for account in wanted if wanted[account] != found.get(account)]:
        raise WrongOutput(f"the totals of {len(wrong)} accounts are wrong, such as {wrong[:3]}")


def tables(rows: list[Row]) -> str:
    lines = []
    for what in dict.fromkeys(row["what"] for row in rows):
        found = where(rows, what=what)
        shares = [100 * row["fetched"] / row["state"] for row in found if row.get("state")]
        lines.append([
            what,
            str(len(found)),
            shown(middle(found, "seconds"), 1),
            shown(max(row["seconds"] for row in found), 1),
            shown(max(shares, default=None), 1),
            shown(middle(found, "load"), 1),
        ])  # fmt: skip
    return table(("fault", "times", "s, median", "s, worst", "% of the state fetched, worst", "load after"), lines)


BENCHMARK = Benchmark(
    "spark_recovery",
    "From a fault on a Spark cluster to new output",
    measure_all,
    tables,
    (("keys", 300_000, 20_000), ("rate", 2000, 500), ("turns", 5, 1), ("interval", 0.5, 0.5)),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
