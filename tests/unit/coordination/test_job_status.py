"""How jobs stand: what ``kafka-eos status`` and ``list`` make of what a job shows of itself, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.job_status import job_status
from kafka_eos.coordination.status_file import STATUS, StatusFile, read_status
from kafka_eos.monitoring.dashboard.job_directories import list_jobs, read_job
from kafka_eos.monitoring.dashboard.job_facts import build_summary
from kafka_eos.storage import object_names as paths

Told = Sequence[tuple[str, dict[str, Any]]]
RUNNING: Told = [("started", {"job": "orders"}), ("running", {"term": 1, "base": 0, "parallelism": 2})]
COMMITTED: Told = [
    ("progress", {"records_in": 1200, "records_out": 30, "lag": 5}),
    ("decided", {"epoch": 7, "state_bytes_by_operator": {"total": 2_000_000}}),
    ("dead-letters", {"total": {"orders": {"parse": 3}}}),
    ("set-aside", {"total": {"ship": 2, "mail": 4}}),
    ("committed", {"epoch": 7}),
]
KILLED = "the process was killed; no data is lost, the next start resumes from the last checkpoint"
BACK = ("restarting", {"what": "worker ended", "reason": "SIGKILL", "in_a_row": 1})


def shown(directory: Path, told: Told) -> Any:
    """What the file says after these events."""
    directory.mkdir(parents=True)
    file = StatusFile(directory)
    for event, facts in told:
        file(event, facts)
    file("notice", {"text": "waits for the broker"})  # written at once
    return read_status(directory)


def test_a_notice_is_no_reason_why_a_start_takes_long_once_something_else_has_happened(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    file = StatusFile(tmp_path / "orders")
    for event, facts in (*RUNNING[:1], ("notice", {"text": "the topic has one replica"}), ("recovered", {"term": 1})):
        file(event, facts)
    status = read_status(tmp_path / "orders")
    assert status is not None

    found = job_status("orders", status, True, 0)

    assert (found.state, found.reason) == ("starting", None)


def test_a_job_is_recovering_from_the_very_moment_of_the_restart() -> None:
    told = {"restarting": {"what": "worker ended", "reason": "SIGKILL"}}
    status = {"last": told, "when": {"running": 1, "restarting": 1}, "counts": {}, "pid": 7}

    found = job_status("orders", status, True, 1)

    assert (found.state, found.reason) == ("recovering", "worker ended: SIGKILL")


@pytest.mark.parametrize(
    ("told", "held", "how", "why"),
    [
        (RUNNING[:1], True, "starting", "waits for the broker"),
        (RUNNING, True, "running", None),
        ([*RUNNING, BACK], True, "recovering", "worker ended: SIGKILL"),
        ([*RUNNING, BACK, RUNNING[1]], True, "running", None),
        (RUNNING, False, "killed", KILLED),
        ([*RUNNING, ("stopped", {})], False, "stopped", None),
        ([*RUNNING, ("failed", {"error": "Fatal", "reason": "no disk"})], False, "failed", "Fatal: no disk"),
    ],
)
def test_what_a_job_shows_says_how_it_stands(tmp_path: Path, told: Told, held: bool, how: str, why: str | None) -> None:
    found = job_status("orders", shown(tmp_path / "orders", told), held, 0)

    assert (found.state, found.reason, found.is_fault) == (how, why, how in ("failed", "killed"))
    assert (found.pid is not None) == held


def test_the_age_of_a_commit_is_told_from_its_own_time(tmp_path: Path) -> None:
    status = shown(tmp_path / "orders", [*RUNNING, *COMMITTED])
    found = job_status("orders", status, True, status["when"]["committed"] + 40_000)

    assert (found.epoch, found.seconds_since_commit, found.lag, found.dead_letters) == (7, 40.0, 5, 3)
    assert found.set_aside == 6
    assert found.find_problem(60) is None
    assert found.find_problem(30) == "committed 40 s ago, but should every 30 s"


def test_a_running_job_whose_kafka_is_gone_says_so_first(tmp_path: Path) -> None:
    silent = {"kafka://a:9092": {"since": 1_000, "reason": "connection refused"}}
    status = shown(tmp_path / "orders", [*RUNNING, *COMMITTED, ("dependencies", {"answering": [], "silent": silent})])
    found = job_status("orders", status, True, status["when"]["committed"])
    seconds = (status["when"]["committed"] - 1_000) / 1000

    assert found.silence == f"kafka://a:9092 has not responded for {seconds:,.0f} s: connection refused"
    assert found.find_problem(60) == found.silence
    assert asked(tmp_path, "status", "orders", "--max-age", "1h", runs="orders")[0] == 1
    code, text = asked(tmp_path, "status", "orders", runs="orders")
    assert code == 0
    assert "running, process" in text.splitlines()[1]
    assert "kafka://a:9092 has not responded for" in text.splitlines()[1]
    assert job_status("orders", status, False, status["when"]["committed"]).silence is None, "it does not run"


def test_a_job_that_has_committed_nothing_yet_is_as_late_as_it_processes(tmp_path: Path) -> None:
    status = shown(tmp_path / "orders", RUNNING)

    assert job_status("orders", status, True, status["when"]["running"] + 5_000).seconds_since_commit == 5.0


def asked(home: Path, *arguments: str, runs: str | None = None) -> tuple[int, str]:
    """Exit code and output of the command; ``runs``: the job whose supervisor is there meanwhile."""
    with ExitStack() as held:
        if runs is not None:
            held.enter_context(job_lock(home / runs / paths.LOCK, runs))
        done = CliRunner().invoke(app, [*arguments, "--checkpoint-dir", str(home)])
    return done.exit_code, done.stdout


def test_a_probe_is_told_by_the_exit_code(tmp_path: Path) -> None:
    status = shown(tmp_path / "orders", [*RUNNING, *COMMITTED])
    file = tmp_path / "orders" / STATUS

    assert asked(tmp_path, "status", "orders", "--max-age", "1h", runs="orders")[0] == 0
    assert asked(tmp_path, "status", "orders")[0] == 1, "it was killed"
    assert asked(tmp_path, "status", "orders", "--max-age", "1h")[0] == 1
    file.write_text(json.dumps({**status, "when": {**status["when"], "committed": 0}}))
    assert asked(tmp_path, "status", "orders", runs="orders")[0] == 0
    assert asked(tmp_path, "status", "orders", "--max-age", "1h", runs="orders")[0] == 1


def test_a_job_that_was_stopped_in_order_is_no_fault_unless_it_should_run(tmp_path: Path) -> None:
    shown(tmp_path / "orders", [*RUNNING, *COMMITTED, ("stopped", {})])

    assert asked(tmp_path, "status", "orders")[0] == 0
    assert asked(tmp_path, "status", "orders", "--max-age", "1h")[0] == 1


def test_all_jobs_are_listed_for_people_and_for_programs(tmp_path: Path) -> None:
    shown(tmp_path / "orders", [*RUNNING, *COMMITTED])
    shown(tmp_path / "clicks", [*RUNNING, ("stopped", {})])
    code, text = asked(tmp_path, "list", runs="orders")
    lines = [json.loads(line) for line in asked(tmp_path, "list", "--json", runs="orders")[1].splitlines()]

    assert code == 0 and "orders" in text and "stopped" in text
    assert [(line["job"], line["state"], line["epoch"]) for line in lines] == [
        ("clicks", "stopped", None),
        ("orders", "running", 7),
    ]


@pytest.mark.parametrize("text", ['{"pid": 1, "las', "[]", '{"state": "ready"}'], ids=["cut", "a-list", "of-another"])
def test_a_status_that_is_damaged_or_of_another_program_hides_no_other_job(tmp_path: Path, text: str) -> None:
    shown(tmp_path / "orders", [*RUNNING, *COMMITTED])
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "status.json").write_text(text)
    lines = [json.loads(line) for line in asked(tmp_path, "list", "--json", runs="orders")[1].splitlines()]

    assert [(line["job"], line["state"]) for line in lines] == [("clicks", "unresponsive"), ("orders", "running")]
    assert f"{tmp_path / 'clicks' / 'status.json'} cannot be read: " in lines[0]["reason"]
    assert [build_summary(each)["job"] for name in list_jobs(tmp_path) if (each := read_job(tmp_path, name))] == [
        "clicks",
        "orders",
    ]


def test_a_probe_of_all_jobs_names_those_that_should_run_and_commit(tmp_path: Path) -> None:
    assert asked(tmp_path, "list", "--max-age", "1h")[0] == 1, "a directory without jobs may be mistyped"
    shown(tmp_path / "orders", [*RUNNING, *COMMITTED])
    shown(tmp_path / "clicks", [*RUNNING, ("stopped", {})])

    assert asked(tmp_path, "list", "--max-age", "1h", runs="orders")[0] == 0

    shown(tmp_path / "visits", [*RUNNING, *COMMITTED])
    assert asked(tmp_path, "list", "--max-age", "1h", runs="orders")[0] == 1, "visits was killed"
    assert asked(tmp_path, "list", runs="orders")[0] == 0


def test_one_job_is_told_whole(tmp_path: Path) -> None:
    shown(tmp_path / "orders", [*RUNNING, *COMMITTED])
    text = asked(tmp_path, "status", "orders", runs="orders")[1]

    for part in ("running, process", "1,200", "2.0 MB", "dead letters", "rows set aside"):
        assert part in text


def test_a_job_that_nobody_knows_and_an_age_that_is_none_are_refused(tmp_path: Path) -> None:
    unknown = CliRunner().invoke(app, ["status", "nobody", "--checkpoint-dir", str(tmp_path)])
    shown(tmp_path / "orders", RUNNING)
    senseless = CliRunner().invoke(app, ["status", "orders", "--max-age", "soon", "--checkpoint-dir", str(tmp_path)])

    assert "kafka-eos list" in str(unknown.exception)
    assert "--max-age" in str(senseless.exception)


def test_failpoints_that_are_armed_are_shown(tmp_path: Path) -> None:
    armed = ("started", {"job": "orders", "failpoints": "commit.before=kill@9"})
    status = shown(tmp_path / "orders", [armed, *RUNNING[1:]])

    assert job_status("orders", status, True, 0).failpoints == "commit.before=kill@9"
    printed = CliRunner().invoke(app, ["status", "orders", "--checkpoint-dir", str(tmp_path)]).output
    assert "armed, for tests only: commit.before=kill@9" in " ".join(printed.split())
