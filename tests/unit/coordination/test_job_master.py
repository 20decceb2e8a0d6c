"""What becomes of a job when an attempt of it fails, and what is left when it ends."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafka_eos._util import failpoints
from kafka_eos._util.failpoints import parse_script
from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.abc.context import JobContext
from kafka_eos.coordination import job_lock as lock
from kafka_eos.coordination import job_master
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.disk_space import DiskFull
from kafka_eos.coordination.job_history import read_events
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.coordination.status_file import STATUS
from kafka_eos.core.errors import (
    CommittableLost,
    ConfigError,
    CorruptCheckpoint,
    EnvironmentFailed,
    Fatal,
    JobLocked,
    LoginRefused,
    ProcessLost,
    RestartFromCheckpoint,
    Retryable,
    TransientConfigError,
)
from kafka_eos.core.ids import Term
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import MemorySink
from tests.unit.coordination.runs import JOB, Run, fails, signalled

# ---------------------------------------------------------------- attempts


@pytest.mark.parametrize(
    ("error", "setting", "what"),
    [
        (ProcessLost("SIGKILL"), "max_restarts", "worker ended"),
        (EnvironmentFailed("away"), "max_environment_failures", "the environment failed"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "max_environment_failures", "the environment failed"),
        (RestartFromCheckpoint("late"), "tolerated_checkpoint_failures", "attempt failed"),
        (OSError(errno.EIO, "torn"), "tolerated_checkpoint_failures", "attempt failed"),
    ],
)
def test_failures_of_a_kind_are_counted_until_they_are_too_many(
    tmp_path: Path, error: Exception, setting: str, what: str
) -> None:
    """Each is released, told, and followed by another attempt; a commit begins the count again."""
    given = {"max_restarts": 9, "max_environment_failures": 9, "tolerated_checkpoint_failures": 9, setting: 2}

    def commits(coordinator: Coordinator) -> None:
        run.master.emit("running")
        run.master.emit("decided", read={"numbers": 1})
        run.master.emit("committed")
        raise error

    run = Run(tmp_path, *fails(error, 2), commits, *fails(error, 4), **given)
    with pytest.raises(Fatal, match=rf"3 failures in a row without .*: {what}: .*\({setting}=2\)"):
        run.master.run()

    assert [facts["in_a_row"] for facts in run.of("restarting")] == [1, 2, 1, 2, 3]
    assert {facts["what"] for facts in run.of("restarting")} == {what}
    assert run.released[:5] == [error] * 5 and isinstance(run.released[5], Fatal)
    assert [facts["error"] for facts in run.of("failed")] == ["Fatal"]


@pytest.mark.parametrize(
    ("facts", "again"),
    [
        ({"read": {"numbers": 1}}, True),
        ({"records_by_sink": {"out": 1}}, True),
        ({}, False),
        ({"read": {"numbers": 1}, "unanswered": 3}, False),
    ],
)
def test_an_environment_works_again_when_an_epoch_tells_that(
    tmp_path: Path, facts: Mapping[str, Any], again: bool
) -> None:
    error = EnvironmentFailed("away")

    def commits(coordinator: Coordinator) -> None:
        run.master.emit("running")
        run.master.emit("decided", **facts)
        run.master.emit("committed")
        raise error

    run = Run(tmp_path, *[commits] * 2, restart_backoff_max=60.0)
    run.master.run()

    assert [told["in_a_row"] for told in run.of("restarting")] == ([1, 1] if again else [1, 2])


@pytest.mark.parametrize(
    "error", [LoginRefused("the password was changed"), TransientConfigError("the address leads to another cluster")]
)
def test_settings_that_matched_before_are_a_failure_of_the_environment(tmp_path: Path, error: ConfigError) -> None:

    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        raise error

    run = Run(tmp_path, attempt, *fails(error, 3), max_environment_failures=1)
    with pytest.raises(Fatal, match="the environment failed"):
        run.master.run()

    assert run.released[:2] == [error] * 2


def test_who_owns_the_job_is_asked_by_the_newest_term_of_the_run_before_the_next_attempt(tmp_path: Path) -> None:
    """A store that has lost the claim of this run is another one: it is waited for, and nothing is begun in it."""
    seen: list[int] = []
    away = tmp_path / "away"

    def loses(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        seen.append(coordinator.ownership.term.n)
        (run.root / JOB / paths.TERMS).rename(away)
        (run.root / JOB / paths.TERMS).mkdir()
        raise RestartFromCheckpoint("the store is away")

    def resumes(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        seen.append(coordinator.ownership.term.n)

    def bring_back(event: str, facts: Mapping[str, Any]) -> None:
        if event == "notice" and "who owns the job" in str(facts["text"]) and away.exists():
            (run.root / JOB / paths.TERMS).rmdir()
            away.rename(run.root / JOB / paths.TERMS)

    run = Run(tmp_path, *fails(RestartFromCheckpoint("early")), loses, *fails(RestartFromCheckpoint("once")), resumes)
    run.on = bring_back
    run.master.run()

    assert seen == [1, 2]
    assert not away.exists()


@pytest.mark.parametrize("tolerated", [0, 5])
def test_a_job_whose_disk_is_full_goes_on_when_there_is_room_unless_it_has_failed_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerated: int
) -> None:
    looked: list[list[Path]] = []

    def no_room(places: Iterable[Path]) -> None:
        looked.append([*places])
        if len(looked) < 3:
            raise DiskFull("no room")

    monkeypatch.setattr(job_master, "ensure_disk_space", no_room)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    run = Run(tmp_path / "jobs", *fails(full), state_dir=tmp_path / "state", max_environment_failures=tolerated)
    if tolerated:
        run.master.run()
        assert looked == [[tmp_path / "state" / JOB, tmp_path / "jobs" / JOB]] * 3
        assert [facts["text"] for facts in run.of("notice")][1:] == ["go on: no room; trying again"] * 2
    else:
        with pytest.raises(Fatal, match="max_environment_failures=0"):
            run.master.run()
        assert looked == []


def test_a_committer_is_closed_after_each_attempt(tmp_path: Path) -> None:
    closed: list[str] = []

    class Closing(MemorySink):
        def committer(self, ctx: JobContext) -> Any:
            committer = super().committer(ctx)
            committer.close = lambda: closed.append("closed")  # type: ignore[method-assign]
            return committer

    run = Run(tmp_path, *fails(ProcessLost("SIGKILL"), 2), sink=Closing())
    run.master.run()

    assert len(closed) == 3


# ---------------------------------------------------------------- the start


class Noticing(MemorySink):
    def __init__(self, *notices: str, error: Exception | None = None) -> None:
        super().__init__()
        self.notices, self.error, self.asked = notices, error, 0

    def check(self, ctx: JobContext) -> Sequence[str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.notices


def test_what_sinks_notice_is_told_and_they_are_asked_once_a_run(tmp_path: Path) -> None:
    sink = Noticing("one", "two", "three")
    run = Run(tmp_path, *fails(ProcessLost("SIGKILL"), 2), sink=sink)
    run.master.run()

    assert [facts["text"] for facts in run.of("notice")] == ["one", "two", "three"]
    assert sink.asked == 1


def test_armed_failpoints_are_a_notice_and_stand_in_status_and_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = parse_script("commit.before=kill@9")
    monkeypatch.setattr(failpoints, "_active", failpoints._Failpoints(script, str(tmp_path / "fired")))
    run = Run(tmp_path / "home")
    run.master.run()

    assert "FAILPOINTS ARE ARMED" in run.of("notice")[0]["text"]
    assert run.of("started")[0]["failpoints"] == "commit.before=kill@9"
    home = tmp_path / "home" / JOB
    assert [event.get("failpoints") for event in read_events(LocalStorage(home))[:1]] == ["commit.before=kill@9"]
    assert "commit.before=kill@9" in (home / STATUS).read_text()


def test_whatever_a_run_leaves_in_its_directory_is_its_owners_alone(tmp_path: Path) -> None:
    Run(tmp_path).master.run()

    left = [tmp_path / JOB, *(tmp_path / JOB).rglob("*")]
    assert {path.name for path in left if path.stat().st_mode & 0o077} == set()
    assert STATUS in {path.name for path in left}


def test_what_the_watermarks_of_an_epoch_tell_of_the_code_is_a_notice_for_each_operator(tmp_path: Path) -> None:
    def attempt(coordinator: Coordinator) -> None:
        for _ in range(2):
            run.master.emit("decided", watermarks={name: {"t/0": 1_700_000_000} for name in "abc"})

    run = Run(tmp_path, attempt)
    run.master.run()

    told = [str(facts["text"]) for facts in run.of("notice") if "look like seconds" in str(facts["text"])]
    assert sorted(text.split(" look")[0] for text in told) == [f"the times of {name!r}" for name in "abc"]


def test_a_start_whose_sink_does_not_answer_is_no_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path, *fails(Fatal("an attempt")), sink=Noticing(error=Retryable("nobody there")))

    with pytest.raises(Retryable, match=r"^the job cannot start: .*nobody there.* Fix this, then start again"):
        run.master.run()
    assert run.claims() == 0


def test_a_run_begins_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Neither what a dead process was writing, nor the dead letters that it shows."""
    Run(tmp_path).master.run()
    home = tmp_path / JOB
    (home / paths.DEAD_LETTER_SAMPLES).write_text("{}")
    torn = home / paths.TERMS / ".tmp-torn"
    torn.write_text("half")

    def attempt(coordinator: Coordinator) -> None:
        seen.append((torn.exists(), (home / paths.DEAD_LETTER_SAMPLES).exists()))

    seen: list[tuple[bool, bool]] = []
    Run(tmp_path, attempt).master.run()

    assert seen == [(False, False)]


