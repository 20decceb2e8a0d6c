"""Skew: ``python -m benchmarks.skew``. Sums of 100,000 keys, with and without a shuffle, when some keys are hot.

The comparison of shuffle and shuffle-free aggregation: tuples spread evenly over the keys, one key with 1 % of them,
one key with half of them; each tuple sent to its key's owner, or summed where it is and merged once an epoch, by the
owner of each key (late local merge) or in one place (late global merge); one worker and two.

What is counted are tuples read, over whole epochs: late merges put out one row a key and epoch, not one a tuple.
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

INPUTS = {"uniform": 0.0, "one key 1 %": 0.01, "one key 50 %": 0.5}
MERGES = ("shuffle", "late-local", "late-global")


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    points = [(workers, name, merge) for workers in (1, 2) for name in INPUTS for merge in MERGES]
    if options.quick:
        points = [point for point in points if point[1] != "one key 1 %"]
    return attempts(partial(_point, options, home, turn, *point) for turn in range(options.turns) for point in points)


def _point(options: argparse.Namespace, home: Path, turn: int, workers: int, name: str, merge: str) -> Row:
    settings = {
        "parallelism": workers,
        "checkpoint_interval": options.interval,
        "BENCH_KEYS": options.keys,
        "BENCH_HOT": INPUTS[name],
        "BENCH_MERGE": merge,
    }
    window = measure("skewed", home, settings, seconds=options.seconds, warm_up=options.warm_up, epochs=True)
    tell(f"turn {turn + 1}: {merge}, {name}, {workers} worker(s): {window.rate_in / 1000:.0f} k tuples/s")
    return {
        "workers": workers,
        "input": name,
        "merge": merge,
        "rate": window.rate_in,
        "rate_out": window.rate_out,
        "cpu": window.cpu,
        "blocked_ms": window.median("blocked_ms"),
        "load": window.load,
    }


def tables(rows: Sequence[Row]) -> str:
    headings = (
        "workers, input",
        *(f"{merge}: k tuples/s" for merge in MERGES),
        *(f"{merge}: CPU s/M" for merge in MERGES),
        "rows out k/s",
        "blocked ms",
        "load before",
    )
    lines = []
    for workers, name in dict.fromkeys((row["workers"], row["input"]) for row in rows):
        found = where(rows, workers=workers, input=name)
        of = [where(found, merge=merge) for merge in MERGES]
        lines.append(
            [
                f"{workers}, {name}",
                *(shown(middle(each, "rate"), 0, 1e-3) for each in of),
                *(shown(middle(each, "cpu"), 2) for each in of),
                " / ".join(shown(middle(each, "rate_out"), 0, 1e-3) for each in of),
                " / ".join(shown(middle(each, "blocked_ms")) for each in of),
                shown(middle(found, "load"), 1),
            ]
        )
    return table(headings, lines)


BENCHMARK = Benchmark(
    "skew",
    "Per-key sums of skewed input: shuffle against late merges",
    measure_all,
    tables,
    (
        ("turns", 3, 1),
        ("seconds", 2.0, 1.0),
        ("warm-up", 0.5, 0.0),
        ("interval", 1.0, 1.0),
        ("keys", 100_000, 100_000),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
