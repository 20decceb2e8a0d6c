"""Pictures: a job's life (outputs committed over time, and what happened meanwhile), and what partitions hold.

Rule: it draws numbers and fixed words only; no text of the history reaches the picture.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_eos.audit.deaths import deaths

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
    """Read the events that have a time; others and unknown ones are left out."""
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


def timeline(events: Sequence[Mapping[str, Any]]) -> str | None:
    """The picture as an ``<svg>`` element; None if the history has fewer than two commits."""
    story = life(events)
    if len(story.committed) < 2:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 2.9), layout="constrained")
    axes = figure.subplots()
    times, totals = zip(*story.committed, strict=True)
    axes.fill_between(times, totals, step="post", color="#1f6f54", alpha=0.10, linewidth=0)
    axes.step(times, totals, where="post", color="#1f6f54", linewidth=1.6, label="outputs committed")
    axes.plot(times, [0] * len(times), "|", color="#1f6f54", markersize=7, clip_on=False, label="epoch committed")
    colors = dict(_KINDS.values())
    for word, at in story.marks.items():
        for i, time in enumerate(at):
            axes.axvline(time, color=colors[word], linewidth=1.1, linestyle=(0, (4, 3)), label=word if i == 0 else None)
    axes.set_xlabel("seconds since the job's first event", fontsize=9, color="#44505c")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.tick_params(labelsize=8.5, colors="#44505c")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f"))
    axes.grid(axis="y", color="#e3e7ea", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8c2cc")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, fontsize=8.5, frameon=False, ncols=6)
    return _svg(figure, axes)


def partition_bars(partitions: Sequence[Mapping[str, Any]]) -> str | None:
    """Records of each partition as an ``<svg>`` element, inputs beside outputs; None if there are none, or too many."""
    if not 1 <= len(partitions) <= _MOST_BARS:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 2.6), layout="constrained")
    axes = figure.subplots()
    for role, color in (("input", "#5b6b7b"), ("output", "#1f6f54")):
        held = [(i, p["records"]) for i, p in enumerate(partitions) if p["role"] == role]
        axes.bar(
            [i for i, _ in held], [n for _, n in held], width=0.7, color=color, alpha=0.75, label=f"{role} records"
        )
    hidden = [(i, p["records"], p["invisible"]) for i, p in enumerate(partitions) if p.get("invisible")]
    if hidden:
        places, below, heights = zip(*hidden, strict=True)
        axes.bar(places, heights, bottom=below, width=0.7, color="#c0392b", alpha=0.5, label="aborted")
    axes.set_xticks(range(len(partitions)), [str(p["partition"]) for p in partitions])
    axes.set_xlabel("partition, in the order of the table below", fontsize=9, color="#44505c")
    axes.tick_params(labelsize=8.5, colors="#44505c")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f"))
    axes.grid(axis="y", color="#e3e7ea", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, fontsize=8.5, frameon=False, ncols=3)
    return _svg(figure, axes)


def _svg(figure: Any, axes: Any) -> str:
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]
