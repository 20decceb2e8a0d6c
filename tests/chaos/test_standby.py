"""A job with two supervisors: one leads, the other stands by, and takes over from whoever is gone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.coordination.status_file import STATUS
from kafka_eos.monitoring.dashboard import job_directories as reading
from kafka_eos.storage import object_names as paths
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, check, read
from tests.chaos.running import Running, audit_passes, check_all, refused, running
from tests.contract import s3_server
from tests.marks import campaign
from tests.waiting import PATIENCE, eventually

NewJob = Callable[..., Job]
LEASE_SECONDS = 1.5
LEASE = {"KAFKA_EOS_STANDBY_LEASE": f"{LEASE_SECONDS}s"}


@contextmanager
def leading(job: Job, *options: str) -> Iterator[Running]:
    """A supervisor that leads, before anybody else starts."""
    with running(job, "", "--standby", *options) as leader:
        leader.until(lambda: leader.count("started"), "lead")
        yield leader


def stands_by(standby: Running, leader: Running) -> None:
    standby.until(lambda: f"standby for process {leader.pid} on " in standby.log, "stand by")


def takes_over(job: Job, standby: Running) -> None:
    """It commits, reads all there is and drains."""
    with feeding(job):
        standby.until_committed(2)
    standby.until_all_committed()
    standby.drain()
    check_all(job)


def elsewhere(job: Job) -> None:
    """From here on the lock of the leader is not that of a new supervisor: as on another machine."""
    (job.checkpoints / job.name / paths.LOCK).unlink()


def test_a_standby_takes_over_at_once_from_a_leader_of_its_machine_that_is_killed(new_job: NewJob) -> None:
    # With a lease as long as this, only the lock can tell that the leader is gone.
    job = new_job(600, KAFKA_EOS_STANDBY_LEASE="1h")
    with leading(job) as leader, running(job, "", "--standby") as standby:
        stands_by(standby, leader)
        leader.until_output()

        leader.send(signal.SIGKILL)

        takes_over(job, standby)


@pytest.mark.parametrize("audited", [False, campaign(True)])
def test_a_standby_elsewhere_takes_over_from_a_frozen_leader_which_is_fenced(new_job: NewJob, audited: bool) -> None:
    job = new_job(600, **LEASE)
    with leading(job) as leader:
        leader.until_output()
        elsewhere(job)
        with running(job, "", "--standby") as standby:
            stands_by(standby, leader)

            leader.send(signal.SIGSTOP)
            with feeding(job):
                standby.until_committed(2)
            leader.send(signal.SIGCONT)

            assert leader.ended() == 1
            assert "Fenced" in leader.log
            takes_over(job, standby)
    if audited:
        audit_passes(job)


def test_a_frozen_leader_of_the_same_machine_is_killed(new_job: NewJob) -> None:
    job = new_job(600, **LEASE)
    with leading(job) as leader, running(job, "", "--standby") as standby:
        stands_by(standby, leader)
        leader.until_output()

        leader.send(signal.SIGSTOP)

        assert leader.ended() == -signal.SIGKILL
        takes_over(job, standby)


@pytest.mark.parametrize("same_machine", [False, campaign(True)])
def test_a_leader_that_is_told_to_end_hands_over(new_job: NewJob, same_machine: bool) -> None:
    """Its last heartbeat says so: nobody waits for the lease."""
    job = new_job(600, KAFKA_EOS_STANDBY_LEASE="10s")
    with leading(job) as leader:
        leader.until_output()
        if not same_machine:
            elsewhere(job)
        with running(job, "", "--standby") as standby:
            stands_by(standby, leader)

            leader.drain()

            takes_over(job, standby)


@pytest.mark.campaign
def test_a_job_that_is_stopped_is_stopped_for_its_standby_too(new_job: NewJob) -> None:
    job = new_job(2000, TEST_PAUSE=0.002, **LEASE)
    with leading(job, "--until-caught-up") as leader, running(job, "", "--standby") as standby:
        stands_by(standby, leader)

        assert leader.ended() == 0
        assert standby.ended() == 0
        assert "the job was stopped; this standby never led it" in standby.log
    check_all(job)


@pytest.mark.campaign
def test_a_standby_can_be_ended_and_a_job_goes_on(new_job: NewJob) -> None:
    job = new_job(300, **LEASE)
    with leading(job) as leader:
        with running(job, "", "--standby") as standby:
            stands_by(standby, leader)
            standby.drain()
            assert "this standby was stopped without ever leading" in standby.log
        leader.until_all_committed()
        leader.drain()
    check_all(job)


@pytest.mark.campaign
def test_one_that_runs_without_standby_is_let_alone(new_job: NewJob) -> None:
    job = new_job(300, **LEASE)
    with running(job) as leader:
        leader.until_output()
        with running(job, "", "--standby") as standby:
            alone = f"process {leader.pid} of this machine, which runs without --standby"
            standby.until(lambda: alone in standby.log, "wait")
            leader.until_all_committed()
            leader.drain()
            standby.until(lambda: standby.count("started"), "lead")
            standby.drain()
    check_all(job)


@pytest.mark.campaign
def test_a_plain_run_beside_a_frozen_one_is_refused_here_and_takes_over_elsewhere(new_job: NewJob) -> None:
    """The kernel keeps the lock of a process that is stopped; terms hold without any."""
    job = new_job(600)
    with running(job) as frozen:
        frozen.until_output()
        frozen.send(signal.SIGSTOP)

        said = refused(job, 2)
        assert f"already run by process {frozen.pid}" in said
        assert f"is frozen (stopped by a signal or a debugger): resume it (kill -CONT {frozen.pid})" in said

        elsewhere(job)
        job.run()
        frozen.send(signal.SIGCONT)
        assert frozen.ended() == 1
        assert "Fenced" in frozen.log
    check(job)  # a file that the frozen one stored when it woke stays until the next run


@pytest.mark.campaign
def test_two_machines_share_a_bucket(new_job: NewJob, tmp_path: Path) -> None:
    """Each has a lock of its own: the heartbeats alone tell the one of the other."""
    if s3_server.binary() is None:
        pytest.skip(s3_server.MISSING)
    job = new_job(600, **LEASE)
    with s3_server.serving(tmp_path / "s3") as port:
        job.environment |= {**s3_server.CREDENTIALS, "TEST_CHECKPOINTS": s3_server.address(port, "jobs")}
        one, two = tmp_path / "one", tmp_path / "two"
        with machine(job, one) as (leader, _), machine(job, two, "--until-caught-up") as (standby, log):
            eventually(lambda: f"standby for process {leader.pid} on " in log.read_text(), "the second one stands by")
            eventually(lambda: read(job.bootstrap, job.output), "the first one commits")

            told = told_at(job, two)
            assert (told["state"], told["pid"], told["host"]) == ("running", leader.pid, socket.gethostname())
            assert told["epoch"] is not None
            (listed,) = asked(job, tmp_path, "list", "--json")
            assert (listed["job"], listed["state"], listed["pid"]) == (job.name, "running", leader.pid)

            leader.kill()

            assert standby.wait(PATIENCE) == 0, log.read_text()
            assert f"process {leader.pid} on " in log.read_text()
            assert "has ended: this supervisor takes over" in log.read_text()
        assert told_at(job, one)["state"] == "stopped", "who led last ended in order, elsewhere"
        for home in (one, two):
            shown = reading.read_job(home / ".kafka-eos", job.name)
            assert shown is not None and shown.history is not None
            assert {"started", "running", "committed"} <= {event["event"] for event in shown.history}
        check(job)


@pytest.mark.campaign
def test_of_two_machines_that_stand_by_one_takes_over_and_none_while_the_store_answers_late(
    new_job: NewJob, tmp_path: Path
) -> None:
    """Three machines. First the store stands still for longer than a lease: who leads is well, and goes on."""
    if s3_server.binary() is None:
        pytest.skip(s3_server.MISSING)
    job = new_job(600, **LEASE)
    store = s3_server.Server(tmp_path / "s3")
    job.environment |= {**s3_server.CREDENTIALS, "TEST_CHECKPOINTS": s3_server.address(store.port, "jobs")}
    names = ("one", "two", "three")
    try:
        with (
            feeding(job),
            machine(job, tmp_path / names[0]) as (leader, _),
            machine(job, tmp_path / names[1]) as (second, said),
            machine(job, tmp_path / names[2]) as (third, also_said),
        ):
            others = {second: said, third: also_said}
            waits = f"standby for process {leader.pid} on "
            eventually(lambda: all(waits in log.read_text() for log in others.values()), "both stand by")
            eventually(lambda: read(job.bootstrap, job.output), "the first one commits")
            store.pause()
            time.sleep(2 * LEASE_SECONDS)  # the fault itself
            store.resume()
            eventually(
                lambda: all("took longer than" in log.read_text() for log in others.values()), "both have noticed"
            )
            written = len(read(job.bootstrap, job.output))
            eventually(lambda: len(read(job.bootstrap, job.output)) > written, "the first one goes on")
            assert leader.poll() is None
            assert not any("takes over" in log.read_text() for log in others.values())

            leader.kill()
            written = len(read(job.bootstrap, job.output))
            eventually(lambda: len(read(job.bootstrap, job.output)) > written, "one of them leads")
            alive = [process for process in others if process.poll() is None]
            assert alive, "both took over and one was fenced at most"
            for process in alive:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(PATIENCE) for process in alive] == [0] * len(alive)
        with machine(job, tmp_path / "four", "--until-caught-up") as (last, log):
            assert last.wait(PATIENCE) == 0, log.read_text()
        check(job)
    finally:
        store.kill()


def told_at(job: Job, home: Path) -> dict[str, Any]:
    """What ``kafka-eos status`` says on one machine."""
    (found,) = asked(job, home, "status", job.name, "--json")
    return found


def asked(job: Job, home: Path, *arguments: str) -> list[dict[str, Any]]:
    """The objects that a command prints on one machine."""
    where = {**job.environ(), "KAFKA_EOS_CHECKPOINT_DIR": job.environment["TEST_CHECKPOINTS"]}
    command = [sys.executable, "-m", "kafka_eos", *arguments]
    done = subprocess.run(command, env=where, cwd=home, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def machine(job: Job, home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A supervisor in a directory of its own, once it leads or stands by, and its log."""
    home.mkdir()
    log = home / "log"
    command = [sys.executable, "-m", "kafka_eos", "run", str(job.app), "--standby", *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=job.environ(), cwd=home, stdout=out, stderr=out)
    try:
        led = home / ".kafka-eos" / job.name / STATUS
        eventually(
            lambda: led.exists() or "standby for process" in log.read_text() or process.poll() is not None, "it begins"
        )
        yield process, log
    finally:
        process.kill()
        process.wait()


