"""The report of a crash test: ``report.json`` with everything measured, ``report.html`` drawn from it, one file each.

Rule: the page shows what is in the JSON and computes nothing but coordinates; it loads nothing from anywhere.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kafka_eos import __version__
from kafka_eos.devtools.crash_test.chart import draw
from kafka_eos.devtools.crash_test.code_checks import CodeReport
from kafka_eos.devtools.crash_test.directory import CrashTestDirectory
from kafka_eos.devtools.crash_test.faults import FaultPlan
from kafka_eos.devtools.crash_test.options import CrashTestOptions
from kafka_eos.devtools.crash_test.result import Audits, CrashTestResult, RunRecord, name_of
from kafka_eos.runtime.call_counts import read_call_counts

if TYPE_CHECKING:
    from kafka_eos.audit.checks.verdict import Verdict


@dataclass(frozen=True, slots=True)
class TestFacts:
    """The facts of a test that are known before it runs. ``missing``: why there is no PostgreSQL."""

    __test__ = False

    options: CrashTestOptions
    plan: FaultPlan
    load: str
    outputs: tuple[str, ...]
    missing: str | None


def write_report(
    home: CrashTestDirectory,
    facts: TestFacts,
    result: CrashTestResult,
    recording: RunRecord,
    audits: Audits,
    code: CodeReport,
) -> None:
    """Write both files into the test's directory."""
    write_files(home, _measured(home, facts, result, recording, audits, code))


def write_files(home: CrashTestDirectory, measured: dict[str, Any]) -> None:
    """Write both files. Lone surrogates of records, which cannot be encoded, are escaped."""
    home.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    home.html.write_text(render(measured), encoding="utf-8", errors="backslashreplace")


def render(facts: dict[str, Any]) -> str:
    """Render the page for the content of ``report.json``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kafka_eos.devtools.crash_test", "templates"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html.j2").render(facts=facts, chart=draw(facts))


def _measured(
    home: CrashTestDirectory,
    facts: TestFacts,
    result: CrashTestResult,
    recording: RunRecord,
    audits: Audits,
    code: CodeReport,
) -> dict[str, Any]:
    return {
        "outcome": name_of(result.conclusion),
        "headline": result.headline,
        "reasons": list(result.reasons),
        "numbers": result.numbers,
        "app": str(facts.options.app),
        "input": facts.load,
        "outputs": list(facts.outputs),
        "no_table": facts.missing,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": facts.options.engine,
        "command": facts.options.command,
        "versions": {
            "kafka-eos": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("confluent-kafka", "pyspark", "rocksdict")},
        },
        "findings": [
            {"kind": each.kind, "function": each.function, "operator": each.operator, "line": each.line,
             "detail": each.detail, "fails": each.fails}
            for each in code.findings
        ],
        "calls": _count_calls(home, code),
        "rows_in_memory": dict(code.rows),
        "planned": [{"title": fault.title, "when": fault.when} for fault in facts.plan.faults],
        "unreached": [fault.point for fault in recording.unreached],
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
        "missed": [
            fault.title for fault in _missed(facts.plan, recording)
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
        "audit": None if audits.outputs is None else _audit(audits.outputs),
        "state_audit": None if audits.state is None else _audit(audits.state),
    }  # fmt: skip


def _count_calls(home: CrashTestDirectory, code: CodeReport) -> list[dict[str, Any]]:
    """Return the calls of each function in a run without faults and in the test, where replays repeat calls."""
    under_faults = read_call_counts(home.calls)
    return [
        {
            "function": each.function,
            "operator": each.operator,
            "without_faults": each.calls,
            "under_faults": under_faults[each.operator, each.role],
        }
        for each in code.functions
    ]


def _missed(plan: FaultPlan, recording: RunRecord) -> list[Any]:
    """Return the planned faults that did not happen, without the steps that the pipeline does not pass."""
    left = Counter(plan.faults) - Counter(recording.unreached) - Counter(one.fault for one in recording.struck)
    return list(left.elements())


def _audit(verdict: Verdict) -> dict[str, Any]:
    found = {finding.check: finding for finding in verdict.findings}
    facts = verdict.facts
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
        "not_compared": [
            *(f"sink {sink}: {why}" for sink, why in {**facts.not_audited, **facts.not_recomputed}.items()),
            *map(str, facts.uncompared),
        ],
        "notes": list(facts.notes),
        "invisible": facts.uncommitted,
        "committed_epochs": facts.committed_epochs,
    }
