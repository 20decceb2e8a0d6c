"""The report of a demo: ``report.json`` with everything measured, ``report.html`` drawn from it, one file each.

Rule: the page shows what is in the JSON and computes nothing but coordinates; it loads nothing from anywhere.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kafka_eos import __version__
from kafka_eos.demo.faults import FaultPlan
from kafka_eos.demo.home import Home, Options
from kafka_eos.demo.result import Recording, Result

if TYPE_CHECKING:
    from kafka_eos.audit.verdict import Verdict

_WIDTH, _HEIGHT = 1000.0, 260.0


def write_report(
    home: Home, options: Options, plan: FaultPlan, result: Result, recording: Recording, verdict: Verdict | None
) -> None:
    """Write both files into the demo's directory."""
    facts = _facts(options, plan, result, recording, verdict)
    home.json.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    home.html.write_text(render(facts))


def render(facts: dict[str, Any]) -> str:
    """The page for the content of ``report.json``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kafka_eos.demo", "templates"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html.j2").render(facts=facts, chart=_chart(facts))


def _facts(
    options: Options, plan: FaultPlan, result: Result, recording: Recording, verdict: Verdict | None
) -> dict[str, Any]:
    return {
        "outcome": result.outcome.value,
        "headline": result.headline,
        "reasons": list(result.reasons),
        "numbers": result.numbers,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"kafka-eos demo --orders {options.orders} --seed {options.seed}",
        "versions": {
            "kafka-eos": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("confluent-kafka", "pyspark", "rocksdict")},
        },
        "planned": [{"title": fault.title, "when": fault.when} for fault in plan.faults],
        "struck": [
            {
                "victim": one.fault.victim.value,
                "title": one.fault.title,
                "at": round(one.at, 2),
                "epoch": one.epoch,
                "epochs_since": one.epochs_since,
                "written": one.written,
                "under_load": one.under_load,
                "recovered_in": None if one.recovered_in is None else round(one.recovered_in, 2),
            }
            for one in recording.struck
        ],
        "steps": [{"at": round(at, 2), "text": text} for at, text in recording.steps],
        "samples": [[round(at, 2), written, visible, lag] for at, written, visible, lag in recording.samples],
        "commits": [round(at, 2) for at in recording.commits],
        "audit": None if verdict is None else _audit(verdict),
    }


def _audit(verdict: Verdict) -> dict[str, Any]:
    found = {finding.check: finding for finding in verdict.findings}
    return {
        "headline": verdict.headline,
        "checks": [
            {
                "name": check.value,
                "question": check.question,
                "found": found[check].count if check in found else 0,
                "first": [str(offender) for offender in found[check].first] if check in found else [],
            }
            for check in verdict.performed
        ],
        "not_possible": {check.value: reason for check, reason in verdict.not_possible.items()},
        "notes": list(verdict.facts.notes),
        "invisible": verdict.facts.invisible,
        "committed_epochs": verdict.facts.committed_epochs,
    }


# ---------------------------------------------------------------- chart


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template draws, in the coordinates of its picture."""

    width: float
    height: float
    written: str
    visible: str
    commits: list[float]
    faults: list[dict[str, Any]]
    ticks: list[tuple[float, str]]
    top: str


def _chart(facts: dict[str, Any]) -> Chart:
    """Orders written and outputs visible over the time under load; a line for each fault, a tick for each commit."""
    samples = facts["samples"] or [[0.0, 0, 0, 0]]
    began = next((at for at, written, *_ in samples if written), 0.0)
    # The audit changes nothing that the picture shows: it ends with the last commit.
    ended = max([*facts["commits"], *(one["at"] for one in facts["struck"]), began + 1.0])
    most = max(*(max(row[1], row[2]) for row in samples), 1)

    def x(at: float) -> float:
        return round(float((at - began) / (ended - began) * _WIDTH), 1)

    def line(column: int) -> str:
        rows = [row for row in samples if began <= row[0] <= ended]
        return " ".join(f"{x(row[0])},{_HEIGHT - row[column] / most * _HEIGHT:.1f}" for row in rows)

    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 600) if (ended - began) / s <= 12 or s == 600)
    return Chart(
        _WIDTH,
        _HEIGHT,
        line(1),
        line(2),
        [x(at) for at in facts["commits"] if at >= began],
        [{**one, "number": n, "x": x(one["at"])} for n, one in enumerate(facts["struck"], start=1)],
        [(x(t), f"{t} s") for t in range(0, int(ended) + 1, step) if t >= began],
        f"{most:,}",
    )
