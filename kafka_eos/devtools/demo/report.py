"""The report of a demo: ``report.json`` with everything measured, ``report.html`` drawn from it, one file each.

Rule: the page shows what is in the JSON and computes nothing but coordinates; it loads nothing from anywhere.
"""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kafka_eos import __version__
from kafka_eos.devtools.demo.chart import draw
from kafka_eos.devtools.demo.directory import DemoDirectory, Options
from kafka_eos.devtools.demo.faults import FaultPlan
from kafka_eos.devtools.demo.outputs import DemoOutputs
from kafka_eos.devtools.demo.result import DemoRecord, DemoResult

if TYPE_CHECKING:
    from kafka_eos.audit.checks.verdict import Verdict


def write_report(
    home: DemoDirectory,
    options: Options,
    plan: FaultPlan,
    outputs: DemoOutputs,
    result: DemoResult,
    recording: DemoRecord,
    verdict: Verdict | None,
) -> None:
    """Write both files into the demo's directory."""
    facts = _facts(options, plan, outputs, result, recording, verdict)
    home.json.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    home.html.write_text(render(facts))


def render(facts: dict[str, Any]) -> str:
    """Render the page for the content of ``report.json``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kafka_eos.devtools.demo", "templates"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html.j2").render(facts=facts, chart=draw(facts))


def _facts(
    options: Options,
    plan: FaultPlan,
    outputs: DemoOutputs,
    result: DemoResult,
    recording: DemoRecord,
    verdict: Verdict | None,
) -> dict[str, Any]:
    return {
        "outcome": result.conclusion.value,
        "headline": result.headline,
        "reasons": list(result.reasons),
        "numbers": result.numbers,
        "outputs": list(outputs.names),
        "no_table": outputs.missing,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": options.engine,
        "unit": plan.cast.unit,
        "command": f"kafka-eos demo --engine {options.engine} --orders {options.orders} --seed {options.seed}",
        "versions": {
            "kafka-eos": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("confluent-kafka", "pyspark", "rocksdict")},
        },
        "planned": [{"title": fault.title, "when": fault.when} for fault in plan.faults],
        "struck": [
            {
                "victim": one.fault.victim.value,
                "title": one.title,
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
        "sessions": [{"at": round(at, 2), "parallelism": parallelism} for at, parallelism in recording.sessions],
        "processes": [
            {
                "name": process.name,
                "pid": process.pid,
                "since": round(process.since, 2),
                "until": None if process.until is None else round(process.until, 2),
            }
            for process in recording.processes
        ],
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
                "first": [str(offender) for offender in found[check].examples] if check in found else [],
            }
            for check in verdict.performed
        ],
        "skipped": {check.value: reason for check, reason in verdict.skipped.items()},
        "notes": list(verdict.facts.notes),
        "invisible": verdict.facts.uncommitted,
        "committed_epochs": verdict.facts.committed_epochs,
    }
