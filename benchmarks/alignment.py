"""What blocked input is worth on the disk: ``python -m benchmarks.alignment``.

Two workers, aligned barriers, and one worker that is slow to pass them on. Meanwhile the other one's input waits with
its sender (``alignment_spill`` 0), or is taken over, on the disk beyond memory.
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

SPILLS = ("0", "64MB", "512MB")


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    return attempts(partial(_point, options, home, turn, spill) for turn in range(options.turns) for spill in SPILLS)


def _point(options: argparse.Namespace, home: Path, turn: int, spill: str) -> Row:
    settings = {
        "parallelism": 2,
        "BENCH_PAUSE": options.pause,
        "checkpoint_interval": options.interval,
        "alignment_spill": spill,
    }
    window = measure("uneven", home, settings, seconds=options.seconds, warm_up=options.warm_up, epochs=True)
    tell(f"turn {turn + 1}: alignment_spill {spill}: {window.rate_out / 1000:.0f} k rows/s")
    figures = {"rate": window.rate_out, "cpu": window.cpu, "memory": window.memory, "load": window.load}
    return {"spill": spill, "checkpoint": window.median("seconds"), **figures}


def tables(rows: Sequence[Row]) -> str:
    lines = [
        [
            spill,
            shown(middle(found, "rate"), 0, 1e-3),
            shown(middle(found, "checkpoint"), 1),
            shown(middle(found, "cpu"), 2),
            shown(middle(found, "memory")),
            shown(middle(found, "load"), 1),
        ]
        for spill in SPILLS
        for found in [where(rows, spill=spill)]
    ]
    return table(("alignment_spill", "k rows/s", "s per checkpoint", "CPU s/M", "MB", "load before"), lines)


BENCHMARK = Benchmark(
    "alignment",
    "Blocked input that waits with its sender, or on the disk",
    measure_all,
    tables,
    (
        ("turns", 3, 1),
        ("seconds", 15.0, 1.0),
        ("warm-up", 2.0, 0.5),
        ("pause", 0.4, 0.1),
        ("interval", "500ms", "100ms"),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
