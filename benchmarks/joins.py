"""Joins, tables, broadcast state and requests: ``python -m benchmarks.joins``. What each operation costs a row.

Jobs with generated input and a sink that counts, no broker: rows of two streams that have one partner each, rows that
look into a table or are held against rules, and rows that are asked for. ``plain`` has none of it, to be taken off.

What is counted are rows read, of both streams together; state is that of the last checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.jobs import measure
from benchmarks.plots import Row

OPERATIONS = ("plain", "interval-join", "window-join", "table-join", "broadcast", "asked", "kept")
WORKERS = (1, 2)


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    points = [(workers, operation) for workers in WORKERS for operation in OPERATIONS]
    return attempts(partial(_point, options, home, turn, *point) for turn in range(options.turns) for point in points)


def _point(options: argparse.Namespace, home: Path, turn: int, workers: int, operation: str) -> Row:
    settings = {
        "parallelism": workers,
        "checkpoint_interval": options.interval,
        "BENCH_OPERATION": operation,
        "BENCH_KEYS": options.keys,
    }
    window = measure("joins", home, settings, seconds=options.seconds, warm_up=options.warm_up)
    tell(
        f"turn {turn + 1}: {operation}, {workers} worker(s): {window.rate_in / 1000:.0f} k rows/s, "
        f"{window.cpu:.2f} CPU s/M"
    )
    return {
        "workers": workers,
        "operation": operation,
        "rate": window.rate_in,
        "cpu": window.cpu,
        "memory": window.memory,
        "state": window.median("state_bytes"),
        "blocked_ms": window.median("blocked_ms"),
        "load": window.load,
    }


def tables(rows: Sequence[Row]) -> str:
    headings = ("operation, workers", "k rows/s", "CPU s/M", "MB", "state MB", "blocked ms", "load before")
    lines = []
    for operation in OPERATIONS:
        for workers in WORKERS:
            found = where(rows, operation=operation, workers=workers)
            lines.append(
                [
                    f"{operation}, {workers}",
                    shown(middle(found, "rate"), 0, 1e-3),
                    shown(middle(found, "cpu"), 2),
                    shown(middle(found, "memory")),
                    shown(middle(found, "state"), 1, 1e-6),
                    shown(middle(found, "blocked_ms")),
                    shown(middle(found, "load"), 1),
                ]
            )
    return table(headings, lines)


BENCHMARK = Benchmark(
    "joins",
    "What joins, tables, broadcast state and requests cost a row",
    measure_all,
    tables,
    (
        ("turns", 2, 1),
        ("seconds", 5.0, 1.0),
        ("warm-up", 3.0, 0.0),
        ("interval", 1.0, 0.3),
        ("keys", 100_000, 1_000),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