def test_the_lock_of_a_job_and_those_of_its_state_are_held_as_long_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_LOOKED_AT", 0.05)
    states = [tmp_path / name for name in ("one", "two", "three")]
    files = [tmp_path / "jobs" / JOB / paths.LOCK, *(state / JOB / paths.LOCK for state in states)]

    def attempt(coordinator: Coordinator) -> None:
        held.append([is_held(file) for file in files])
        for state in states:
            with pytest.raises(JobLocked, match="another state_dir"):
                Run(tmp_path / "other", state_dir=state).master.run()
        with pytest.raises(JobLocked, match="is already run by process"):
            Run(tmp_path / "jobs").master.run()

    held: list[list[bool]] = []
    Run(tmp_path / "jobs", attempt, state_dir=states).master.run()

    assert held == [[True] * 4]
    assert not any(map(is_held, files))


def test_an_attempt_serves_what_is_asked_of_its_run(tmp_path: Path) -> None:
    """A savepoint is written to its end though the job has ended meanwhile."""

    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        tokens.append(requests.submit(home, requests.TakeSavepoint(path=str(tmp_path / "savepoint"))))
        desk = run.master.new_request_handler
        desk.poll(1.0)
        epoch = coordinator.ownership.next_epoch()
        desk.on_triggered(epoch)
        manifest = coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), ()))
        coordinator.epochs.commit(manifest)
        desk.on_committed(manifest)

    tokens, home = list[str](), tmp_path / "jobs" / JOB
    run = Run(tmp_path / "jobs", attempt)
    run.master.run()

    (asked,) = run.of("requested")
    assert asked["what"] == f"savepoint {tmp_path / 'savepoint'}"
    assert str(asked["by"]).endswith(f", process {os.getpid()}")
    assert [event["by"] for event in read_events(run.storage) if event["event"] == "requested"] == [asked["by"]]
    assert requests.wait(home, tokens[0], 30).path == str(tmp_path / "savepoint")
    assert (tmp_path / "savepoint" / paths.SAVEPOINT).exists()
    assert [event for event, _ in run.told].index("stopped") == len(run.told) - 1


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("error", [ConfigError("wrong"), Fatal("worse"), RetryInterrupted("on request")])
def test_a_run_that_ends_finishes_what_is_decided_and_leaves_nothing_open(tmp_path: Path, error: Exception) -> None:
    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        run.decides(coordinator)
        run.prepares(coordinator)
        raise error

    run = Run(tmp_path, attempt)
    with pytest.raises(type(error)):
        run.master.run()

    assert (run.sink.committed, run.sink.prepared) == ([2], [])
    assert run.released == [error]
    assert run.claims() == 2


