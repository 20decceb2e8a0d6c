"""The pictures of docs/benchmarks.md. ``python -m benchmarks.plots`` draws them from the figures in docs/pictures.

Rule: a picture shows medians of the rows of its table, and nothing that the table does not have.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
"""One measured point: parameters and figures by name."""

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
_COLORS = ("#1f6f54", "#c0392b", "#2c5d8f", "#b07d12", "#6b4a8a", "#5b6b7b")
_GREY = "#44505c"


def draw(name: str, rows: Sequence[Row], directory: Path = PICTURES) -> Path:
    """Draw the picture of one benchmark as PNG; return its path."""
    from matplotlib.figure import Figure

    drawing, size = _DRAWINGS[name]
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    drawing(figure, rows)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.png"
    figure.savefig(path, metadata={"Software": None})
    return path


def _abs_paper(figure: Any, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    free = statistics.median(row["rate"] for row in rows if row["interval"] is None)
    axes.axhline(free / 1000, color=_GREY, linewidth=1.2, linestyle=(0, (5, 3)), label="no fault tolerance")
    kept = [row for row in rows if row["interval"] is not None]
    _lines(axes, kept, "interval", "rate", "mode", 1e-3)
    _logarithmic(axes, (row["interval"] for row in kept), "{:g}")
    _dress(axes, "seconds between checkpoints", "thousand rows per second")


def _checkpoint_cost(figure: Any, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    points = list(dict.fromkeys((row["mode"], row["interval"]) for row in rows))
    for place, (mode, interval) in enumerate(points):
        found = [row for row in rows if (row["mode"], row["interval"]) == (mode, interval)]
        losses = [100 * (1 - row["rate_with"] / row["rate_without"]) for row in found]
        axes.plot(losses, [place] * len(losses), "o", color=_COLORS[place % len(_COLORS)], alpha=0.35)
        axes.plot([statistics.mean(losses)], [place], "|", color=_GREY, markersize=24, markeredgewidth=2.5)
    axes.axvline(0, color=_GREY, linewidth=0.8)
    axes.set_yticks(range(len(points)), [f"{mode}, {interval:g} s" for mode, interval in points])
    axes.margins(y=0.12)
    axes.invert_yaxis()
    _dress(axes, "loss of throughput, percent: each pair of windows, and their mean", "", legend=False, from_zero=False)


def _alignment(figure: Any, rows: Sequence[Row]) -> None:
    rate, checkpoint = figure.subplots(1, 2)
    _bars(rate, rows, "spill", "rate", 1e-3)
    _dress(rate, "thousand rows per second", "alignment_spill", legend=False, from_zero=False)
    _bars(checkpoint, rows, "spill", "checkpoint", 1.0)
    _dress(checkpoint, "seconds per checkpoint", "", legend=False, from_zero=False)


def _backpressure(figure: Any, rows: Sequence[Row]) -> None:
    memory, in_flight = figure.subplots(1, 2)
    slow = [{**row, "in_flight": row["in"] - row["out"]} for row in rows if row["part"] == "slow"]
    for axes, of, what in ((memory, "memory", "MB, all processes"), (in_flight, "in_flight", "rows in flight")):
        _lines(axes, slow, "at", of, "mode", 1.0)
        _dress(axes, "seconds", what)
        axes.set_ylim(0, 1.4 * max(row[of] for row in slow))


def _exchange(figure: Any, rows: Sequence[Row]) -> None:
    hops, delay, rate = figure.subplots(1, 3)
    _bars(hops, [row for row in rows if row["part"] in ("hops", "kafka")], "what", "rate", 1e-3)
    hops.set_xscale("log")
    _dress(hops, "thousand rows per second", "", legend=False, from_zero=False)
    timed = [row for row in rows if row["part"] == "timeout"]
    for share in ("p50", "p99"):
        found = [{**row, "line": f"{row['load_name']}, {share}"} for row in timed if row["load_name"] != "full"]
        _lines(delay, found, "timeout_ms", f"{share}_ms", "line", 1.0, first=0 if share == "p50" else 2)
    delay.set_yscale("log")
    _dress(delay, "buffer_timeout, ms", "latency, ms", from_zero=False)
    _lines(rate, [row for row in timed if row["load_name"] == "full"], "timeout_ms", "rate", "load_name", 1e-3)
    _dress(rate, "buffer_timeout, ms", "thousand rows per second", legend=False)
    for axes in (delay, rate):
        ticks = sorted({row["timeout_ms"] for row in timed})
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])


def _skew(figure: Any, rows: Sequence[Row]) -> None:
    workers = sorted({row["workers"] for row in rows})
    inputs = list(dict.fromkeys(row["input"] for row in rows))
    beside = figure.subplots(1, len(workers), sharey=True, squeeze=False)[0]
    for axes, number in zip(beside, workers, strict=True):
        found = [row for row in rows if row["workers"] == number]
        _grouped(axes, found, inputs, "input", "merge", "rate", 1e-3)
    for axes, number in zip(beside, workers, strict=True):
        _dress(axes, f"{number} worker{'s' if number > 1 else ''}", "thousand tuples per second")


def _state_sizes(figure: Any, rows: Sequence[Row]) -> None:
    blocking, size, recovery = figure.subplots(1, 3)
    touched = [row for row in rows if row["part"] == "checkpoint"]
    for place, name in enumerate(("blocked_ms", "total_ms")):
        found = [{**row, "line": f"{row['backend']}, {name.partition('_')[0]}"} for row in touched]
        _lines(blocking, found, "share", name, "line", 1.0, first=2 * place)
    _lines(size, touched, "share", "new_bytes", "backend", 1e-6)
    for axes, label in ((blocking, "ms"), (size, "new MB in the checkpoint")):
        axes.set_yscale("log")
        _logarithmic(axes, (row["share"] for row in touched), "{:.1%}")
        _dress(axes, "keys touched", label, from_zero=False)
    _lines(recovery, [row for row in rows if row["part"] == "recovery"], "keys", "total_ms", "line", 1e-3)
    _logarithmic(recovery, (row["keys"] for row in rows if row["part"] == "recovery"), "{:,.0f}")
    _dress(recovery, "keys of state", "seconds from SIGKILL to new output", legend=False)


def _serializers(figure: Any, rows: Sequence[Row]) -> None:
    alone, access = figure.subplots(1, 2)
    names = list(dict.fromkeys(row["codec"] for row in rows))
    coded = [{**row, "what": what, "ns": row[f"{what}_ns"]} for row in rows for what in ("encode", "decode")]
    _grouped(alone, coded, names, "codec", "what", "ns", 1.0)
    _dress(alone, "codec alone", "ns per value")
    used = [
        {**row, "what": f"{backend}, {kind}", "ns": row[f"{backend}_{kind}_ns"]}
        for row in rows
        for backend in ("rocksdb", "memory")
        for kind in ("cold", "warm")
    ]
    _grouped(access, used, names, "codec", "what", "ns", 1.0)
    _dress(access, "get and put of one key, checkpoint included", "ns per key")
    for axes in (alone, access):
        axes.tick_params(axis="x", rotation=30)


def _spark(figure: Any, rows: Sequence[Row]) -> None:
    workloads = sorted({row["workload"] for row in rows})
    beside = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axes, workload in zip(beside, workloads, strict=True):
        _bars(axes, [row for row in rows if row["workload"] == workload], "who", "rate", 1e-3)
        _dress(axes, f"{workload}: thousand records per second", "", legend=False, from_zero=False)


def _metrics(figure: Any, rows: Sequence[Row]) -> None:
    groups = list(dict.fromkeys(row["workload"] for row in rows))
    named = [{**row, "who": "with metrics" if row["watched"] else "without metrics"} for row in rows]
    for axes, of, by, label in zip(figure.subplots(1, 2), ("rate", "cpu"), (1e-3, 1), _OF_METRICS, strict=True):
        _grouped(axes, named, groups, "workload", "who", of, by)
        axes.set_ylabel(label)
        axes.legend()


def _fault_tolerance(figure: Any, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    rated = [row for row in rows if row.get("rate") is not None]
    for number, family in enumerate(dict.fromkeys(row["family"] for row in rated)):
        own = [row for row in rated if row["family"] == family]
        points = {
            name: [_median([row for row in own if row["design"] == name], of, 1.0) for of in ("p50_ms", "rate")]
            for name in dict.fromkeys(row["design"] for row in own)
        }
        axes.plot(*zip(*points.values(), strict=True), "o-", color=_COLORS[number], linewidth=1.2, label=family)
        for place, (name, point) in enumerate(points.items()):
            above = (6, -12) if place % 2 else (6, 5)
            axes.annotate(name, point, xytext=above, textcoords="offset points", fontsize=7.5, color=_COLORS[number])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.14, y=0.12)
    _dress(axes, "latency from produce to a read_committed reader, median, ms", "records per second", from_zero=False)


_OF_METRICS = ("thousand records per second", "CPU s per million records")

_DRAWINGS: Mapping[str, tuple[Callable[[Any, Sequence[Row]], None], tuple[float, float]]] = {
    "abs_paper": (_abs_paper, (7.5, 4.2)),
    "alignment": (_alignment, (9.0, 3.0)),
    "backpressure": (_backpressure, (9.0, 3.4)),
    "checkpoint_cost": (_checkpoint_cost, (8.5, 3.6)),
    "exchange": (_exchange, (13.0, 4.0)),
    "fault_tolerance": (_fault_tolerance, (8.5, 5.0)),
    "metrics": (_metrics, (9.0, 3.4)),
    "skew": (_skew, (10.5, 4.0)),
    "state_sizes": (_state_sizes, (13.5, 4.0)),
    "serializers": (_serializers, (11.5, 4.4)),
    "spark": (_spark, (14.0, 3.6)),
}

NAMES = tuple(_DRAWINGS)


def _median(rows: Iterable[Row], of: str, factor: float) -> float | None:
    found = [row[of] for row in rows if row.get(of) is not None]
    return statistics.median(found) * factor if found else None


def _lines(axes: Any, rows: Sequence[Row], x: str, y: str, line: str, factor: float, first: int = 0) -> None:
    """Draw one line per value of the column ``line``; ``first`` is the number of the first color."""
    for number, name in enumerate(dict.fromkeys(row[line] for row in rows)):
        own = [row for row in rows if row[line] == name]
        places = sorted({row[x] for row in own})
        points = [(at, _median([row for row in own if row[x] == at], y, factor)) for at in places]
        seen = [(at, value) for at, value in points if value is not None]
        color = _COLORS[(first + number) % len(_COLORS)]
        axes.plot(*zip(*seen, strict=True), "o-", color=color, markersize=4, linewidth=1.6, label=name)


def _bars(axes: Any, rows: Sequence[Row], name: str, of: str, factor: float) -> None:
    names = list(dict.fromkeys(row[name] for row in rows))
    values = [_median([row for row in rows if row[name] == each], of, factor) or 0 for each in names]
    axes.barh(names[::-1], values[::-1], color=_COLORS[0], alpha=0.8)


def _grouped(axes: Any, rows: Sequence[Row], groups: Sequence[str], group: str, bar: str, of: str, by: float) -> None:
    """Draw bars side by side: one cluster per group, one color per value of ``bar``."""
    bars = list(dict.fromkeys(row[bar] for row in rows))
    width = 0.8 / len(bars)
    for number, name in enumerate(bars):
        values = [_median([r for r in rows if r[group] == g and r[bar] == name], of, by) or 0 for g in groups]
        places = [place + (number - (len(bars) - 1) / 2) * width for place in range(len(groups))]
        axes.bar(places, values, width=width * 0.95, color=_COLORS[number % len(_COLORS)], alpha=0.85, label=name)
    axes.set_xticks(range(len(groups)), groups)


def _logarithmic(axes: Any, places: Iterable[float], pattern: str) -> None:
    ticks = sorted(set(places))
    if not ticks:
        return
    axes.set_xscale("log")
    axes.set_xticks(ticks, [pattern.format(tick) for tick in ticks])
    axes.minorticks_off()


def _dress(axes: Any, x: str, y: str, *, legend: bool = True, from_zero: bool = True) -> None:
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x, fontsize=9, color=_GREY)
    axes.set_ylabel(y, fontsize=9, color=_GREY)
    axes.tick_params(labelsize=8.5, colors=_GREY)
    axes.grid(axis="both", color="#e3e7ea", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=8, frameon=False)


def main() -> int:
    """Draw every picture whose figures are stored; return the exit code."""
    for name in NAMES:
        stored = PICTURES / f"{name}.json"
        if stored.exists():
            print(draw(name, json.loads(stored.read_text())["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
