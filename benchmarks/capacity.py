"""What a job takes: ``python -m benchmarks.capacity``. Memory, open files and disk, by size of state and workers.

A running sum over so many keys is brought up to date and then fed at a constant rate; after a while its processes are
looked at, through /proc, and its directories. Each row is one job on a broker of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kafka import BrokerClient
from benchmarks.recovery import INPUT, OUTPUT, Job, everything, new_records, until
from benchmarks.run import own_broker


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory in MB, of the largest worker; disk in MB; ``written`` are bytes an epoch of history and ledger."""

    keys: int
    workers: int
    supervisor: float
    worker: float
    worker_peak: float
    supervisor_files: int
    worker_files: int
    checkpoint: float
    stored: float
    local: float
    written: float


COLUMNS = (
    "keys", "workers", "supervisor MB", "worker MB", "worker peak MB", "supervisor files", "worker files",
    "checkpoint MB", "checkpoint_dir MB", "state_dir MB", "history and ledger bytes per epoch",
)  # fmt: skip


def taken(keys: int, workers: int, rate: int, seconds: float) -> Taken:
    """Of a job that works for so many ``seconds`` at ``rate`` records a second."""
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, own_broker(Path(home)) as broker:
        cluster = BrokerClient(broker.bootstrap)
        for topic in (INPUT, OUTPUT):
            cluster.create(topic)
        cluster.load(INPUT, everything(keys))
        local = Path(home) / "state"
        job = Job(broker.bootstrap, Path(home), KAFKA_EOS_PARALLELISM=str(workers), KAFKA_EOS_STATE_DIR=str(local))
        try:
            until(lambda: cluster.visible(OUTPUT) >= keys)
            with new_records(broker.bootstrap, rate, keys):
                time.sleep(seconds / 2)
                before = _diary(Path(home))
                time.sleep(seconds / 2)
                return _look(job, Path(home), local, keys, workers, before)
        finally:
            job.stop()


def _look(job: Job, home: Path, local: Path, keys: int, workers: int, before: tuple[int, int]) -> Taken:
    pids = [int(pid) for pid in job.events("running")[-1]["workers"]]
    size, epochs = (after - earlier for after, earlier in zip(_diary(home), before, strict=True))
    return Taken(
        keys, workers, _memory(job.pid, "VmRSS"), max(_memory(pid, "VmRSS") for pid in pids),
        max(_memory(pid, "VmHWM") for pid in pids), _files(job.pid), max(map(_files, pids)),
        job.events("decided")[-1]["state_bytes"] / 1e6, _disk(home / "bench"), _disk(local),
        size / max(1, epochs),
    )  # fmt: skip


def _memory(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1e3


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _disk(directory: Path) -> float:
    """Blocks of every file once, as ``du`` counts them."""
    found = {(stat.st_dev, stat.st_ino): stat.st_blocks for path in directory.rglob("*") if (stat := path.lstat())}
    return sum(found.values()) * 512 / 1e6


def _diary(home: Path) -> tuple[int, int]:
    """Bytes of history and ledger, and epochs in the latter."""
    files = [home / "bench" / name for name in ("history.jsonl", "ledger.jsonl")]
    return sum(file.stat().st_size for file in files), files[1].read_bytes().count(b"\n")


def table(found: Sequence[Taken]) -> str:
    """Markdown."""
    rows = []
    for each in found:
        values = [getattr(each, name) for name in Taken.__slots__]
        rows.append(f"| {' | '.join(f'{v:,}' if isinstance(v, int) else f'{v:,.1f}' for v in values)} |")
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--rate", type=int, default=2000, help="records a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="at that rate (default: %(default)s)")
    options = parser.parse_args(arguments)
    found = []
    for keys, workers in ((10_000, 1), (10_000, 2), (1_000_000, 1), (1_000_000, 2)):
        found.append(taken(keys, workers, options.rate, options.seconds))
        print(f"{keys} keys, {workers} workers: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
