"""What a slow sink does to memory: ``python -m benchmarks.backpressure``.

First the rate without the sink's pauses is measured; then each row costs the sink a hundred times as much. Credits slow
the source down to the sink's rate, and what is under way stays within ``exchange_memory``, in every mode.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.apps.generated import Counter
from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.jobs import measure, started
from benchmarks.plots import Row
from benchmarks.processes import usage

MODES = ("aligned", "unaligned")
SLOWER = 100
WORKERS = 2
_LOOKS = 12


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    free = measure("slow_sink", home, _settings("aligned", 0.0), seconds=3.0, warm_up=1.0)
    tell(f"a sink that does not wait: {free.rate_in / 1000:,.0f} k rows/s")
    points = attempts(partial(_point, options, home, mode, free.rate_in) for mode in MODES)
    return [
        {"part": "free", "rate": free.rate_in, "memory": free.memory},
        *(row for point in points for row in point["looks"]),
    ]


def _settings(mode: str, pause: float) -> dict[str, object]:
    return {"parallelism": WORKERS, "BENCH_PAUSE": pause, "checkpoint_mode": mode, "batch_size": 500}


def _point(options: argparse.Namespace, home: Path, mode: str, free: float) -> Row:
    """All looks at one run, each a row."""
    looks: list[Row] = []
    with started("slow_sink", home, _settings(mode, SLOWER * WORKERS / free)) as job:
        job.until(lambda: Counter.total(job.counters, "out") > 0)
        began = time.monotonic()
        for look in range(1, _LOOKS + 1):
            job.pause(max(0.0, began + look * options.seconds / _LOOKS - time.monotonic()))
            rows, out = (Counter.total(job.counters, kind) for kind in ("in", "out"))
            at, memory = time.monotonic() - began, usage(job.process.pid).memory / 1e6
            decided = len(job.events("decided"))
            looks.append(
                {
                    "part": "slow",
                    "mode": mode,
                    "at": at,
                    "in": rows,
                    "out": out,
                    "memory": memory,
                    "checkpoints": decided,
                }
            )
    tell(f"{mode}: {looks[-1]['memory']:.0f} MB after {options.seconds:.0f} s")
    return {"looks": looks}


def tables(rows: Sequence[Row]) -> str:
    (free,) = where(rows, part="free")
    lines = [
        [
            mode,
            shown(last["out"] / last["at"], 0, 1e-3),
            shown(middle([first], "memory")),
            shown(middle([half], "memory")),
            shown(last["memory"]),
            shown(max(row["in"] - row["out"] for row in seen)),
            shown(last["checkpoints"]),
        ]
        for mode in MODES
        for seen in [where(rows, part="slow", mode=mode)]
        if seen
        for first, half, last in [(seen[0], seen[len(seen) // 2], seen[-1])]
    ]
    at = next((f"{row['at']:.0f}" for row in where(rows, part="slow", mode=MODES[0])), "–")
    text = table(
        (
            "checkpoints",
            "k rows/s",
            f"MB after {at} s",
            "MB halfway",
            "MB at the end",
            "most in-flight rows",
            "checkpoints taken",
        ),
        lines,
    )
    return f"{text}\n\nWith a sink that does not wait: {free['rate'] / 1000:,.0f} k rows/s, {free['memory']:.0f} MB."


BENCHMARK = Benchmark(
    "backpressure", "Memory of a job whose sink is slow", measure_all, tables, (("seconds", 60.0, 3.0),)
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
