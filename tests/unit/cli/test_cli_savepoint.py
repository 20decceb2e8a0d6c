"""The commands for savepoints and stored state, and how a running job is asked. Golden jobs stand in for real ones."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app as cli
from kafka_eos.cli.savepoints import write_offline_savepoint
from kafka_eos.config.settings import Settings
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_lock import is_held, job_lock
from kafka_eos.coordination.job_requests import (
    JobRequest,
    RequestAnswer,
    RequestUnanswered,
    StopJob,
    TakeCheckpoint,
    TakeSavepoint,
)
from kafka_eos.core.errors import ConfigError, Fatal, JobLocked
from kafka_eos.savepoints import SavepointBuilder
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from tests.commands import run_command

GOLDEN = Path(__file__).parents[2] / "golden"
JOB = "golden-rocksdb"
APP = f"""
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.files import FileSink

pipeline = Pipeline("{JOB}")
pipeline.source(KafkaSource("in"), name="in").sink(FileSink("out"), name="out")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with an app and the checkpoints of its job."""
    (tmp_path / "app.py").write_text(APP)
    shutil.copytree(GOLDEN / "job" / JOB, tmp_path / ".kafka-eos" / JOB)
    return tmp_path


def kafka_eos(directory: Path, *arguments: str) -> tuple[int, str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_EOS_", "COLUMNS"))}
    return run_command(directory, *arguments, environment=env)


def job_dir(home: Path) -> Path:
    return home / ".kafka-eos" / JOB


# ---------------------------------------------------------------- savepoint


def test_a_savepoint_is_signed_for_a_job_with_keys_and_until_then_refused(home: Path, tmp_path: Path) -> None:
    code, out, shown = kafka_eos(home, "savepoint", "trigger", "app.py")
    assert code == 0, shown
    path = out.strip()
    (tmp_path / "keys").write_text("ab" * 32)
    (home / "kafka-eos.toml").write_text(f'checkpoint_key_file = "{tmp_path / "keys"}"\n')

    code, _, shown = kafka_eos(home, "savepoint", "verify", path)
    assert code != 0 and "savepoint.json: it has no signature" in shown
    code, _, shown = kafka_eos(home, "savepoint", "trigger", "app.py", "--path", str(tmp_path / "other"))
    assert code != 0 and "it has no signature" in shown
    assert kafka_eos(home, "savepoint", "sign", path)[0] == 0
    assert kafka_eos(home, "savepoint", "verify", path)[0] == 0

    (home / "kafka-eos.toml").unlink()
    assert kafka_eos(home, "savepoint", "verify", path)[0] == 0
    code, _, shown = kafka_eos(home, "savepoint", "sign", path)
    assert code != 0 and "nothing to sign with" in shown


def test_a_savepoint_is_made_listed_verified_and_dropped(home: Path) -> None:
    code, out, shown = kafka_eos(home, "savepoint", "trigger", "app.py")
    assert code == 0, shown
    path = Path(out.strip())
    assert path.parent == home / ".kafka-eos" / f"{JOB}.savepoints"

    code, out, _ = kafka_eos(home, "savepoint", "list", "app.py", "--json")
    (listed,) = map(json.loads, out.splitlines())
    assert (listed["path"], listed["epoch"], listed["id"]) == (str(path), 2, savepoints.read_savepoint(path).id)
    assert str(path) in kafka_eos(home, "savepoint", "list", "app.py")[1]
    assert kafka_eos(home, "savepoint", "verify", str(path))[0] == 0

    assert kafka_eos(home, "savepoint", "drop", str(path))[0] == 0
    assert not path.exists()
    assert kafka_eos(home, "savepoint", "list", "app.py")[1].startswith("no savepoints in ")


def listed(home: Path, *arguments: str) -> list[dict[str, str]]:
    """What ``savepoint list`` shows, as path below ``home``, epoch and problem."""
    code, out, shown = kafka_eos(home, "savepoint", "list", *arguments, "--json")
    assert code == 0, shown
    rows = map(json.loads, filter(lambda line: line.startswith("{"), out.splitlines()))
    return [{**row, "path": os.path.relpath(row["path"], home)} for row in rows]


def test_savepoints_elsewhere_are_listed_until_they_are_gone_and_then_as_gone(home: Path) -> None:
    settings = Settings.resolve(cli={"checkpoint_dir": home / ".kafka-eos"})
    own = f".kafka-eos/{JOB}.savepoints/own"
    for path in ("backup/one", "backup/two", "backup/three", own):
        write_offline_savepoint(settings, JOB, home / path)
    shutil.rmtree(home / "backup/two")
    shutil.rmtree(home / "backup/three")
    shutil.copytree(GOLDEN / "savepoint", home / "backup/three")

    rows = listed(home, "app.py")

    assert [row["path"] for row in rows] == [own, "backup/one", "backup/two", "backup/three"]
    problems = [row["problem"].split(",")[0] for row in rows]
    assert problems == ["", "", "missing: dropped", "missing: another savepoint"]
    assert {(row["job"], row["epoch"]) for row in rows} == {(JOB, 2)}

    moved = shutil.move(home / ".kafka-eos", home / "moved")
    found = listed(home, "app.py", "--checkpoint-dir", str(moved))
    assert [row["id"] for row in found] == [row["id"] for row in rows], "known by its id, and not twice"
    assert [row["path"] for row in listed(home, "--path", "backup")] == ["backup/one", "backup/three"]


@pytest.mark.parametrize("arguments", [(), ("app.py", "--path", ".")])
def test_list_is_told_whose_or_where(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["savepoint", "list", *arguments])

    assert isinstance(done.exception, ConfigError) and "give either a job or its pipeline file" in str(done.exception)


def test_a_savepoint_of_an_older_checkpoint_asks_nothing_of_the_running_job(home: Path) -> None:
    with supervisor(job_dir(home), {}) as served:
        code, out, shown = kafka_eos(home, "savepoint", "trigger", "app.py", "--epoch", "1", "--path", "one")

    assert (code, out.strip(), served) == (0, str(home / "one"), []), shown
    assert (savepoints.read_savepoint(home / "one").epoch, savepoints.find_damage(home / "one")) == (1, [])
    assert [(row["path"], row["epoch"]) for row in listed(home, "app.py")] == [("one", 1)]

    code, _, shown = kafka_eos(home, "savepoint", "trigger", "app.py", "--epoch", "7")
    assert code == 2 and "has no stored and committed epoch 7; committed and still stored: 1, 2" in shown


def test_verify_finds_damage(home: Path) -> None:
    shutil.copytree(GOLDEN / "savepoint", home / "copy")
    victim = next((home / "copy" / "files").iterdir())
    victim.write_bytes(victim.read_bytes()[:-1])

    code, out, _ = kafka_eos(home, "savepoint", "verify", "copy")

    assert code == 1 and victim.name in out


@pytest.mark.parametrize("path", [".kafka-eos", f".kafka-eos/{JOB}", "app.py", "nowhere"])
def test_drop_refuses_anything_else(home: Path, path: str) -> None:
    before = sorted(home.rglob("*"))

    code, _, shown = kafka_eos(home, "savepoint", "drop", path)

    assert (code, sorted(home.rglob("*"))) == (2, before)
    assert f"ConfigError: {path} is not a savepoint directory: nothing was removed" in shown


def test_a_taken_path_is_refused_before_anything_is_asked(home: Path) -> None:
    with job_lock(job_dir(home) / paths.LOCK, JOB):
        code, _, shown = kafka_eos(home, "savepoint", "trigger", "app.py", "--path", ".kafka-eos")

    assert code == 2 and "exists already" in shown


def test_a_place_where_nothing_can_be_made_is_named(home: Path) -> None:
    code, _, said = kafka_eos(home, "savepoint", "trigger", "app.py", "--path", "/proc/savepoint")

    assert code == 2
    assert "savepoint /proc/savepoint cannot be written: " in " ".join(said.split())


def test_a_job_without_checkpoints_has_no_savepoint(home: Path) -> None:
    code, _, shown = kafka_eos(home, "savepoint", "trigger", "app.py", "--checkpoint-dir", "elsewhere")

    assert code == 2 and f"no checkpoints of a job '{JOB}'" in shown
    assert not (home / "elsewhere").exists()


@pytest.mark.parametrize("command", [("stop", "app.py"), ("checkpoints", "trigger", "app.py")])
def test_a_job_that_does_not_run_cannot_be_asked(home: Path, command: tuple[str, ...]) -> None:
    code, _, shown = kafka_eos(home, *command)

    assert code == 2 and f"job '{JOB}' does not run" in shown


def test_stop_says_how_to_get_a_savepoint_of_a_job_that_has_stopped(home: Path) -> None:
    assert f"kafka-eos savepoint trigger {JOB}" in kafka_eos(home, "stop", "app.py", "--savepoint")[2]


def test_stop_now_makes_no_savepoint(home: Path) -> None:
    code, _, shown = kafka_eos(home, "stop", "app.py", "--now", "--savepoint")

    assert code == 2 and "--now skips the last checkpoint" in shown


# ---------------------------------------------------------------- begin with one


def test_run_from_what_is_no_savepoint(home: Path) -> None:
    text = APP.replace(JOB, "other").replace('FileSink("out")', f'FileSink("{home}")')
    (home / "app.py").write_text(text)

    code, _, shown = kafka_eos(home, "run", "app.py", "--from", "nowhere")

    assert code == 2 and "ConfigError: nowhere is not a savepoint" in shown


def test_a_job_that_began_without_one_is_refused(home: Path) -> None:
    savepoint = str(GOLDEN / "savepoint")

    code, _, shown = kafka_eos(home, "run", "app.py", "--from", savepoint)

    assert code == 2 and "has already begun, without a savepoint" in shown
    assert not (job_dir(home) / paths.ORIGIN).exists()


# ---------------------------------------------------------------- state


def test_state_is_listed(home: Path) -> None:
    code, out, _ = kafka_eos(home, "state", "list", f".kafka-eos/{JOB}")
    assert code == 0
    assert f"job {JOB}, epoch 2\n" in out and "counted-avro" in out

    described = [
        json.loads(line)
        for line in kafka_eos(home, "state", "list", str(GOLDEN / "savepoint"), "--json")[1].splitlines()
    ]
    assert [(d["operator"], d["name"], d["kind"]) for d in described] == [
        ("largest", "accumulator", "value"),
        ("seen", "count", "value"),
        ("seen", "ids", "value"),
        ("total", "accumulator", "value"),
    ]


@pytest.mark.parametrize("where", [f".kafka-eos/{JOB}", JOB, f"{JOB}@2", str(GOLDEN / "savepoint")])
def test_state_is_read(home: Path, where: str) -> None:
    _, out, _ = kafka_eos(home, "state", "read", where, "--operator", "seen", "--state", "ids")
    found = {row["key"]: row["value"] for row in map(json.loads, out.splitlines())}
    assert found == {f"a{n}": [n, n + 20, n + 40] for n in range(20)}

    _, out, _ = kafka_eos(home, "state", "read", where, "--operator", "total", "--key", "a3")
    assert json.loads(out) == {"key": "a3", "value": {"updates": 3, "accumulator": {"total": 20, "last": 43}}}


def test_state_is_written_to_a_file(home: Path) -> None:
    of_total = ("state", "read", f".kafka-eos/{JOB}", "--operator", "total")

    assert kafka_eos(home, *of_total, "--format", "parquet", "--output", "total.parquet")[0] == 0
    assert kafka_eos(home, *of_total, "--output", "total.jsonl")[0] == 0

    table = pyarrow.parquet.read_table(home / "total.parquet").to_pylist()
    assert table == [json.loads(line) for line in (home / "total.jsonl").read_text().splitlines()]
    assert len(table) == 20
    code, _, shown = kafka_eos(home, *of_total, "--output", "total.jsonl")
    assert code == 2 and "total.jsonl exists already" in shown


def test_state_that_is_read_changes_no_terminal(home: Path) -> None:
    """A key is a record's: \x9b begins a control sequence, as an escape character does."""
    key = "\x9b31m\x7f\u2028\u202e"
    with SavepointBuilder.new("orders") as builder:
        builder.bootstrap("total", "notes", [(key, "x")], value=str, kind="list")
        builder.write(home / "savepoint")

    _, out, _ = kafka_eos(home, "state", "read", "savepoint", "--operator", "total")

    assert out.removesuffix("\n").isprintable()
    assert json.loads(out) == {"key": [key, 0], "value": "x"}


