"""The report: complete, escaped, self-contained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_eos.audit.checks.verdict import Check, Evidence, Observations, SkippedCheck, Violation, judge
from kafka_eos.audit.facts.process_deaths import deaths
from kafka_eos.audit.report.charts import life
from kafka_eos.audit.report.report_files import Context, write

HOSTILE = '<script>alert("x")</script>\ud800'
EVENTS = [
    {"event": "recovered", "at": 1_000, "epoch": 0, "term": 1},
    {"event": "committed", "at": 2_000, "epoch": 1, "term": 1, "records": {"kafka": 400}},
    {"event": "worker killed", "at": 2_500, "pid": 4},
    {"event": "recovered", "at": 3_000, "epoch": 1, "term": 2},
    {"event": "committed", "at": 4_000, "epoch": 2, "term": 2, "records": {"kafka": 600}},
    {"event": HOSTILE, "at": 4_100},
    {"event": "dead-letters", "at": 1_900, "epoch": 1, "counts": {"orders": {HOSTILE: 3}}},
    {"event": "dead-letters", "at": 3_900, "epoch": 2, "counts": {"orders": {"total": 2}}},
    {"event": "dead-letters", "at": 5_000, "epoch": 3, "counts": {"orders": {"total": 90}}},
    {"event": "something without a time"},
]
FACTS = Observations(
    inputs=1234,
    outputs=1000,
    expected=1000,
    keys=40,
    committed_epochs=2,
    kills=1,
    restarts=1,
    rejected={"totals": 2},
    not_audited={"files": "FileSink offers no audit"},
    notes=["a note"],
    evidence={
        **{check: Evidence(1000) for check in Check},
        Check.DUPLICATE: Evidence(1000, 7, (Violation("totals", 0, 12, HOSTILE),)),
        Check.WRONG_COUNT: SkippedCheck("no counts"),
    },
)
READS = [
    {"role": role, "operator": topic, "topic": topic, "partition": 0, "begin": 0, "end": end, "processed": processed}
    for role, topic, end, processed in (("input", "orders", 700, 690), ("output", "totals", 1010, None))
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    context = Context(job="order-totals", app="orders.py", reads=READS, events=EVENTS, spark="4.2.0")
    write(tmp_path / "report", judge(FACTS), context)
    return tmp_path / "report"


def test_the_json_report_has_verdict_counts_checks_and_offenders(directory: Path) -> None:
    report = json.loads((directory / "report.json").read_text())

    assert ("FAIL", 1234, 1000) == (report["verdict"], report["counts"]["inputs"], report["counts"]["outputs"])
    assert report["dead_letters"] == {"orders": {HOSTILE: 3, "total": 2}}, "of epochs that were committed"
    assert report["rejected"] == {"totals": 2}
    checks = {check["check"]: check for check in report["checks"]}
    assert {check.value for check in Check} == set(checks)
    assert {"topic": "totals", "partition": 0, "offset": 12, "detail": HOSTILE} == checks["duplicate"]["first"][0]
    assert ("skipped", "no counts") == (checks["wrong count"]["status"], checks["wrong count"]["reason"])


def test_the_page_escapes_what_comes_from_records_and_loads_nothing(directory: Path) -> None:
    page = (directory / "report.html").read_text()

    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "src=" not in page and "@import" not in page
    assert "<svg" in page and "FileSink offers no audit" in page


def test_deaths_are_told_by_the_survivors() -> None:
    clean = [{"event": "started"}, {"event": "stopped"}, {"event": "started"}, {"event": "failed"}]
    worker = {"event": "restarting", "reason": "worker 7 was killed by signal 9"}
    supervisor = {"event": "started"}

    assert [] == deaths([*clean, {"event": "restarting", "reason": "the broker did not answer"}])
    assert [worker, supervisor] == deaths([*clean, {"event": "started"}, worker, supervisor])


def test_a_life_counts_restarts_after_the_first_start_and_ignores_unknown_events() -> None:
    story = life(EVENTS)

    assert ((1.0, 400), (3.0, 1000)) == story.committed
    assert {"kill": (1.5,), "restart": (2.0,)} == story.marks
