"""What an epoch costs as workers are added: ``python -m benchmarks.scaling``. Counts, and the time of a recovery.

One job with a thousand partitions, two operators whose state changes in every epoch and one whose state rests, at 2, 8,
32 and 128 workers, which are light processes of this machine and connected by TCP as on a cluster. Counted are control
messages, frames between workers, and requests to the checkpoint store, which do not depend on the machine. Then one
worker is killed; the time until an epoch of the next term is committed does depend on it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import Benchmark, attempts, shown, table, tell
from benchmarks.jobs import APPS
from benchmarks.light_workers import read_counts, start_fork_server, use_light_workers
from benchmarks.plots import Row
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.supervisor import Supervisor
from kafka_eos.embedded.tcp_process_pool import TcpProcessPool
from kafka_eos.runtime.program import load_program

WORKERS = (2, 8, 32, 128)
_WARM_UP = 2
"""Epochs before the first that is counted."""
_TIMED = ("control.WorkerHeartbeat", "control.WorkerProgress", "control.LocalSlowest")
"""Messages that a worker sends now and then, however many epochs there are."""


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    start_fork_server()
    return attempts([partial(_point, options, home, workers) for workers in WORKERS if workers <= options.most])


def _point(options: argparse.Namespace, home: Path, workers: int) -> Row:
    directory = home / f"workers-{workers}"
    counts, store = directory / "counts", directory / "store"
    counts.mkdir(parents=True)
    os.environ |= {
        "BENCH_DIRECTORY": str(directory),
        "BENCH_PARTITIONS": str(int(options.partitions)),
        "BENCH_RATE": str(options.partitions / options.interval),  # each partition has a row in each epoch
    }
    os.chdir(directory)  # where a job with remote checkpoints keeps its own files
    use_light_workers(counts, store)
    app = AppRef(APPS / "scaled.py")
    settings = Settings.resolve(
        code={
            "parallelism": workers,
            "checkpoint_dir": "s3://bench/checkpoints",
            "checkpoint_interval": options.interval,
            "checkpoint_timeout": 600.0,
            "worker_timeout": 600.0,
            "restart_backoff_initial": 0.0,
            "log_level": "warning",
        }
    )
    plan = load_program(app).plan()
    pool = TcpProcessPool(plan, app, settings, "127.0.0.1")
    watch = Watch(pool, counts, int(options.epochs))
    Supervisor(plan, app, settings, pool, (watch,), False).run()
    tell(f"{workers} workers: a recovery took {watch.recovery:.1f} s")
    return {"workers": workers, "load": os.getloadavg()[0], "recovery_s": watch.recovery, **watch.costs()}


class Watch:
    """An observer that counts some epochs, kills a worker, and stops the job when it has recovered."""

    def __init__(self, pool: TcpProcessPool, counts: Path, epochs: int) -> None:
        self._pool, self._counts, self._epochs = pool, counts, epochs
        self._committed = 0
        self._before: Mapping[str, int] = {}
        self._after: Mapping[str, int] = {}
        self._killed = self.recovery = 0.0

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event != "committed" or self.recovery:
            return
        self._committed += 1
        if self._committed == _WARM_UP:
            self._before = read_counts(self._counts)
        if self._committed == _WARM_UP + self._epochs:
            self._after = read_counts(self._counts)
            self._killed = time.monotonic()
            os.kill(self._pool.workers[0].pid, signal.SIGKILL)
        elif self._killed:
            self.recovery = time.monotonic() - self._killed
            signal.raise_signal(signal.SIGTERM)

    def costs(self) -> Row:
        """Return the counts of one epoch, by kind, without what depends on time alone."""
        found = {kind: (count - self._before.get(kind, 0)) / self._epochs for kind, count in self._after.items()}
        return {kind: count for kind, count in found.items() if kind not in _TIMED and count}


def total(row: Row, prefix: str) -> float:
    return sum(count for kind, count in row.items() if kind.startswith(prefix) and not kind.endswith(".bytes"))


def tables(rows: Sequence[Row]) -> str:
    methods = ("HEAD", "PUT", "GET", "LIST", "DELETE")
    headings = (
        "workers",
        "control messages",
        "control kB",
        "barriers",
        *(f"{method} of state" for method in methods[:2]),
        *(f"{method} of the supervisor" for method in methods[1:]),
        "kB to the store",
        "recovery, s",
    )
    return table(headings, map(_line, rows))


def _line(row: Row) -> list[str]:
    state = [row.get(f"store.{method}.shared", 0) for method in ("HEAD", "PUT")]
    others = [
        total(row, f"store.{method}.") - (row.get("store.PUT.shared", 0) if method == "PUT" else 0)
        for method in ("PUT", "GET", "LIST", "DELETE")
    ]
    return [
        str(row["workers"]),
        shown(total(row, "control.")),
        shown(row["control.bytes"], 0, 1e-3),
        shown(row.get("frame.barrier")),
        *(shown(count) for count in state),
        *(shown(count, 1) for count in others),
        shown(row["store.bytes"], 0, 1e-3),
        shown(row["recovery_s"], 1),
    ]


BENCHMARK = Benchmark(
    "scaling",
    "Messages, frames and requests of an epoch, by the number of workers",
    measure_all,
    tables,
    (("most", 128, 8), ("partitions", 1000, 100), ("epochs", 5, 2), ("interval", 4.0, 0.5)),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
