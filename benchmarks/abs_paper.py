"""The ABS paper's experiment: ``python -m benchmarks.abs_paper``. What checkpoints cost, by interval and by mode.

Carbone et al. 2015 (arXiv 1506.08603), section 6: six operators, three full shuffles, per-key state; throughput while
the snapshot interval shrinks, for asynchronous barrier snapshots and for a global stop, against no fault tolerance.
Here with two worker processes, a generated input and a sink that only counts, so that no broker is in the way.

Each mode has a run without checkpoints beside its others, in each turn; the loss is against the median of all of those.
A window is at least one interval long; intervals above 3 s are measured in the first turn only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.jobs import NEVER, Window, measure
from benchmarks.plots import Row

_STOPPED = "synchronous"
"""The paper's global stop: no setting of the job, see ``apps/shuffles.py``."""
MODES = ("aligned", "unaligned", _STOPPED)
INTERVALS = (10.0, 5.0, 3.0, 1.0, 0.5, 0.1)
_OFTEN = 3.0
"""Longer intervals take too long to be measured in every turn."""


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    points = [
        partial(_point, options, home, turn, mode, interval)
        for turn in range(options.turns)
        for mode in MODES
        for interval in (None, *INTERVALS)
        if interval is None or (interval <= options.longest and (turn == 0 or interval <= _OFTEN))
    ]
    return attempts(points)


def _point(options: argparse.Namespace, home: Path, turn: int, mode: str, interval: float | None) -> Row:
    settings = {
        "parallelism": options.workers,
        **mode_settings(mode),
        "checkpoint_interval": NEVER if interval is None else interval,
        "BENCH_KEYS": options.keys,
    }
    seconds = max(options.seconds, interval or 0.0)
    window = measure("shuffles", home, settings, seconds=seconds, warm_up=options.warm_up)
    tell(f"turn {turn + 1}: {mode}, {name_of(interval)}: {window.rate_out / 1000:.1f} k rows/s")
    return {"turn": turn, "mode": mode, "interval": interval, **_figures(window)}


def mode_settings(mode: str) -> Row:
    """Return the settings of the job ``shuffles`` for a mode of ``MODES``."""
    return {"BENCH_STOP_THE_WORLD": 1} if mode == _STOPPED else {"checkpoint_mode": mode}


def _figures(window: Window) -> Row:
    return {
        "rate": window.rate_out,
        "cpu": window.cpu,
        "load": window.load,
        "checkpoints_a_second": len(window.checkpoints) / window.seconds,
        "took_ms": None if (took := window.median("seconds")) is None else took * 1000,
        "blocked_ms": window.median("blocked_ms"),
        "aligning_ms": window.median("aligning_ms"),
        "in_flight_bytes": window.median("in_flight_bytes"),
    }


def name_of(interval: float | None) -> str:
    return "none" if interval is None else f"{interval:g} s"


def loss(rows: Sequence[Row], mode: str, interval: float | None) -> float | None:
    """Per cent of the rate without checkpoints, medians of both; without them the mode makes no difference."""
    rate, free = middle(where(rows, mode=mode, interval=interval), "rate"), middle(where(rows, interval=None), "rate")
    return None if rate is None or free is None else 100 * (1 - rate / free)


def tables(rows: Sequence[Row]) -> str:
    headings = (
        "mode, interval",
        "runs",
        "k rows/s",
        "loss %",
        "CPU s/M",
        "checkpoints/s",
        "checkpoint ms",
        "blocked ms",
        "aligning ms",
        "in flight KB",
        "load before",
    )
    points = dict.fromkeys((row["mode"], row["interval"]) for row in rows)
    return table(headings, [_line(rows, mode, interval) for mode, interval in points])


def _line(rows: Sequence[Row], mode: str, interval: float | None) -> list[str]:
    found = where(rows, mode=mode, interval=interval)
    return [
        f"{mode}, {name_of(interval)}",
        str(len(found)),
        shown(middle(found, "rate"), 1, 1e-3),
        "–" if interval is None else shown(loss(rows, mode, interval), 1),
        shown(middle(found, "cpu"), 1),
        shown(middle(found, "checkpoints_a_second"), 1),
        shown(middle(found, "took_ms")),
        shown(middle(found, "blocked_ms"), 1),
        shown(middle(found, "aligning_ms"), 1),
        shown(middle(found, "in_flight_bytes"), 0, 1e-3),
        shown(middle(found, "load"), 1),
    ]


BENCHMARK = Benchmark(
    "abs_paper",
    "Throughput against the checkpoint interval, for each mode",
    measure_all,
    tables,
    (
        ("turns", 3, 1),
        ("seconds", 3.0, 1.0),
        ("warm-up", 1.0, 0.5),
        ("longest", 10.0, 1.0),
        ("keys", 10_000, 10_000),
        ("workers", 2, 2),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
