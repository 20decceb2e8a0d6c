"""What checkpoints cost, finer than from run to run: ``python -m benchmarks.checkpoint_cost``.

The job of ``abs_paper``, which takes no checkpoint by itself. Windows of one run take turns: in one of each pair
checkpoints are asked for at their interval, in the other none; which comes first alternates. A pair is seconds apart
in the same processes, so most of what makes runs of this machine differ is the same in both of its windows.

The loss is the mean over the pairs, with two standard errors of it: about 95 % of such intervals hold the true loss.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.abs_paper import MODES, mode_settings
from benchmarks.apps.generated import Counter
from benchmarks.command import Benchmark, middle, shown, table, tell, where
from benchmarks.jobs import NEVER, Run, Unusable, started
from benchmarks.plots import Row

INTERVALS = (10.0, 1.0)
_SETTLE = 0.5
"""Seconds between two windows."""


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    rows: list[Row] = []
    for interval in INTERVALS:
        for mode in MODES:
            if interval > options.longest:
                continue
            try:
                rows += _pairs(options, home, mode, interval)
            except Unusable as error:
                print(f"no figure: {error}", file=sys.stderr)
    return rows


def _pairs(options: argparse.Namespace, home: Path, mode: str, interval: float) -> Iterator[Row]:
    settings = {
        "parallelism": options.workers,
        **mode_settings(mode),
        "checkpoint_interval": NEVER,
        "BENCH_KEYS": options.keys,
    }
    with started("shuffles", home, settings) as job:
        job.until(lambda: Counter.total(job.counters, "out") > 0)
        job.pause(options.warm_up)
        for number in range(options.pairs):
            row = _pair(job, interval, max(options.seconds, interval), number % 2 == 0)
            tell(f"{mode}, {interval:g} s, pair {number + 1}: loss {loss(row):.1f} %")
            yield {"mode": mode, "interval": interval, "pair": number, **row}


def _pair(job: Run, interval: float, seconds: float, first: bool) -> Row:
    """One window with checkpoints and one without; ``first``: the one with comes first."""
    found: Row = {}
    for busy in (first, not first):
        job.pause(_SETTLE)
        work: Callable[[float], None] | None = partial(job.checkpoints, interval) if busy else None
        window = job.window(seconds, os.getloadavg()[0], work=work)
        found |= {"rate_with" if busy else "rate_without": window.rate_out}
        if busy:
            took = window.median("seconds")
            found |= {"checkpoints": len(window.checkpoints), "took_ms": None if took is None else took * 1000}
            found |= {"blocked_ms": window.median("blocked_ms"), "aligning_ms": window.median("aligning_ms")}
    return found


def loss(row: Row) -> float:
    """Per cent of the rate without checkpoints."""
    return float(100 * (1 - row["rate_with"] / row["rate_without"]))


def mean(losses: Sequence[float]) -> tuple[float, float]:
    """Of at least two losses, and two standard errors of it."""
    return statistics.mean(losses), 2 * statistics.stdev(losses) / math.sqrt(len(losses))


def tables(rows: Sequence[Row]) -> str:
    headings = (
        "mode, interval",
        "pairs",
        "k rows/s without",
        "k rows/s with",
        "loss %",
        "checkpoints per window",
        "checkpoint ms",
        "blocked ms",
        "aligning ms",
    )
    points = dict.fromkeys((row["mode"], row["interval"]) for row in rows)
    return table(headings, [_line(where(rows, mode=mode, interval=interval)) for mode, interval in points])


def _line(found: Sequence[Row]) -> list[str]:
    middle_loss, around = mean([loss(row) for row in found])
    return [
        f"{found[0]['mode']}, {found[0]['interval']:g} s",
        str(len(found)),
        shown(middle(found, "rate_without"), 1, 1e-3),
        shown(middle(found, "rate_with"), 1, 1e-3),
        f"{middle_loss:.1f} ± {around:.1f}",
        shown(middle(found, "checkpoints"), 0),
        shown(middle(found, "took_ms")),
        shown(middle(found, "blocked_ms"), 1),
        shown(middle(found, "aligning_ms"), 1),
    ]


BENCHMARK = Benchmark(
    "checkpoint_cost",
    "What checkpoints cost, in pairs of windows of one run",
    measure_all,
    tables,
    (
        ("pairs", 16, 2),
        ("seconds", 5.0, 2.0),
        ("warm-up", 5.0, 1.0),
        ("longest", 10.0, 1.0),
        ("keys", 10_000, 10_000),
        ("workers", 2, 2),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
