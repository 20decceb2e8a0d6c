"""Pictures: a job's life (outputs committed over time, and what happened meanwhile), and what partitions hold.

Pure: what the templates draw, in the coordinates of the picture. Rule: numbers and fixed words only; no text of the
history reaches a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_eos.audit.facts.process_deaths import deaths
from kafka_eos.audit.report.chart_axes import Axis, Tick, up_to_a_round_number

WIDTH, HEIGHT = 1000.0, 240.0
_STEPS_UP, _STEPS_ALONG = 5, 10

_KINDS = {
    "death": ("kill", "#c0392b"),
    "outage": ("broker outage", "#b9770e"),
    "broker": ("broker outage", "#b9770e"),
    "recovered": ("restart", "#5b6b7b"),
    "revoked": ("epoch revoked", "#7d3c98"),
}

_MOST_BARS = 64


@dataclass(frozen=True)
class Life:
    """A history in numbers: seconds since its first event."""

    committed: tuple[tuple[float, int], ...]
    """Time of each commit, and outputs committed up to it."""
    marks: Mapping[str, tuple[float, ...]]
    """Times of what happened, by the fixed word for it."""


def life(events: Sequence[Mapping[str, Any]]) -> Life:
    """Read the events that have a time; ignore the others and unknown ones."""
    timed = [event for event in events if isinstance(event.get("at"), int | float)]
    died = deaths(timed)
    start = min((event["at"] for event in timed), default=0)
    committed: list[tuple[float, int]] = []
    marks: dict[str, list[float]] = {}
    seen: set[tuple[Any, Any]] = set()
    total, first = 0, True
    for event in sorted(timed, key=lambda e: float(e["at"])):
        name, at = str(event.get("event", "")), (event["at"] - start) / 1000
        attempt = (event.get("term"), event.get("epoch"))
        if name == "committed" and attempt not in seen:  # a recovery may commit, and say so, once more
            seen.add(attempt)
            records = event.get("records")
            total += sum(records.values()) if isinstance(records, dict) else 0
            committed.append((at, total))
        if any(event is death for death in died):
            name = "death"
        word = next((word for part, (word, _) in _KINDS.items() if part in name), None)
        if word == "restart" and first:  # the first recovery is the job's first start
            first = False
        elif word is not None:
            marks.setdefault(word, []).append(at)
    return Life(tuple(committed), {word: tuple(times) for word, times in marks.items()})


@dataclass(frozen=True, slots=True)
class Timeline:
    """Outputs committed over time. Pixels, y downwards; ``line`` as the points of a polyline."""

    line: str
    commits: list[float]
    marks: list[tuple[str, str, list[float]]]
    """For each kind of event: its name, its color, and its positions."""
    along: list[Tick]
    up: list[Tick]
    width: float = WIDTH
    height: float = HEIGHT


@dataclass(frozen=True, slots=True)
class Bar:
    """``kind`` is input, output or aborted."""

    kind: str
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bars:
    """Records of each partition, in the order of the table."""

    bars: list[Bar]
    across: float
    """The width of a bar."""
    along: list[Tick]
    up: list[Tick]
    width: float = WIDTH
    height: float = HEIGHT


def timeline(events: Sequence[Mapping[str, Any]]) -> Timeline | None:
    """Draw the picture of a job's history; None if it has fewer than two commits."""
    story = life(events)
    if len(story.committed) < 2:
        return None
    colors = dict(_KINDS.values())
    times = [*(at for at, _ in story.committed), *(at for kind in story.marks.values() for at in kind)]
    x = Axis(max(times), WIDTH)
    y = up_to_a_round_number(max(total for _, total in story.committed), HEIGHT, _STEPS_UP)
    return Timeline(
        line=_steps((x(at), HEIGHT - y(total)) for at, total in story.committed),
        commits=[x(at) for at, _ in story.committed],
        marks=[(word, colors[word], [x(at) for at in found]) for word, found in story.marks.items()],
        along=x.ticks(_STEPS_ALONG),
        up=_upwards(y),
    )


def partition_bars(partitions: Sequence[Mapping[str, Any]]) -> Bars | None:
    """Draw the records of each partition, with aborted ones on top; None if there are none, or too many."""
    if not 1 <= len(partitions) <= _MOST_BARS:
        return None
    room = WIDTH / len(partitions)
    across = min(0.7 * room, 60.0)
    most = max(_held(partition) + _hidden(partition) for partition in partitions)
    y = up_to_a_round_number(most, HEIGHT, _STEPS_UP)
    bars, along = [], []
    for i, partition in enumerate(partitions):
        middle = (i + 0.5) * room
        along.append((round(middle, 1), str(partition["partition"])))
        held, hidden = y(_held(partition)), y(_hidden(partition))
        bars.append(Bar(partition["role"], round(middle - across / 2, 1), HEIGHT - held, held))
        if hidden:
            bars.append(Bar("aborted", round(middle - across / 2, 1), HEIGHT - held - hidden, hidden))
    return Bars(bars, round(across, 1), along, _upwards(y))


def _held(partition: Mapping[str, Any]) -> int:
    return partition["records"] or 0


def _hidden(partition: Mapping[str, Any]) -> int:
    return max(partition.get("invisible") or 0, 0)


def _upwards(y: Axis) -> list[Tick]:
    return [(round(HEIGHT - place, 1), label) for place, label in y.ticks(_STEPS_UP)]


def _steps(points: Iterable[tuple[float, float]]) -> str:
    """Draw a line that stays level until the next point, then rises vertically."""
    line: list[str] = []
    level: float | None = None
    for x, y in points:
        if level is not None:
            line.append(f"{x:.1f},{level:.1f}")
        line.append(f"{x:.1f},{y:.1f}")
        level = y
    return " ".join(line)