@pytest.mark.campaign
def test_the_lead_changes_hands_often(new_job: NewJob) -> None:
    """Leaders are killed, frozen and ended in turn; each is followed by the one that stood by."""
    job = new_job(600, **LEASE)
    with feeding(job):
        leader = Running(job, "", "--standby")
        for number in range(12):
            leader.until_output()
            with_lock_of_its_own = number % 2 == 0
            if with_lock_of_its_own:
                elsewhere(job)
            standby = Running(job, "", "--standby")
            try:
                stands_by(standby, leader)
                leader.send((signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)[number % 3])
                standby.until_output()
            finally:
                leader.end()
            leader = standby
    try:
        leader.until_all_committed()
        leader.drain()
    finally:
        leader.end()
    check_all(job)
    audit_passes(job)


def test_heartbeats_do_not_pile_up(new_job: NewJob) -> None:
    job = new_job(300, KAFKA_EOS_STANDBY_LEASE="500ms")
    beats = job.checkpoints / job.name / paths.HEARTBEATS
    with leading(job) as leader:
        leader.until(lambda: beats.exists() and any(beats.iterdir()), "give a heartbeat")
        first = {beat.name for beat in beats.iterdir()}
        eventually(lambda: first.isdisjoint(beat.name for beat in beats.iterdir()), "the next heartbeats come")
        leader.until_all_committed()
        leader.drain()
    left = sorted(beat.name for beat in beats.iterdir())
    numbers = [paths.parse_heartbeat_name(f"{paths.HEARTBEATS}/{name}") for name in left]
    writer, newest = numbers[-1]
    assert numbers == [(writer, newest - 1), (writer, newest)]  # whoever lists while one is written sees the one before
    check_all(job)
