"""Disks that are full while output is staged, and a database that is away for a minute while it is committed.

Each is the real thing: a small file system that is filled up, a server that is shut down. Nothing is lost, the log says
what is missing, and the job goes on by itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from kafka_eos.devtools.postgres import PostgresServer
from tests.chaos import test_lake, test_tables
from tests.chaos.harness import Job, feed
from tests.chaos.running import audit_passes, check_all, events, has_output, running, standing
from tests.chaos.small_disk import MayNotMount, SmallDisk, small_disk
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.campaign, pytest.mark.chaos]

AWAY = 60.0
PATIENT = {"KAFKA_EOS_MAX_RESTARTS": 1000}


@pytest.fixture
def small_at() -> Iterator[Callable[[Path], SmallDisk]]:
    """Mounts one at a path."""
    with ExitStack() as mounted:

        def mount(where: Path) -> SmallDisk:
            try:
                return mounted.enter_context(small_disk(where, megabytes=256))
            except MayNotMount as error:
                pytest.skip(f"a small file system needs the right to mount one: {error}")

        yield mount


@pytest.fixture
def small(small_at: Callable[[Path], SmallDisk]) -> SmallDisk:
    return small_at(Path(tempfile.mkdtemp(prefix="kafka-eos-small-")))


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that only this test has."""
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))).start()
    yield server
    server.remove()


def filled_and_emptied(job: Job, disk: SmallDisk, what: str) -> None:
    """Let the job run, fill its disk, wait until it says so and has tried again, make room, and let it end."""
    with running(job) as run:
        run.until_output()
        disk.fill()
        feed(job.bootstrap, job.input, range(10_000, 10_400))
        run.until(lambda: run.log.count(what) > 1, f"say {what!r} more than once", 2 * PATIENCE)
        disk.make_room()
        feed(job.bootstrap, job.input, range(10_400, 10_500))
        run.until_all_committed()
        run.drain()
    assert [event for event in events(job) if event["event"] == "revoked"] == []


@pytest.mark.parametrize("of", ["state", "checkpoints"])
def test_a_disk_of_a_job_that_stays_full_is_waited_for_and_counts_as_one_failure(
    new_job: Callable[..., Job], small_at: Callable[[Path], SmallDisk], tmp_path: Path, of: str
) -> None:
    """With the settings that a job has by default. What an attempt lets go of, somebody else takes at once.

    Below the checkpoints are the history, the ledger, and the local state, too; the audit reads the first two.
    """
    job = new_job(300, "totals.py", **({"KAFKA_EOS_STATE_DIR": tmp_path / "state"} if of == "state" else {}))
    small = small_at(tmp_path / "state" if of == "state" else job.checkpoints)
    wait = "no disk space for "

    with running(job) as run:
        run.until_output()
        small.keep_full()
        feed(job.bootstrap, job.input, range(10_000, 10_400))
        run.until(lambda: run.log.count(wait) > 5, "wait for room", 2 * PATIENCE)
        before = len(run.events("restarting"))
        small.make_room()
        feed(job.bootstrap, job.input, range(10_400, 10_500))
        run.until_all_committed()
        run.drain()

    assert 0 < before < 5, "one attempt has failed, or another one that got room for a moment; then it waits"
    assert "Free some space, and the job continues" in run.log
    check_all(job)
    audit_passes(job)


def test_a_leader_without_room_for_heartbeats_keeps_the_lead_while_a_standby_of_its_machine_watches(
    new_job: Callable[..., Job], small_at: Callable[[Path], SmallDisk], tmp_path: Path
) -> None:
    """It is alive; killing it would not help, because its successor would have no disk space either."""
    lease = 2.0
    job = new_job(300, "totals.py", KAFKA_EOS_STANDBY_LEASE=f"{lease}s")
    small = small_at(job.checkpoints)

    with running(job, "", "--standby") as leader:
        leader.until_output()
        with running(job, "", "--standby") as standby:
            standby.until(lambda: f"standby for process {leader.pid} on " in standby.log, "stand by")
            small.keep_full()
            leader.until(lambda: "heartbeats cannot be written" in leader.log, "have no room", 2 * PATIENCE)
            time.sleep(5 * lease)  # in which it would be taken for gone
            assert leader.alive and "killed" not in standby.log
            small.make_room()
            feed(job.bootstrap, job.input, range(10_000, 10_100))
            leader.until_all_committed()

            leader.send(signal.SIGKILL)
            feed(job.bootstrap, job.input, range(10_100, 10_200))
            standby.until_all_committed()
            standby.drain()
    check_all(job)
    audit_passes(job)


@pytest.mark.parametrize("of", ["TEST_OUT_DIR", "TEST_TABLES"], ids=["files", "tables"])
def test_a_disk_that_is_full_while_files_are_staged_loses_nothing(
    new_job: Callable[..., Job], database: Callable[[], str], small: SmallDisk, tmp_path: Path, of: str
) -> None:
    """Of a directory of files, or of tables of a lake with their logs and their catalog."""
    places = {"TEST_OUT_DIR": tmp_path / "lake", "TEST_TABLES": tmp_path / "tables", of: small.where / "small"}
    places["TEST_TABLES"].mkdir()
    job = new_job(300, app="lake.py", TEST_DATABASE=database(), **places, **PATIENT)

    filled_and_emptied(job, small, "No space left on device")

    test_lake.check(job)


def test_a_disk_that_is_full_while_a_database_stages_rows_loses_nothing(
    new_job: Callable[..., Job], own_server: PostgresServer, small: SmallDisk
) -> None:
    """All that the database makes is on it, so that its log is not: without room for that a server ends."""
    room = small.where / "tables"
    room.mkdir()
    if os.getuid() == 0:
        shutil.chown(room, (own_server.home / "data").owner())
    with psycopg.connect(own_server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{room}'".encode())
        connection.execute("CREATE DATABASE shop TABLESPACE small")
    job = new_job(
        300, app="tables.py", TEST_DATABASE=own_server.conninfo.replace("dbname=postgres", "dbname=shop"), **PATIENT
    )

    filled_and_emptied(job, small, "No space left on device")

    test_tables.check(job)


def test_a_database_that_is_away_for_a_minute_in_the_commit_phase_is_waited_for(
    new_job: Callable[..., Job], own_server: PostgresServer
) -> None:
    job = new_job(300, app="tables.py", TEST_DATABASE=own_server.conninfo)
    with standing(job, "commit.before", lambda: has_output(job)) as run:
        own_server.stop(signal.SIGINT)
        run.send(signal.SIGCONT)
        run.until(lambda: "trying again" in run.log, "wait for the server")
        time.sleep(AWAY)  # the fault itself
        assert run.alive
        own_server.start()
        run.until_all_committed()
        run.drain()

        assert "could not commit" in run.log or "could not look for" in run.log
    test_tables.check(job)
    assert [event for event in events(job) if event["event"] == "revoked"] == []
