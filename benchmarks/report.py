"""Trials to one line each: medians and spreads, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.trial import Figures

HEADINGS = (
    "workload, contender",
    "k records/s",
    "spread",
    "CPU s/M",
    "broker CPU s/M",
    "peak MB",
    "checkpoint ms p50 / max",
    "blocked ms p50 / max",
    "load before",
)


def document(trials: Mapping[str, Sequence[Figures]], command: str, records: int) -> dict[str, Any]:
    """Everything that was measured, for a file."""
    return {
        "command": command,
        "records": records,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "trials": {title: [dataclasses.asdict(figures) for figures in found] for title, found in trials.items()},
    }


def table(trials: Mapping[str, Sequence[Figures]]) -> str:
    """Markdown. ``spread`` is the fastest rate over the slowest."""
    rows = [HEADINGS, *(_row(title, figures) for title, figures in trials.items() if figures)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(HEADINGS) + "|", *lines[1:]])


def _row(title: str, found: Sequence[Figures]) -> tuple[str, ...]:
    rates = [figures.rate for figures in found]
    return (
        title,
        f"{statistics.median(rates) / 1000:.0f}",
        f"{max(rates) / min(rates):.2f}",
        f"{_median(found, 'cpu'):.2f}",
        f"{_median(found, 'broker_cpu'):.2f}",
        f"{_median(found, 'memory'):.0f}",
        _pair(found, "checkpoint_p50", "checkpoint_max"),
        _pair(found, "blocked_p50", "blocked_max"),
        f"{_median(found, 'load_before'):.1f}",
    )


def _median(found: Sequence[Figures], name: str) -> float:
    return statistics.median(getattr(figures, name) for figures in found)


def _pair(found: Sequence[Figures], middle: str, most: str) -> str:
    if getattr(found[0], middle) is None:
        return "–"
    return f"{_median(found, middle):.0f} / {max(getattr(figures, most) for figures in found):.0f}"