@pytest.mark.parametrize(
    ("where", "options", "message"),
    [
        ("nowhere", (), "no job 'nowhere' in "),
        (f".kafka-eos/{JOB}@9", (), "contains no epoch 9; it contains 1, 2"),
        (f".kafka-eos/{JOB}", ("--operator", "tutal"), "it contains that of: largest, seen, total"),
        (f".kafka-eos/{JOB}", ("--operator", "seen"), "choose one of its states: count, ids"),
        (f".kafka-eos/{JOB}", ("--operator", "total", "--key", "zz"), "nothing for key 'zz'"),
        (f".kafka-eos/{JOB}", ("--operator", "total", "--format", "parquet"), "add --output"),
    ],
)
def test_what_cannot_be_read_is_explained(home: Path, where: str, options: tuple[str, ...], message: str) -> None:
    code, _, shown = kafka_eos(home, "state", "read", where, *(options or ("--operator", "total")))

    assert code == 2 and message in shown and "Traceback" not in shown


# ---------------------------------------------------------------- requests


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@contextmanager
def supervisor(directory: Path, answers: dict[type, RequestAnswer]) -> Iterator[list[JobRequest]]:
    """Whoever holds the lock and answers, until the block ends or it has served a stop."""
    served: list[JobRequest] = []
    held, over = threading.Event(), threading.Event()

    def work() -> None:
        with job_lock(directory / paths.LOCK, JOB):
            requests.clear_requests(directory)
            held.set()
            while not over.wait(0.01):
                for token, request, _ in requests.list_pending(directory):
                    served.append(request)
                    requests.write_answer(directory, token, answers[type(request)])
                    if isinstance(request, StopJob):
                        return

    thread = threading.Thread(target=work)
    thread.start()
    assert held.wait(10)
    try:
        yield served
    finally:
        over.set()
        thread.join(10)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (TakeCheckpoint(), RequestAnswer(epoch=7)),
        (TakeSavepoint(path="/backup/one"), RequestAnswer(epoch=7, path="/backup/one")),
        (TakeSavepoint(path="/backup/one", stop=True), RequestAnswer(epoch=8)),
        (StopJob(), RequestAnswer(epoch=9)),
        (StopJob(drain=False), RequestAnswer()),
    ],
)
def test_what_is_asked_is_answered_and_nothing_is_left(
    directory: Path, request_: JobRequest, answer: RequestAnswer
) -> None:
    with supervisor(directory, {type(request_): answer}) as served:
        assert requests.wait(directory, requests.submit(directory, request_), 30) == answer

    assert served == [request_]
    assert list((directory / paths.REQUESTS).iterdir()) == []


