"""The audit's report: report.json for programs, junit.xml for CI systems, metrics.prom for Prometheus, and report.html
for readers, which loads nothing from elsewhere.

Rule: values that come from records or from the user's program are escaped; the page runs no script.
"""

from __future__ import annotations

import functools
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kafka_eos.audit.checks.verdict import AnyCheck, Evidence, Observations, Verdict
from kafka_eos.audit.report.charts import partition_bars, timeline
from kafka_eos.audit.report.junit_report import as_junit
from kafka_eos.audit.report.metrics_file import write_metrics
from kafka_eos.core.records import RecordCounts
from kafka_eos.protocol.dead_letter_limit import describe_counts

_PACKAGES = ("confluent-kafka", "pyspark", "pyarrow")


@dataclass(frozen=True)
class Context:
    """The contents of a report besides the verdict."""

    job: str
    app: str
    began: float = field(default_factory=time.time)
    """Seconds since the Unix epoch."""
    reads: Sequence[Mapping[str, Any]] = ()
    """The ranges that were read, one entry per partition."""
    events: Sequence[Mapping[str, Any]] = ()
    """The job's history."""
    spark: str = "not started"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More for the report: ``question``, ``partitions``, ``resume`` of an audit of topics."""


def write(directory: Path, verdict: Verdict, context: Context) -> None:
    """Write report.json, junit.xml, metrics.prom and report.html into ``directory``, which is made if absent."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = as_json(verdict, context)
    (directory / "report.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (directory / "junit.xml").write_text(as_junit(content), encoding="utf-8")
    write_metrics(directory / "metrics.prom", content)
    (directory / "report.html").write_text(as_html(content, context), encoding="utf-8", errors="backslashreplace")


def as_json(verdict: Verdict, context: Context) -> dict[str, Any]:
    """Return the whole report as plain data."""
    facts = verdict.facts
    return {
        "format": "kafka-eos audit 1",
        "job": context.job,
        "app": context.app,
        "verdict": verdict.conclusion.value,
        "reasons": list(verdict.reasons),
        "audited_at": datetime.fromtimestamp(context.began, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - context.began, 1),
        "counts": {
            "inputs": facts.inputs,
            "not_yet_processed": facts.not_yet_processed,
            "outputs": facts.outputs,
            "expected": facts.expected,
            "invisible": facts.uncommitted,
            "before": facts.before_savepoint,
            "keys": facts.keys,
            "committed_epochs": facts.committed_epochs,
            "restarts": facts.restarts,
            "kills": facts.kills,
        },
        "state": None if facts.state is None else asdict(facts.state),
        "dead_letters": _dead_letters(context.events),
        "rejected": dict(facts.rejected),
        "checks": [_check(check, verdict) for check in verdict.checks],
        "left_out": list(facts.left_out),
        "not_audited": dict(facts.not_audited),
        "not_recomputed": dict(facts.not_recomputed),
        "not_compared": _uncompared(facts),
        "notes": list(facts.notes),
        "read": [dict(entry) for entry in context.reads],
        "versions": _versions(context),
        "traceback": verdict.traceback,
        **context.extra,
    }


def _uncompared(facts: Observations) -> list[dict[str, Any]]:
    of_state = [] if facts.state is None else [asdict(left_out) for left_out in facts.state.uncompared]
    of_outputs = [asdict(one) | {"claims": [claim.value for claim in one.claims]} for one in facts.uncompared]
    return [*of_outputs, *of_state]


def _dead_letters(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the dead letters of committed epochs, by source and operator, from the history."""
    committed = {event.get("epoch") for event in events if event.get("event") == "committed"}
    counts_by_epoch = {e.get("epoch"): e.get("counts", {}) for e in events if e.get("event") == "dead-letters"}
    counted = (RecordCounts(refused=counts) for epoch, counts in counts_by_epoch.items() if epoch in committed)
    return functools.reduce(RecordCounts.plus, counted, RecordCounts()).refused


def _check(check: AnyCheck, verdict: Verdict) -> dict[str, Any]:
    evidence = verdict.facts.evidence.get(check)
    entry: dict[str, Any] = {"check": check.value, "question": check.question}
    if check in verdict.skipped:
        return {**entry, "status": "skipped", "reason": verdict.skipped[check]}
    assert isinstance(evidence, Evidence)  # judge lists every other check as not possible
    status = "clean" if not evidence.count else "found"
    first = [asdict(offender) for offender in evidence.examples]
    where = {"by_sink": dict(evidence.by_sink)} if evidence.by_sink else {}
    return {
        **entry,
        "status": status,
        "looked_at": evidence.looked_at,
        "count": evidence.count,
        "first": first,
        **where,
    }


def _versions(context: Context) -> dict[str, str]:
    found = {"kafka-eos": _version("kafka-eos"), "python": platform.python_version(), "spark": context.spark}
    return {**found, **{name: _version(name) for name in _PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"


def as_html(content: Mapping[str, Any], context: Context) -> str:
    """Return the page for ``content``, the result of ``as_json``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("kafka_eos.audit.report"),
        autoescape=select_autoescape(default_for_string=True, default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["letters"] = describe_counts
    environment.filters["number"] = lambda n: "–" if n is None else f"{n:,}".replace(",", "\u202f")
    page = environment.get_template("report.html.j2")
    filled = {"partitions": (), "question": {}, **content}
    return page.render(**filled, timeline=timeline(context.events), bars=partition_bars(filled["partitions"]))