@pytest.mark.parametrize("error", [CommittableLost("gone"), CorruptCheckpoint("damaged")])
def test_what_only_a_person_may_decide_is_left_as_it_is(tmp_path: Path, error: Exception) -> None:
    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        run.decides(coordinator)
        run.prepares(coordinator)
        raise error

    run = Run(tmp_path, attempt)
    with pytest.raises(type(error)):
        run.master.run()

    assert (run.sink.committed, sorted(run.sink.prepared)) == ([], [1, 2])
    assert run.claims() == 1


@pytest.mark.parametrize("error", [ConfigError("wrong"), Fatal("worse"), RetryInterrupted("on request")])
def test_a_run_that_has_recovered_nothing_clears_nothing_up(tmp_path: Path, error: Exception) -> None:
    run = Run(tmp_path, *fails(error))

    with pytest.raises(type(error)):
        run.master.run()
    assert run.claims() == 0


def test_a_run_whose_time_to_stop_is_over_clears_nothing_up(tmp_path: Path) -> None:
    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        run.prepares(coordinator)
        signalled(run, signal.SIGTERM, signal.SIGTERM)
        raise RetryInterrupted("the time is over")

    run = Run(tmp_path, attempt, stop_timeout=3600.0)
    with pytest.raises(RetryInterrupted):
        run.master.run()

    assert run.sink.prepared == [1]