def test_the_reason_of_a_failure_comes_back(directory: Path) -> None:
    with (
        supervisor(directory, {TakeCheckpoint: requests.failure_answer(Fatal("no more"))}),
        pytest.raises(ConfigError, match="no more"),
    ):
        requests.wait(directory, requests.submit(directory, TakeCheckpoint()), 30)


def test_without_a_supervisor_the_wait_ends(directory: Path) -> None:
    with pytest.raises(RequestUnanswered, match="ended or was restarted"):
        requests.wait(directory, requests.submit(directory, TakeCheckpoint()), 30)

    assert requests.list_pending(directory) == []


def test_a_supervisor_does_not_do_what_another_one_was_asked(directory: Path) -> None:
    token = requests.submit(directory, StopJob())
    with supervisor(directory, {}) as served, pytest.raises(RequestUnanswered, match="ended or was restarted"):
        requests.wait(directory, token, 30)

    assert served == []


def test_a_request_that_is_not_served_in_time_is_withdrawn(directory: Path) -> None:
    with job_lock(directory / paths.LOCK, JOB):
        with pytest.raises(RequestUnanswered, match=r"no response within 0\.1 s"):
            requests.wait(directory, requests.submit(directory, StopJob()), 0.1)

        assert requests.list_pending(directory) == []


