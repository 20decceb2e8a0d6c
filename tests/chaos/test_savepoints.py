"""A job begins with a savepoint where the other one stopped: every output once, running totals go on.

The second life has the topics and the output directory of the first, and a checkpoint directory of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.checkpoints import savepoints
from kafka_eos.state.reader import SavepointBuilder, Snapshot
from tests.chaos.harness import APPS, Job, check, expected, feed, problems, read
from tests.chaos.running import check_all, manifests, running

NewJob = Callable[..., Job]


class SecondLife(Job):
    """The job again, elsewhere, begun with a savepoint."""

    first: Job
    savepoint: Path

    @property
    def files(self) -> Path:
        return self.first.files

    def start(self, failpoints: str = "", *options: str) -> subprocess.Popen[bytes]:
        return super().start(failpoints, "--from", str(self.savepoint), *options)


def second_life(job: Job, savepoint: Path, **environment: str) -> SecondLife:
    life = SecondLife(**{field.name: getattr(job, field.name) for field in fields(Job)})
    life.first, life.savepoint = job, savepoint
    life.directory = job.directory / f"life-of-{savepoint.name}"
    life.directory.mkdir()
    life.environment = {**job.environment, **environment}
    return life


def kafka_eos(job: Job, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "kafka_eos", *arguments]
    done = subprocess.run(command, env=job.environ(), capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def trigger(job: Job, path: Path) -> Path:
    """Make a savepoint of a job that does not run, and move it away."""
    code, out, shown = kafka_eos(job, "savepoint", "trigger", str(job.app), "--path", str(path))
    assert (code, out.strip()) == (0, str(path)), shown
    return Path(shutil.move(path, path.with_name(f"{path.name}-moved")))


@pytest.mark.parametrize(("before", "after"), [("rocksdb", "memory"), ("memory", "rocksdb")])
def test_outputs_continue_exactly(new_job: NewJob, before: str, after: str) -> None:
    job = new_job(300, TEST_BACKEND=before)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    shutil.rmtree(job.checkpoints)
    feed(job.bootstrap, job.input, range(300, 500))
    life = second_life(job, savepoint, TEST_BACKEND=after)

    life.run()

    check_all(life)
    assert savepoints.verify(savepoint) == []


@pytest.mark.parametrize(
    "failpoints",
    [
        "savepoint.restored=kill",
        "recovery.based=kill",
        "manifest.renamed=kill;recovery.verified=kill",
        "savepoint.restored=kill;savepoint.restored=kill;manifest.published=kill",
        "commit.before=kill@2;recovery.committed=kill",
    ],
)
def test_the_same_command_goes_on_after_a_crash(new_job: NewJob, failpoints: str) -> None:
    job = new_job(200)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    feed(job.bootstrap, job.input, range(200, 500))
    life = second_life(job, savepoint)

    life.run(failpoints)
    feed(job.bootstrap, job.input, range(500, 600))
    life.run()

    check_all(life)
    assert [event["savepoint"] for event in life.history() if event["event"] == "began"][-1] == (
        savepoints.read(savepoint).id
    )


def test_epochs_and_terms_go_on(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    last = manifests(job)[-1]
    life = second_life(job, trigger(job, job.directory / "savepoint"))

    life.run()

    first = next(event for event in life.history() if event["event"] == "committed")
    assert (first["epoch"], first["term"]) == (last.epoch + 1, last.term + 1)


def test_a_job_with_a_history_of_its_own_is_refused(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    before = [path.name for path in sorted((job.checkpoints / job.name / "manifests").iterdir())]

    code, _, shown = kafka_eos(job, "run", str(job.app), "--from", str(savepoint), "--until-caught-up")

    assert code == 2
    assert "has begun already, without a savepoint" in shown and "another checkpoint_dir" in shown
    assert [path.name for path in sorted((job.checkpoints / job.name / "manifests").iterdir())] == before


def test_another_savepoint_is_refused_later(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    life = second_life(job, trigger(job, job.directory / "one"))
    life.run()
    other = trigger(job, job.directory / "two")

    code, _, shown = kafka_eos(life, "run", str(job.app), "--from", str(other), "--until-caught-up")

    assert code == 2
    assert f"with savepoint {savepoints.read(life.savepoint).id}" in shown and savepoints.read(other).id in shown


def test_a_damaged_savepoint_begins_nothing(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    life = second_life(job, trigger(job, job.directory / "savepoint"))
    (ref,) = savepoints.read(life.savepoint).operators[0].files
    file = life.savepoint / "files" / ref.sha256
    file.write_bytes(file.read_bytes()[:-1] + b"\0")

    code, _, shown = kafka_eos(life, "run", str(job.app), "--from", str(life.savepoint), "--until-caught-up")

    assert code == 1
    assert f"CorruptCheckpoint: shared/{ref.sha256}" in shown
    assert manifests(life) == []


def test_removed_state_is_dropped_only_when_asked(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    feed(job.bootstrap, job.input, range(200, 300))
    life = second_life(job, savepoint)
    renamed = job.directory / "renamed.py"
    renamed.write_text((APPS / "totals.py").read_text().replace('.fold("total"', '.fold("sum"'))
    life.app = renamed

    code, _, shown = kafka_eos(life, "run", str(renamed), "--from", str(savepoint), "--until-caught-up")
    assert code == 2
    assert "holds state of 'total'" in shown and "--allow-dropped-state" in shown
    life.environment["KAFKA_EOS_ALLOW_DROPPED_STATE"] = "1"
    life.run()

    dropped = [event["names"] for event in life.history() if event["event"] == "dropped"]
    assert dropped == [["total"]]
    fresh = expected([m for m in read(job.bootstrap, job.input) if json.loads(m.value())["id"] >= 200])
    seen = [json.loads(m.value()) for m in read(job.bootstrap, job.output)]
    assert sorted((r["account"], r["total"], r["id"]) for r in seen if r["id"] >= 200) == sorted(fresh)


def test_a_checkpoint_of_an_operator_that_is_gone_needs_leave_too(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    job.app = job.directory / "renamed.py"
    job.app.write_text((APPS / "totals.py").read_text().replace('.fold("total"', '.fold("sum"'))

    code, _, shown = kafka_eos(job, "run", str(job.app), "--until-caught-up")
    assert code == 2 and "--allow-dropped-state" in shown
    assert kafka_eos(job, "run", str(job.app), "--until-caught-up", "--allow-dropped-state")[0] == 0
    assert kafka_eos(job, "run", str(job.app), "--until-caught-up")[0] == 0

    assert [event["names"] for event in job.history() if event["event"] == "dropped"] == [["total"]]


def test_a_decided_epoch_must_be_finished_before_a_savepoint(new_job: NewJob) -> None:
    job = new_job(200)
    with running(job, "commit.before=kill@2", "--until-caught-up") as run:
        run.ended()

    code, _, shown = kafka_eos(job, "savepoint", "trigger", str(job.app))
    assert code == 2 and "not committed yet" in shown and "doctor" in shown

    assert kafka_eos(job, "doctor", str(job.app), "--end")[0] == 0
    life = second_life(job, trigger(job, job.directory / "savepoint"))
    life.run()
    check(life)


def test_a_fixed_value_is_what_the_job_goes_on_with(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    snapshot = Snapshot.open(job.checkpoints / job.name)
    entry: Any = snapshot.get("total", None, "a3")
    with SavepointBuilder.from_snapshot(snapshot) as builder:
        entry["accumulator"]["total"] += 1000
        builder.put("total", "accumulator", "a3", entry)
        builder.write(job.directory / "fixed")
    life = second_life(job, job.directory / "fixed")
    feed(job.bootstrap, job.input, range(200, 300))

    life.run()

    rows = [json.loads(m.value()) for m in read(job.bootstrap, job.output)]
    should = {(a, n): total for a, total, n in expected(read(job.bootstrap, job.input))}
    off = {row["account"]: row["total"] - should[row["account"], row["id"]] for row in rows if row["id"] >= 200}
    assert {account for account, difference in off.items() if difference} == {"a3"}
    assert off["a3"] == 1000
    assert not any(
        "doubled" in problem or "lost" in problem for problem in problems(life, read(job.bootstrap, job.input))
    )
