"""One pipeline started from two directories: two incarnations of one name, on the same topics, as real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import IdentityRecord
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, feed
from tests.chaos.running import check_all, events, manifests, refused, running, storage
from tests.chaos.test_savepoints import kafka_eos

NewJob = Callable[..., Job]
REFUSED = 2
"""Exit code of a start that is refused: the user changes something."""


def elsewhere(job: Job, name: str = "elsewhere") -> Job:
    """The same pipeline with the same topics and files, started from another directory."""
    directory = job.directory / name
    directory.mkdir()
    # Its files are those of the first one, as they are with an absolute path in the program.
    return replace(job, directory=directory, environment={**job.environment, "TEST_FILES": str(job.files)})


def identity(job: Job) -> str:
    return records.load(storage(job), IdentityRecord, paths.IDENTITY, job.name).identity


def killed_before_a_commit(job: Job) -> None:
    """The newest epoch is decided, and its output is open in both sinks."""
    with running(job, "commit.before=kill@3", "--until-caught-up") as run:
        assert run.ended() == -9, run.log
    assert len(manifests(job)[-1].committables) == 2, "the epoch has no output in one of the sinks: it proves nothing"


def test_a_start_from_another_directory_is_refused_and_the_first_one_runs_on(new_job: NewJob) -> None:
    """It was half a minute in which both ran: 16,050 of 29,700 records came out twice, and the first ended Fatal."""
    first = new_job(600, TEST_PAUSE=0.002)
    second = elsewhere(first)
    with running(first, "", "--until-caught-up") as run:
        run.until_committed(2)

        said = refused(second, REFUSED)

        assert run.ended() == 0, run.log
    assert f"incarnation {identity(first)}" in said
    assert str(second.checkpoints / second.name) in said, "which directory this start looked into"
    for advice in ("--checkpoint-dir", "another name", "kafka-eos doctor", "--take-over"):
        assert advice in said
    assert not [event for event in events(first) if event["event"] in ("revoked", "restarting")]
    assert manifests(second) == []
    check_all(first)


@pytest.mark.campaign
def test_a_refused_start_changes_nothing_between_a_decision_and_its_commit(new_job: NewJob) -> None:
    """The transaction that is decided is nobody's but its own incarnation's to end."""
    first = new_job(600, TEST_PAUSE=0.001)
    killed_before_a_commit(first)

    said = refused(elsewhere(first), REFUSED)
    first.run()

    assert "open" in said
    assert not [event for event in events(first) if event["event"] == "revoked"]
    check_all(first)


@pytest.mark.campaign
def test_a_job_whose_directory_was_deleted_says_why_it_does_not_begin_again(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    gone = identity(job)
    shutil.rmtree(job.checkpoints)

    said = refused(job, REFUSED)

    assert f"incarnation {gone}" in said
    assert "lost or deleted, use --take-over" in said


def test_who_takes_over_on_purpose_ends_the_other_one_for_good(new_job: NewJob) -> None:
    """The first one stops as soon as it notices, and may not write again, however often it is started."""
    first = new_job(300, TEST_PAUSE=0.002)
    second = elsewhere(first)
    with running(first) as run, feeding(first):  # it notices when it has something to commit
        run.until_committed(2)
        with running(second, "", "--take-over") as other:
            code = run.ended()
            before = len(manifests(first)), [e for e in events(first) if e["event"] == "committed"]
            other.until_committed(2)

        said = refused(first, 1)

    assert code == 1, run.log
    assert "took over from this one" in run.log
    assert "took over from this one" in said
    assert before == (len(manifests(first)), [e for e in events(first) if e["event"] == "committed"])


@pytest.mark.campaign
def test_doctor_ends_what_is_the_jobs_own_and_another_incarnation_only_by_its_name(new_job: NewJob) -> None:
    first = new_job(600, TEST_PAUSE=0.001)
    second = elsewhere(first)
    killed_before_a_commit(first)
    app = str(second.app)

    code, shown, _ = kafka_eos(second, "doctor", app)
    refusal = kafka_eos(second, "doctor", app, "--resolve")
    still = kafka_eos(first, "doctor", app)
    ended = kafka_eos(second, "doctor", app, "--abort-incarnation", identity(first))

    assert code == 1 and f"other ({identity(first)})" in shown
    assert refusal[0] != 0 and "--take-over" in refusal[2]
    assert still[0] == 1 and "this job" in still[1]
    assert "resolved; 0 still open" in ended[1], ended
    assert "took over from this one" in refused(first, 1)


@pytest.mark.campaign
def test_the_heir_of_a_savepoint_begins_and_the_job_of_the_savepoint_does_not_go_on(new_job: NewJob) -> None:
    first = new_job(300)
    first.run()
    path = first.directory / "savepoint"
    assert kafka_eos(first, "savepoint", "trigger", str(first.app), "--path", str(path))[0] == 0
    heir = elsewhere(first)
    heir.environment["KAFKA_EOS_START_FROM"] = str(path)
    feed(first.bootstrap, first.input, range(300, 500))

    heir.run()

    assert json.loads((path / paths.SAVEPOINT).read_bytes().split(b"\n", 1)[1])["identity"] == identity(first)
    assert "took over from this one" in refused(first, 1)


@pytest.mark.campaign
def test_open_output_of_the_savepoints_job_refuses_even_the_heir(new_job: NewJob) -> None:
    first = new_job(100)
    first.run()
    path = first.directory / "savepoint"
    assert kafka_eos(first, "savepoint", "trigger", str(first.app), "--path", str(path))[0] == 0
    feed(first.bootstrap, first.input, range(100, 600))
    first.environment["TEST_PAUSE"] = "0.001"
    killed_before_a_commit(first)
    heir = elsewhere(first)
    heir.environment["KAFKA_EOS_START_FROM"] = str(path)

    said = refused(heir, REFUSED)

    assert f"incarnation {identity(first)}" in said and "(open)" in said


def test_two_jobs_of_one_name_do_not_share_a_state_dir(new_job: NewJob, tmp_path: Path) -> None:
    """With other topics nothing else tells them apart."""
    first = new_job(2000, TEST_PAUSE=0.002, KAFKA_EOS_STATE_DIR=tmp_path / "state")
    other = new_job(10, KAFKA_EOS_STATE_DIR=tmp_path / "state")
    other.name = first.name
    with running(first) as run:
        run.until_committed(1)

        said = refused(other, REFUSED)

        run.drain()
    assert str(tmp_path / "state") in said
    assert "state_dir" in said
    other.environment["KAFKA_EOS_STATE_DIR"] = str(tmp_path / "of-its-own")
    assert "state_dir" not in refused(other, REFUSED)