def test_a_request_of_another_version_is_answered_with_that(directory: Path) -> None:
    token = requests.submit(directory, TakeCheckpoint())
    (directory / paths.request_name(token)).write_text('{"type": "dance"}')

    with job_lock(directory / paths.LOCK, JOB):
        assert requests.list_pending(directory) == []
        with pytest.raises(ConfigError, match="does not support this request"):
            requests.wait(directory, token, 30)


def test_an_answered_request_is_not_pending(directory: Path) -> None:
    token = requests.submit(directory, TakeCheckpoint())

    requests.write_answer(directory, token, RequestAnswer(epoch=1))
    requests.write_answer(directory, token, RequestAnswer(epoch=2))

    assert requests.list_pending(directory) == []
    assert requests.wait(directory, token, 30) == RequestAnswer(epoch=1)


def test_looking_at_the_lock_does_not_keep_a_supervisor_from_it(directory: Path) -> None:
    lock, over = directory / paths.LOCK, threading.Event()
    lock.touch()

    def look() -> None:
        while not over.is_set():
            is_held(lock)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(20):
            with job_lock(lock, JOB):
                assert is_held(lock)
        with job_lock(lock, JOB), pytest.raises(JobLocked), job_lock(lock, JOB):
            pass
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()
    assert not is_held(lock)
    assert not is_held(directory / "nowhere")


def test_stop_waits_until_the_job_is_gone(home: Path) -> None:
    with supervisor(job_dir(home), {StopJob: RequestAnswer(epoch=3)}) as served:
        code, _, shown = kafka_eos(home, "stop", "app.py")

        assert code == 0, shown
        assert not is_held(job_dir(home) / paths.LOCK)
    assert served == [StopJob()]


def test_a_running_job_is_asked_for_the_savepoint(home: Path) -> None:
    target = home / "backup" / "one"
    with supervisor(job_dir(home), {TakeSavepoint: RequestAnswer(epoch=3, path=str(target))}) as served:
        code, out, shown = kafka_eos(home, "savepoint", "trigger", "app.py", "--path", "backup/one")

    assert (code, out.strip()) == (0, str(target)), shown
    assert served == [TakeSavepoint(path=str(target))]


def test_a_checkpoint_is_asked_for(home: Path) -> None:
    with supervisor(job_dir(home), {TakeCheckpoint: RequestAnswer(epoch=3)}):
        assert kafka_eos(home, "checkpoints", "trigger", "app.py")[:2] == (0, "epoch 3 is committed\n")