def test_a_defect_clears_nothing_up(tmp_path: Path) -> None:
    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        run.prepares(coordinator)
        raise KeyError("a defect")

    run = Run(tmp_path, attempt)
    with pytest.raises(KeyError):
        run.master.run()

    assert run.sink.prepared == [1]
    assert len(run.released) == 1


def test_what_cannot_be_cleared_up_is_told_unless_it_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worse: list[Exception] = [OSError(errno.EIO, "away"), CorruptCheckpoint("damaged")]

    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        raise ConfigError("wrong")

    def fails_to(coordinator: Coordinator, after: Term) -> None:
        raise worse[0]

    monkeypatch.setattr(Coordinator, "abort_open_output", fails_to)
    run = Run(tmp_path, attempt)
    with pytest.raises(ConfigError, match="wrong"):
        run.master.run()
    assert "open output could not be aborted: [Errno 5] away" in run.of("notice")[-1]["text"]

    worse.pop(0)
    run = Run(tmp_path, attempt)
    with pytest.raises(CorruptCheckpoint, match="damaged"):
        run.master.run()


def test_a_claim_whose_answer_was_lost_leaves_output_open_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store wrote the claim and refused the retry, so the claim looks like the one of another supervisor."""

    def attempt(coordinator: Coordinator) -> None:
        run.recovers(coordinator)
        run.prepares(coordinator)
        create = LocalStorage.publish

        def create_twice(storage: LocalStorage, name: str, data: bytes) -> None:
            create(storage, name, data)
            create(storage, name, data)

        monkeypatch.setattr(LocalStorage, "publish", create_twice)
        raise ConfigError("wrong")

    run = Run(tmp_path, attempt)
    with pytest.raises(ConfigError, match="wrong"):
        run.master.run()

    assert run.sink.prepared == [1]
    told = run.of("notice")[-1]["text"]
    assert "open output could not be aborted: term 1 was replaced by term 2" in told
    assert "If no supervisor runs this job, retry with kafka-eos doctor APP --resolve" in told
