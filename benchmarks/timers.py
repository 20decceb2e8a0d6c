"""What very many pending timers take, and how fast they fire: ``python -m benchmarks.timers``.

The timers of one operator with state in RocksDB, no broker. Each key sets one, a checkpoint's flush comes after each
hundred thousand. Then event time passes all of them, with a flush at the same pace. What is measured is the memory of
the process, before the first timer and when all are pending, and the timers that fire in a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell
from benchmarks.plots import Row
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.timers import create_timer_descriptor
from kafka_eos.storage.job_storage import MemoryStorage

_FLUSHED_AFTER = 100_000
_EARLIEST = 1_000_000


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    return attempts(partial(_point, int(options.timers), home / f"{turn}", turn) for turn in range(options.turns))


def _point(count: int, home: Path, turn: int) -> Row:
    backend = open_backend("rocksdb", "op", home, range(128), (), MemoryStorage())
    try:
        pending = backend.timers(create_timer_descriptor("event-timers", KeyCodec()))
        before = _resident()
        for n in range(count):
            # Neighbours in time are keys of all groups, and not in the order in which they were set.
            pending.add(f"account-{n}", _EARLIEST + n * 7919 % count)
            if n % _FLUSHED_AFTER == _FLUSHED_AFTER - 1:
                backend.snapshot(Epoch(1 + n // _FLUSHED_AFTER))
        backend.snapshot(Epoch(1_000))
        taken = _resident() - before
        began, fired, last = time.perf_counter(), 0, 0
        for at, _, _ in pending.pop_due(_EARLIEST + count):
            if at < last:
                raise RuntimeError(f"the timer of {at} came after that of {last}")
            fired, last = fired + 1, at
            if fired % _FLUSHED_AFTER == 0:
                backend.snapshot(Epoch(2_000 + fired // _FLUSHED_AFTER))
        seconds = time.perf_counter() - began
    finally:
        backend.close()
    if fired != count:
        raise RuntimeError(f"{fired} of {count} timers fired")
    tell(f"turn {turn + 1}: {count:,} timers take {taken / 1e6:.0f} MB; {fired / seconds:,.0f} fire in a second")
    return {"timers": count, "memory": taken, "rate": fired / seconds}


def _resident() -> int:
    """Bytes of this process that are in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell what a process takes: /proc/self/status has no VmRSS")


def tables(rows: Sequence[Row]) -> str:
    line = [f"{rows[0]['timers']:,}", shown(middle(rows, "memory"), 0, 1e-6), shown(middle(rows, "rate"), 0, 1e-3)]
    return table(("pending timers", "memory, MB", "thousand fire in a second"), [line])


BENCHMARK = Benchmark(
    "timers", "Very many pending timers", measure_all, tables, (("turns", 3, 1), ("timers", 1_000_000, 20_000))
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
