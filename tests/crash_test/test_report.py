"""The page of a crash test, from facts that were measured elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kafka_eos.devtools.crash_test.chart import HEIGHT, WIDTH, draw
from kafka_eos.devtools.crash_test.directory import CrashTestDirectory
from kafka_eos.devtools.crash_test.report import render, write_files

FACTS: dict[str, Any] = {
    "outcome": "PASS",
    "headline": "PASS: 10 in",
    "engine": "embedded",
    "unit": "worker",
    "made_at": "now",
    "command": "kafka-eos demo",
    "versions": {"kafka-eos": "0"},
    "planned": [{"title": "worker 1 killed from outside", "when": "2 epochs later"}],
    "struck": [
        {"victim": "worker", "title": "worker 1 killed from outside", "at": 6.0, "epoch": 2, "epochs_since": 2,
         "written": 4, "under_load": True, "recovered_in": 1.0},
        {"victim": "job", "title": "parallelism 2 → 3", "at": 8.0, "epoch": 4, "epochs_since": 2,
         "written": 8, "under_load": True, "recovered_in": 2.0},
    ],
    "steps": [{"at": 0.0, "text": "starting"}],
    "samples": [[1.0, 0, 0, 0], [2.0, 1, 0, 1], [7.0, 5, 4, 1], [12.0, 10, 9, 0], [14.0, 10, 9, 0]],
    "commits": [5.0, 8.0, 12.0],
    "sessions": [{"at": at, "parallelism": p} for at, p in [(1.5, 2), (7.0, 2), (10.0, 3), (13.0, 3)]],
    "processes": [
        {"name": "worker 1", "pid": 11, "since": 1.0, "until": 6.0},
        {"name": "supervisor", "pid": 9, "since": 0.5, "until": 12.0},
        {"name": "worker 1", "pid": 12, "since": 7.0, "until": None},
        {"name": "worker 2", "pid": 13, "since": 13.0, "until": None},
    ],
    "outputs": ["topic totals", "Parquet files in run/paid-orders"],
    "no_table": None,
    "app": "shop.py",
    "input": "10 generated rows",
    "findings": [],
    "calls": [{"function": "add (shop.py, line 7)", "operator": "total", "without_faults": 90, "under_faults": 97}],
    "missed": [],
    "unreached": [],
    "audit": None,
    "state_audit": None,
}  # fmt: skip


def test_a_band_is_one_parallelism_however_many_sessions_it_had() -> None:
    bands = draw(FACTS).bands

    assert [band["parallelism"] for band in bands] == [2, 3]
    assert (bands[0]["x"], bands[0]["width"]) == (0.0, bands[1]["x"])
    assert bands[1]["x"] + bands[1]["width"] == WIDTH


def test_each_name_has_a_lane_the_leader_first_and_what_lived_only_after_the_picture_has_none() -> None:
    lanes = draw(FACTS).lanes

    assert [lane.name for lane in lanes] == ["supervisor", "worker 1"]
    assert [(bar["pid"], bar["ended"]) for bar in lanes[1].bars] == [(11, True), (12, False)]
    assert lanes[1].bars[0]["x"] == 0.0 and lanes[0].y > HEIGHT


def test_the_page_shows_parallelisms_and_processes() -> None:
    page = render(FACTS)

    assert ">2 workers<" in page and ">3 workers<" in page and "process 11" in page
    assert "rescaling" in page


def test_the_page_says_where_the_job_wrote_and_why_not() -> None:
    assert "topic totals, Parquet files in run/paid-orders." in render(FACTS)
    assert "No table: PostgreSQL is not installed" in render({**FACTS, "no_table": "PostgreSQL is not installed"})


def test_calls_under_faults_are_compared_with_calls_without() -> None:
    page = " ".join(render(FACTS).split())

    assert '<td class="number">97</td> <td class="number">7</td>' in page


def test_a_test_that_saw_nothing_has_a_page_too() -> None:
    nothing: dict[str, Any] = {name: [] for name in ("struck", "samples", "commits", "sessions", "processes", "steps")}

    assert "planned, did not happen: worker 1" in render({**FACTS, **nothing, "missed": ["worker 1 killed"]})


def test_the_page_shows_findings_in_the_code_and_what_was_not_killed_or_compared() -> None:
    finding = {"kind": "side effect", "function": "add (shop.py, line 7)", "operator": "total",
               "line": "shop.py:8: open(…)", "detail": "writes a file", "fails": True}  # fmt: skip
    audit = {"headline": "PARTIAL", "checks": [], "skipped": {}, "not_compared": ["sink totals: timers"], "notes": [],
             "invisible": 3, "committed_epochs": 9}  # fmt: skip
    page = render({**FACTS, "findings": [finding], "unreached": ["align.barrier"], "audit": audit})

    assert "add (shop.py, line 7)" in page and "shop.py:8: open(…)" in page
    assert "does not pass these steps, so nothing was killed there: align.barrier" in page
    assert "Not compared: sink totals: timers" in page


def test_lone_surrogates_and_markup_of_records_are_escaped_in_both_files(tmp_path: Path) -> None:
    check = {"name": "lost", "question": "Is none lost?", "found": 1, "first": ["orders/0/7: \ud800<script>"]}
    audit = {"headline": "FAIL", "checks": [check], "skipped": {}, "not_compared": [], "notes": [],
             "invisible": 0, "committed_epochs": 9}  # fmt: skip
    home = CrashTestDirectory(tmp_path)

    write_files(home, {**FACTS, "audit": audit})

    assert json.loads(home.json.read_text(encoding="utf-8"))["audit"]["checks"] == [check]
    assert "orders/0/7: \\ud800&lt;script&gt;" in home.html.read_text(encoding="utf-8")
