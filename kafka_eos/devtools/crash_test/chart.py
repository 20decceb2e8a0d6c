"""The chart of a crash test: records over time, the faults of the job, and below it the lifetimes of its processes.

Pure. Rule: it turns the contents of ``report.json`` into coordinates and computes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 1000.0, 260.0
_BELOW = 40.0
"""Between the axis and the first lane: the labels of the ticks."""
_LANE = 22.0


@dataclass(frozen=True, slots=True)
class Lane:
    """The processes that had one name, one after the other: where each begins and ends, and whether it was killed."""

    name: str
    y: float
    bars: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart that the template draws, in the coordinates of its picture."""

    width: float
    height: float
    bottom: float
    """The bottom edge of the lanes."""
    written: str
    visible: str
    commits: list[float]
    faults: list[dict[str, Any]]
    bands: list[dict[str, Any]]
    """Times of one parallelism."""
    lanes: list[Lane]
    ticks: list[tuple[float, str]]
    top: str


class _Scale:
    """Conversion of times to x coordinates, from the first record to the last commit."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.began = next((at for at, written, *_ in facts["samples"] if written), 0.0)
        self.ended = max([*facts["commits"], *(one["at"] for one in facts["struck"]), self.began + 1.0])

    def __call__(self, at: float) -> float:
        inside = min(max(at, self.began), self.ended)
        return round(float((inside - self.began) / (self.ended - self.began) * WIDTH), 1)

    def shows(self, since: float, until: float) -> bool:
        return until >= self.began and since < self.ended


def draw(facts: dict[str, Any]) -> Chart:
    """Draw the picture for the content of ``report.json``."""
    x = _Scale(facts)
    samples = facts["samples"] or [[0.0, 0, 0, 0]]
    most = max(*(max(row[1], row[2]) for row in samples), 1)

    def line(column: int) -> str:
        rows = [row for row in samples if x.began <= row[0] <= x.ended]
        return " ".join(f"{x(row[0])},{HEIGHT - row[column] / most * HEIGHT:.1f}" for row in rows)

    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 600) if (x.ended - x.began) / s <= 12 or s == 600)
    lanes = _lanes(facts, x)
    return Chart(
        WIDTH,
        HEIGHT,
        HEIGHT + _BELOW + _LANE * len(lanes),
        line(1),
        line(2),
        [x(at) for at in facts["commits"] if at >= x.began],
        [{**one, "number": n, "x": x(one["at"])} for n, one in enumerate(facts["struck"], start=1)],
        _bands(facts, x),
        lanes,
        [(x(t), f"{t} s") for t in range(0, int(x.ended) + 1, step) if t >= x.began],
        f"{most:,}",
    )


def _lanes(facts: dict[str, Any], x: _Scale) -> list[Lane]:
    """Return one lane per process name. Names sort so that the process that leads the job is first."""
    processes = [process for process in facts["processes"] if x.shows(process["since"], _end(process, x))]
    ordered = sorted({process["name"] for process in processes}, key=lambda name: (name[-1].isdigit(), name))
    return [
        Lane(
            name,
            HEIGHT + _BELOW + number * _LANE,
            [_bar(process, x) for process in processes if process["name"] == name],
        )
        for number, name in enumerate(ordered)
    ]


def _bar(process: dict[str, Any], x: _Scale) -> dict[str, Any]:
    begin, end = x(process["since"]), x(_end(process, x))
    ended = process["until"] is not None and process["until"] < x.ended
    return {"x": begin, "width": max(end - begin, 1.0), "pid": process["pid"], "ended": ended}


def _bands(facts: dict[str, Any], x: _Scale) -> list[dict[str, Any]]:
    """Merge consecutive sessions of one parallelism into bands; each ends where the next begins."""
    bands: list[dict[str, Any]] = []
    for session in facts["sessions"]:
        if not x.shows(session["at"], x.ended):
            continue
        if bands and bands[-1]["parallelism"] == session["parallelism"]:
            continue
        if bands:
            bands[-1]["width"] = x(session["at"]) - bands[-1]["x"]
        begin = x(session["at"]) if bands else 0.0
        bands.append({"parallelism": session["parallelism"], "x": begin, "width": WIDTH - begin})
    return bands


def _end(process: dict[str, Any], x: _Scale) -> float:
    return x.ended if process["until"] is None else float(process["until"])
