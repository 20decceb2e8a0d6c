"""What the dashboard makes of a job's directory."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.status_file import STATUS, StatusFile
from kafka_eos.monitoring.dashboard import job_directories as reading
from kafka_eos.monitoring.dashboard import job_facts as facts
from kafka_eos.monitoring.dashboard.epoch_history import epochs, list_incidents
from kafka_eos.monitoring.dashboard.rates import Rates
from kafka_eos.plan.explain import describe_plan
from kafka_eos.storage import object_names as paths
from kafka_eos.testing import ListSource, MemorySink

SECRET = "hunter2"


def plan_told() -> dict[str, Any]:
    pipeline = Pipeline("orders")
    rows = pipeline.source(ListSource([("a", 1)]), name="in").key_by(lambda row: row[0], name="by-user")
    rows.fold(
        init=int, step=lambda total, row: total + row[1], emit=lambda key, total: [(key, total)], name="total"
    ).sink(MemorySink(), name="out")
    settings = Settings.resolve(code={"kafka_config": {"sasl.password": SECRET}}, cli={"batch_size": 7})
    return describe_plan(pipeline.plan(), settings)


PROGRESS = {
    "records_in": 1200,
    "records_out": 30,
    "lag": 5,
    "read": {"in": {"records": 1200, "splits": {"t/0": {"position": {"offset": 1200}, "lag": 5}}}},
    "written": {"out": 30},
    "segments": {"in": {"busy": 1.0, "reading": 0.5, "blocked": 2.0}, "by-user": {"busy": 4.0, "blocked": 0.0}},
    "waiting": {"g": {"slowest": None, "waiting": {"in": ["t/0"]}}},
}
DECIDED = {
    "epoch": 7,
    "state_bytes_by_operator": {"total": 2_000_000},
    "pending_timers": {"total": 3},
    "watermarks": {"in-times": {"t/0": 99}},
}


def told(home: Path, *, runs: bool = True) -> dict[str, Any]:
    """The facts of a job that has shown a plan, some progress and an epoch."""
    (home / "orders").mkdir(parents=True)
    file = StatusFile(home / "orders")
    file("plan", plan_told())
    file("running", {"term": 1, "base": 0, "parallelism": 2})
    file("decided", DECIDED)
    bad = {"where": "in/0/7", "operator": "total", "reason": "ValueError: no"}
    file("dead-letters", {"total": {"in": {"total": 3}}, "first": {"in": [bad]}})
    file("progress", PROGRESS)
    file("restarting", {"what": "worker ended", "reason": "SIGKILL", "in_a_row": 1})
    file("running", {"term": 2, "base": 7, "parallelism": 2})
    with ExitStack() as held:
        if runs:
            held.enter_context(job_lock(home / "orders" / paths.LOCK, "orders"))
        found = reading.read_job(home, "orders")
    assert found is not None
    return dict(facts.build_details(found))


def test_each_operator_has_what_is_known_of_it_and_the_segment_that_it_works_in(tmp_path: Path) -> None:
    operators = {each["name"]: each for each in told(tmp_path)["operators"]}

    assert [(each["name"], each["inputs"]) for each in operators.values()] == [
        ("in", []), ("by-user", ["in"]), ("total", ["by-user"]), ("out", ["total"]),
    ]  # fmt: skip
    assert {name: each["segment"] for name, each in operators.items()} == {
        "in": "in", "by-user": "by-user", "total": "by-user", "out": "by-user",
    }  # fmt: skip
    assert (operators["in"]["read"], operators["out"]["written"]) == (1200, 30)
    assert (operators["total"]["state_bytes"], operators["total"]["timers"]) == (2_000_000, 3)


def test_partitions_watermarks_dead_letters_and_messages_are_told(tmp_path: Path) -> None:
    job = told(tmp_path)

    assert job["splits"] == [{"source": "in", "split": "t/0", "position": 1200, "lag": 5, "waits": True}]
    assert job["watermarks"] == [{"operator": "in-times", "split": "t/0", "at": 99}]
    assert job["dead"] == [{"source": "in", "operator": "total", "count": 3}]
    assert job["refused"] == [{"source": "in", "where": "in/0/7", "operator": "total", "reason": "ValueError: no"}]
    assert [(each["event"], each["text"]) for each in job["errors"]] == [("restarting", "worker ended: SIGKILL")]
    assert (job["state"], job["restarts"], job["has_diary"]) == ("running", 1, False)


def test_settings_have_their_origin_and_show_no_secret(tmp_path: Path) -> None:
    job = told(tmp_path)
    settings = {each["name"]: (each["value"], each["origin"]) for each in job["settings"]}

    assert settings["batch_size"] == ("7", "cli")
    assert settings["kafka_config"][1] == "code"
    assert SECRET not in json.dumps(job) + (tmp_path / "orders" / STATUS).read_text()


def test_a_job_whose_supervisor_is_gone_without_a_word_was_killed(tmp_path: Path) -> None:
    job = told(tmp_path, runs=False)

    assert (job["state"], job["fault"], job["pid"]) == ("killed", True, None)


@pytest.mark.parametrize("text", ['{"pid": 1, "at"', '{"pid": 1, "at": 5, "counts": {}, "last": {}}'])
def test_a_status_that_is_broken_or_of_an_earlier_version_leaves_gaps(tmp_path: Path, text: str) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / STATUS).write_text(text)
    found = reading.read_job(tmp_path, "orders")

    assert found is not None
    job: Any = facts.build_details(found)
    assert (job["operators"], job["settings"], job["epoch"]) == ([], [], None)
    assert bool(job["errors"]) == text.endswith('"at"')


def test_only_jobs_of_the_directory_are_found(tmp_path: Path) -> None:
    told(tmp_path / "home")
    (tmp_path / STATUS).write_text("{}")

    assert reading.list_jobs(tmp_path / "home") == ["orders"]
    assert [reading.read_job(tmp_path / "home", name) for name in ("..", "", "other", "orders/../orders")] == [None] * 4


def test_of_a_long_diary_the_end_is_read_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    told(tmp_path)
    line = json.dumps({"event": "decided", "epoch": 1, "text": "x" * 1000})
    (tmp_path / "orders" / paths.HISTORY).write_text(f"{line}\n" * 1000 + '{"event": "stopped"}\n{"eve')
    found = reading.read_job(tmp_path, "orders")

    assert found is not None and found.history is not None
    assert 400 < len(found.history) < 600
    assert found.history[-1] == {"event": "stopped"}


# ---------------------------------------------------------------- the diary


def test_an_epoch_has_its_phases_and_one_that_is_not_committed_has_no_commit() -> None:
    decided = {
        "event": "decided",
        "seconds": 0.1,
        "aligning_ms": 20.0,
        "blocked_ms": 5.0,
        "records_by_sink": {"out": 4},
    }
    found: Any = epochs([
        {**decided, "epoch": 1, "at": 1000},
        {"event": "committed", "epoch": 1, "term": 3, "at": 1030},
        {"event": "aborted", "epoch": 2, "at": 1500},
        {**decided, "epoch": 3, "at": 2000, "aligning_ms": 300.0},
        {"event": "committed", "epoch": 0, "at": 2000},
    ])  # fmt: skip

    assert [each["epoch"] for each in found] == [1, 2, 3]
    assert [found[0][phase] for phase in ("align", "snapshot", "store", "commit")] == [20, 5, 75, 30]
    assert (found[0]["records"], found[0]["term"], found[1]["aborted"]) == (4, 3, True)
    assert [found[2][phase] for phase in ("align", "snapshot", "store", "commit")] == [100, 0, 0, None]


def test_kills_are_told_with_their_reasons_and_how_long_it_took_to_come_back() -> None:
    running = {"event": "running", "base": 0, "term": 1, "parallelism": 2}
    diary = [
        {"event": "started", "at": 0},
        {**running, "at": 100},
        {"event": "restarting", "what": "worker ended", "reason": "worker 5 was killed by signal 9", "at": 200},
        {**running, "at": 900},
        {"event": "started", "at": 2000},
        {**running, "at": 2500},
    ]
    found: Any = list_incidents(diary, held=True)

    assert [(each["event"], each.get("back")) for each in found] == [
        ("running", None), ("started", 500), ("killed", None), ("running", None), ("restarting", 700),
        ("running", None), ("started", 100),
    ]  # fmt: skip
    assert found[4]["text"] == "worker 5 was killed by signal 9"


def test_a_worker_that_hangs_is_told_with_where_it_is_and_one_that_is_silent_with_why() -> None:
    who = {"at": 5, "worker": 1, "process": 7, "seconds": 31.2}
    hung = {**who, "event": "hung", "place": "operator total, record in/0/7", "stacks": "in forever"}
    silent = {**who, "event": "unresponsive", "stacks": "process 7 did not respond within 2 s: it is stopped (SIGSTOP)"}
    found: Any = list_incidents([{"event": "started", "at": 0}, hung, silent], held=True)

    told = {each["event"]: (each["title"], each["text"], each["fault"]) for each in found}
    assert told["hung"] == (
        "worker 1 is alive but made no progress for 31 s", "at operator total, record in/0/7\nin forever", True,
    )  # fmt: skip
    assert told["unresponsive"] == ("worker 1 sent no heartbeat for 31 s", silent["stacks"], True)


@pytest.mark.parametrize(("end", "held", "newest"), [
    ([], True, "started"),
    ([], False, "killed"),
    ([{"event": "stopped", "at": 9}], False, "stopped"),
    ([{"event": "failed", "error": "Fatal", "reason": "no disk", "at": 9}], False, "failed"),
])  # fmt: skip
def test_how_the_newest_run_ended_is_told(end: list[dict[str, Any]], held: bool, newest: str) -> None:
    found: Any = list_incidents([{"event": "started", "at": 0}, *end], held)

    assert found[0]["event"] == newest


# ---------------------------------------------------------------- rates


def status(at: int, records: int, busy: float, term: int = 1) -> dict[str, Any]:
    progress = {"records_in": records, "records_out": 0, "read": {"in": {"records": records}}, "written": {"out": 0}}
    last = {"running": {"term": term, "parallelism": 2}, "progress": {**progress, "segments": {"in": {"busy": busy}}}}
    return {"pid": 1, "last": last, "when": {"running": 0, "progress": at}}


def test_rates_are_of_the_last_seconds_and_shares_of_all_workers() -> None:
    rates = Rates()

    assert rates.update(status(1000, 100, 0.0)) is None
    found: Any = rates.update(status(3000, 500, 1.0))
    assert (found["in"], found["read"], found["segments"]) == (200, {"in": 200}, {"in": {"busy": 0.25}})
    assert rates.update(status(3000, 500, 1.0)) == found
    rates.update(status(9000, 500, 1.0))
    later: Any = rates.update(status(14_500, 500, 1.0))
    assert later["in"] == 0, "what was before the window counts no more"


def test_nothing_is_computed_across_a_restart() -> None:
    rates = Rates()
    rates.update(status(1000, 100, 0.0))
    rates.update(status(2000, 200, 0.0))

    assert rates.update(status(3000, 10, 0.0, term=2)) is None
    before_the_first = status(3500, 10, 0.0, term=3)
    before_the_first["when"]["running"] = 3600
    assert rates.update(before_the_first) is None, "what the session before has told"
