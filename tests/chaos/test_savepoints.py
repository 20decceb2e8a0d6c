"""A job begins with a savepoint where the other one stopped: every output once, running totals go on.

The second incarnation has the topics and the output directory of the first, and a checkpoint directory of its own.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.core.ids import SplitId
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.storage import savepoint_files as savepoints
from tests.chaos.feeding import feeding
from tests.chaos.harness import APPS, Job, check, create_topic, expected, feed, open_transactions, read
from tests.chaos.running import check_all, has_output, manifests, running, standing
from tests.marks import campaign
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]


class SecondIncarnation(Job):
    """The job again, elsewhere, begun with a savepoint."""

    first: Job
    savepoint: Path

    @property
    def files(self) -> Path:
        return self.first.files

    def start(self, failpoints: str = "", *options: str) -> subprocess.Popen[bytes]:
        return super().start(failpoints, "--from", str(self.savepoint), *options)


def second_incarnation(job: Job, savepoint: Path, **environment: str) -> SecondIncarnation:
    second = SecondIncarnation(**{field.name: getattr(job, field.name) for field in fields(Job)})
    second.first, second.savepoint = job, savepoint
    second.directory = job.directory / f"incarnation-of-{savepoint.name}"
    second.directory.mkdir()
    second.environment = {**job.environment, **environment}
    return second


def kafka_eos(job: Job, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "kafka_eos", *arguments]
    done = subprocess.run(command, env=job.environ(), capture_output=True, text=True, check=False, timeout=PATIENCE)
    return done.returncode, done.stdout, done.stderr


def trigger(job: Job, path: Path) -> Path:
    """Make a savepoint of a job that does not run, and move it away."""
    code, out, shown = kafka_eos(job, "savepoint", "trigger", str(job.app), "--path", str(path))
    assert (code, out.strip()) == (0, str(path)), shown
    return Path(shutil.move(path, path.with_name(f"{path.name}-moved")))


@pytest.mark.campaign
@pytest.mark.parametrize(("before", "after"), [("rocksdb", "memory"), campaign("memory", "rocksdb")])
def test_outputs_continue_exactly(new_job: NewJob, before: str, after: str) -> None:
    job = new_job(300, TEST_BACKEND=before)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    shutil.rmtree(job.checkpoints)
    feed(job.bootstrap, job.input, range(300, 500))
    second = second_incarnation(job, savepoint, TEST_BACKEND=after)

    second.run()

    check_all(second)
    assert savepoints.find_damage(savepoint) == []


@pytest.mark.parametrize(("before", "after"), [campaign(1, 3), campaign(3, 2)])
def test_a_job_goes_on_with_another_number_of_workers(new_job: NewJob, before: int, after: int) -> None:
    job = new_job(300, KAFKA_EOS_PARALLELISM=before)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    feed(job.bootstrap, job.input, range(300, 500))
    second = second_incarnation(job, savepoint, KAFKA_EOS_PARALLELISM=str(after))

    second.run()

    check_all(second)
    assert manifests(second)[-1].parallelism == after


@pytest.mark.campaign
def test_rows_under_way_are_part_of_a_savepoint(new_job: NewJob) -> None:
    job = new_job(2000, KAFKA_EOS_PARALLELISM=3, KAFKA_EOS_CHECKPOINT_MODE="unaligned", TEST_PAUSE="0.001")
    with running(job) as run, feeding(job):
        run.freeze_when(lambda: any(m.in_flight for m in manifests(job)[-1:]), "store rows under way")
    assert kafka_eos(job, "doctor", str(job.app), "--resolve")[0] == 0
    savepoint = trigger(job, job.directory / "savepoint")
    assert savepoints.read_savepoint(savepoint).in_flight, "nothing was under way"
    second = second_incarnation(job, savepoint, KAFKA_EOS_PARALLELISM="2", TEST_PAUSE="0")

    second.run()

    check_all(second)


@pytest.mark.campaign
def test_any_stored_checkpoint_of_a_running_job_can_be_begun_with(new_job: NewJob) -> None:
    """By a job of another name, with other sinks and other workers; rows that were under way then are not lost."""
    job = new_job(
        3000, KAFKA_EOS_PARALLELISM=3, KAFKA_EOS_CHECKPOINT_MODE="unaligned", TEST_PAUSE="0.002",
        KAFKA_EOS_RETAINED_CHECKPOINTS=50,
    )  # fmt: skip
    savepoint = job.directory / "older"
    with running(job) as run:
        with feeding(job):
            older = run.until(lambda: [m for m in manifests(job)[:-2] if m.in_flight], "store rows under way")
        epoch = older[-1].epoch
        asked = kafka_eos(job, "savepoint", "trigger", str(job.app), "--epoch", str(epoch), "--path", str(savepoint))
        run.until_all_committed()
        run.drain()
    check_all(job)
    assert asked[:2] == (0, f"{savepoint}\n"), asked
    before = [part for part in sorted(job.files.glob("part-*")) if int(part.name.split("-")[1]) <= epoch]
    second = second_incarnation(job, savepoint, KAFKA_EOS_PARALLELISM="2", TEST_PAUSE="0")
    second.name, second.output = f"{job.name}-again", f"{job.output}-again"
    second.environment["TEST_FILES"] = str(second.directory / "files")
    create_topic(job.bootstrap, second.output, 3)

    second.run()

    rows = [
        json.loads(line)
        for part in (*before, *sorted(second.directory.glob("files/part-*")))
        for line in part.read_bytes().splitlines()
    ]
    wanted = expected(read(job.bootstrap, job.input))
    assert sorted((row["account"], row["total"], row["id"]) for row in rows) == sorted(wanted)
    assert len(read(job.bootstrap, second.output)) == len(wanted) - sum(
        len(part.read_bytes().splitlines()) for part in before
    )


@pytest.mark.parametrize(
    "failpoints",
    [
        "savepoint.restored=kill",
        campaign("manifest.renamed=kill;recovery.looked=kill"),
        campaign("recovery.based=kill"),
        pytest.param(
            "savepoint.restored=kill;savepoint.restored=kill;manifest.published=kill", marks=pytest.mark.campaign
        ),
        campaign("commit.before=kill@2;recovery.committed=kill"),
    ],
)
def test_the_same_command_goes_on_after_a_crash(new_job: NewJob, failpoints: str) -> None:
    job = new_job(200)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    feed(job.bootstrap, job.input, range(200, 500))
    second = second_incarnation(job, savepoint)

    second.run(failpoints)
    feed(job.bootstrap, job.input, range(500, 600))
    second.run()

    check_all(second)
    assert [event["savepoint"] for event in second.history() if event["event"] == "began"][-1] == (
        savepoints.read_savepoint(savepoint).id
    )


@pytest.mark.campaign
def test_epochs_and_terms_go_on(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    last = manifests(job)[-1]
    second = second_incarnation(job, trigger(job, job.directory / "savepoint"))

    second.run()

    first = next(event for event in second.history() if event["event"] == "committed")
    assert (first["epoch"], first["term"]) == (last.epoch + 1, last.term + 1)


@pytest.mark.campaign
def test_a_job_with_a_history_of_its_own_is_refused(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    before = [path.name for path in sorted((job.checkpoints / job.name / "manifests").iterdir())]

    code, _, shown = kafka_eos(job, "run", str(job.app), "--from", str(savepoint), "--until-caught-up")

    assert code == 2
    assert "has already begun, without a savepoint" in shown and "another checkpoint_dir" in shown
    assert [path.name for path in sorted((job.checkpoints / job.name / "manifests").iterdir())] == before


@pytest.mark.campaign
def test_another_savepoint_is_refused_later(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    second = second_incarnation(job, trigger(job, job.directory / "one"))
    second.run()
    other = trigger(job, job.directory / "two")

    code, _, shown = kafka_eos(second, "run", str(job.app), "--from", str(other), "--until-caught-up")

    assert code == 2
    assert (
        f"with savepoint {savepoints.read_savepoint(second.savepoint).id}" in shown
        and savepoints.read_savepoint(other).id in shown
    )


@pytest.mark.campaign
def test_a_damaged_savepoint_begins_nothing(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    second = second_incarnation(job, trigger(job, job.directory / "savepoint"))
    (ref,) = savepoints.read_savepoint(second.savepoint).operators[0].files
    file = second.savepoint / "files" / ref.sha256
    file.write_bytes(file.read_bytes()[:-1] + b"\0")

    code, _, shown = kafka_eos(second, "run", str(job.app), "--from", str(second.savepoint), "--until-caught-up")

    assert code == 1
    assert f"CorruptCheckpoint: shared/{ref.sha256}" in shown
    assert manifests(second) == []


@pytest.mark.campaign
def test_removed_state_is_dropped_only_when_asked(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    savepoint = trigger(job, job.directory / "savepoint")
    feed(job.bootstrap, job.input, range(200, 300))
    second = second_incarnation(job, savepoint)
    renamed = job.directory / "renamed.py"
    renamed.write_text((APPS / "totals.py").read_text().replace('.fold(name="total"', '.fold(name="sum"'))
    second.app = renamed

    code, _, shown = kafka_eos(second, "run", str(renamed), "--from", str(savepoint), "--until-caught-up")
    assert code == 2
    assert "contains state of 'total'" in shown and "--allow-dropped-state" in shown
    second.environment["KAFKA_EOS_ALLOW_DROPPED_STATE"] = "1"
    second.run()

    dropped = [event["names"] for event in second.history() if event["event"] == "dropped"]
    assert dropped == [["total"]]
    fresh = expected([m for m in read(job.bootstrap, job.input) if json.loads(m.value())["id"] >= 200])
    seen = [json.loads(m.value()) for m in read(job.bootstrap, job.output)]
    assert sorted((r["account"], r["total"], r["id"]) for r in seen if r["id"] >= 200) == sorted(fresh)


@pytest.mark.parametrize("name", [campaign("total"), campaign("payments")])
def test_a_checkpoint_of_what_is_gone_needs_leave_too(new_job: NewJob, name: str) -> None:
    """An operator that was renamed would begin without its state, a source would read its input again."""
    job = new_job(200)
    job.run()
    job.app = job.directory / "renamed.py"
    job.app.write_text((APPS / "totals.py").read_text().replace(f'name="{name}"', 'name="other"'))

    code, _, shown = kafka_eos(job, "run", str(job.app), "--until-caught-up")
    assert code == 2 and f"contains state of '{name}'" in shown and "--allow-dropped-state" in shown
    assert kafka_eos(job, "run", str(job.app), "--until-caught-up", "--allow-dropped-state")[0] == 0
    assert kafka_eos(job, "run", str(job.app), "--until-caught-up")[0] == 0

    assert [event["names"] for event in job.history() if event["event"] == "dropped"] == [[name]]


@pytest.mark.campaign
def test_a_decided_epoch_must_be_finished_before_a_savepoint(new_job: NewJob) -> None:
    job = new_job(200)
    with standing(job, "commit.before", lambda: has_output(job)):
        pass  # and it is killed there

    code, _, shown = kafka_eos(job, "savepoint", "trigger", str(job.app))
    assert code == 2 and "not committed yet" in shown and "doctor" in shown

    assert kafka_eos(job, "doctor", str(job.app), "--resolve")[0] == 0
    second = second_incarnation(job, trigger(job, job.directory / "savepoint"))
    second.run()
    check(second)


@pytest.mark.campaign
def test_a_fixed_value_is_what_the_job_goes_on_with(new_job: NewJob) -> None:
    job = new_job(200)
    job.run()
    snapshot = Snapshot.open(job.checkpoints / job.name)
    entry: Any = snapshot.get("total", None, "a3")
    with SavepointBuilder.from_snapshot(snapshot) as builder:
        entry["accumulator"]["total"] += 1000
        builder.put("total", "accumulator", "a3", entry)
        builder.write(job.directory / "fixed")
    second = second_incarnation(job, job.directory / "fixed")
    feed(job.bootstrap, job.input, range(200, 300))

    second.run()

    rows = [json.loads(m.value()) for m in read(job.bootstrap, job.output)]
    should = {(a, n): total for a, total, n in expected(read(job.bootstrap, job.input))}
    off = {row["account"]: row["total"] - should[row["account"], row["id"]] for row in rows if row["id"] >= 200}
    assert {account for account, difference in off.items() if difference} == {"a3"}
    assert off["a3"] == 1000
    assert sorted(row["id"] for row in rows) == sorted(number for _, number in should)


# ---------------------------------------------------------------- of a running job


@pytest.mark.campaign
@pytest.mark.parametrize(
    "settings",
    [
        {},
        campaign(
            {
                "KAFKA_EOS_PARALLELISM": 3,
                "KAFKA_EOS_CHECKPOINT_MODE": "unaligned",
                "KAFKA_EOS_CHECKPOINT_INTERVAL": "20ms",
                "TEST_PAUSE_AFTER": "0.002",
            }
        ),
    ],
    ids=["one-worker", "many-epochs"],
)
def test_a_running_job_makes_a_savepoint_and_goes_on(new_job: NewJob, settings: dict[str, object]) -> None:
    job = new_job(2000, **{"TEST_PAUSE": "0.001", **settings})
    target = job.directory / "savepoint"
    with running(job) as run:
        run.until_output()
        code, out, shown = kafka_eos(job, "savepoint", "trigger", str(job.app), "--path", str(target))
        assert (code, out.strip()) == (0, str(target)), shown
        assert savepoints.find_damage(target) == []
        epoch = savepoints.read_savepoint(target).epoch
        assert epoch in {event["epoch"] for event in run.events("committed")}
        run.until_all_committed()
        run.drain()

    check_all(job)
    snapshot = Snapshot.open(target)
    ends = {split: int(str(at["offset"])) for split, at in snapshot.sources["payments"].items()}
    below = [m for m in read(job.bootstrap, job.input) if m.offset() < ends[SplitId(f"{job.input}/{m.partition()}")]]
    totals = {account: total for account, total, _ in expected(below)}
    assert {key: entry["accumulator"]["total"] for key, entry in snapshot.read("total")} == totals


def test_stopped_with_a_savepoint_nothing_is_open_and_all_of_it_is_committed(new_job: NewJob) -> None:
    job = new_job(2000, TEST_PAUSE="0.001")
    target = job.directory / "savepoint"
    with running(job) as run:
        run.until_output()
        code, out, shown = kafka_eos(job, "stop", str(job.app), "--savepoint", "--path", str(target))
        assert (code, out.strip()) == (0, str(target)), shown
        assert run.ended() == 0
    assert open_transactions(job) == []
    newest = manifests(job)[-1]
    assert (savepoints.read_savepoint(target).epoch, savepoints.read_savepoint(target).sources) == (
        newest.epoch,
        newest.sources,
    )

    second = second_incarnation(job, target, TEST_PAUSE="0")
    second.run()

    check_all(second)


MAKING = ("savepoint.pinned", "savepoint.staged", "savepoint.written")


@pytest.mark.parametrize(
    "ask", [pytest.param(["savepoint", "trigger"], id="trigger"), campaign(["stop", "--savepoint"], named="stop")]
)
@pytest.mark.parametrize("point", [campaign(MAKING[0]), MAKING[1], campaign(MAKING[2])])
def test_a_job_that_dies_over_a_savepoint_leaves_all_of_it_or_nothing(
    new_job: NewJob, point: str, ask: list[str]
) -> None:
    job = new_job(1000, KAFKA_EOS_PARALLELISM=2, TEST_PAUSE="0.001")
    first, retried = job.directory / "one", job.directory / "two"
    with running(job, f"{point}=kill") as run:
        run.until_output()
        code, _, shown = kafka_eos(job, *ask, str(job.app), "--path", str(first))
        assert (code, run.ended()) == (1, -signal.SIGKILL), shown
    assert "ended or was restarted before it answered" in shown
    assert first.exists() == (point == "savepoint.written")
    assert not first.exists() or savepoints.find_damage(first) == []

    feed(job.bootstrap, job.input, range(1000, 1500))
    with running(job) as run:
        run.until_output()
        code, out, shown = kafka_eos(job, *ask, str(job.app), "--path", str(retried))
        assert (code, out.strip()) == (0, str(retried)), shown
        if "trigger" in ask:
            run.until_all_committed()
            run.drain()
        assert run.ended() == 0
    assert [path.name for path in job.directory.glob(".tmp-savepoint-*")] == []
    assert savepoints.find_damage(retried) == []
    second = second_incarnation(job, retried, TEST_PAUSE="0")
    if "stop" in ask:
        second.run()
        check_all(second)
    else:
        check_all(job)


@pytest.mark.campaign
def test_a_checkpoint_on_demand_is_committed(new_job: NewJob) -> None:
    job = new_job(300)
    with running(job) as run:
        run.until_output()
        code, out, shown = kafka_eos(job, "checkpoints", "trigger", str(job.app))
        assert code == 0, shown
        assert int(out.split()[1]) in {event["epoch"] for event in run.events("committed")}
        run.until_all_committed()
        run.drain()

    check_all(job)


@pytest.mark.campaign
def test_a_savepoint_that_cannot_be_made_does_not_harm_the_job(new_job: NewJob) -> None:
    job = new_job(300)
    nowhere = "/proc/savepoints/one"
    with running(job) as run:
        run.until_output()
        code, _, shown = kafka_eos(job, "savepoint", "trigger", str(job.app), "--path", nowhere)
        assert code == 2 and "/proc/savepoints" in shown
        run.until_all_committed()
        run.drain()

    check_all(job)
