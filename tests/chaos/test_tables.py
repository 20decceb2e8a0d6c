"""Jobs that write tables of a real PostgreSQL, and Kafka in the same epochs, killed at named steps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kafka_eos.devtools.postgres import PostgresServer
from tests.chaos import harness
from tests.chaos.harness import Job, expected
from tests.chaos.running import events, has_output, refused, standing
from tests.marks import campaign
from tests.waiting import PATIENCE

RECORDS = 300
NewJob = Callable[..., Job]

AN_EPOCH = (
    "sink.seal",
    "sink.flush.before",
    "sink.flush.after",
    "sink.prepare.after",
    "manifest.published",
    "commit.before",
    "commit.between",
    "commit.after",
    "receipt.before",
    "receipt.after",
)
A_RECOVERY = ("commit.between", "recovery.probed", "recovery.committed", "recovery.based", "recovery.aborted")


@pytest.fixture
def new_tables(new_job: NewJob, database: Callable[[], str]) -> NewJob:
    """``new_job`` with an empty database."""

    def make(records: int = RECORDS, **environment: Any) -> Job:
        return new_job(records, app="tables.py", TEST_DATABASE=database(), **environment)

    return make


@pytest.fixture
def new_prepared(new_job: NewJob, preparing_database: Callable[[], str]) -> Iterator[NewJob]:
    """The same on a server that lets transactions be prepared: ``totals`` is written so, ``newest`` as everywhere."""
    made: list[Job] = []

    def make(records: int = RECORDS, **environment: Any) -> Job:
        made.append(new_job(records, app="tables.py", TEST_DATABASE=preparing_database(), **environment))
        return made[-1]

    yield make
    for job in made:
        for gid in in_doubt(job):  # else the database could not be dropped
            with psycopg.connect(job.environment["TEST_DATABASE"], autocommit=True) as connection:
                connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def in_totals(job: Job) -> list[tuple[Any, ...]]:
    """Rows of the table, which the job makes."""
    return rows(job, "SELECT * FROM totals") if rows(job, "SELECT to_regclass('totals')") != [(None,)] else []


def in_doubt(job: Job) -> list[str]:
    return [gid for (gid,) in rows(job, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")]


def rows(job: Job, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(job.environment["TEST_DATABASE"]) as connection:
        return connection.execute(statement.encode()).fetchall()


def change(job: Job, statement: str) -> None:
    with psycopg.connect(job.environment["TEST_DATABASE"]) as connection:
        connection.execute(statement.encode())


def doctor(job: Job) -> tuple[int, str]:
    command = [sys.executable, "-m", "kafka_eos", "doctor", str(job.app), "--no-checks"]
    done = subprocess.run(command, env=job.environ(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout


def check(job: Job) -> None:
    """Every output holds what the input makes, and nothing is left over."""
    messages = harness.read(job.bootstrap, job.input)
    wanted = expected(messages)
    newest = {account: (account, total, number) for account, total, number in wanted}
    in_kafka = [json.loads(message.value()) for message in harness.read(job.bootstrap, job.output)]

    assert sorted((row["account"], row["total"], row["id"]) for row in in_kafka) == sorted(wanted)
    assert sorted(rows(job, "SELECT account, total, id FROM totals")) == sorted(wanted)
    kept = sorted(row for row in newest.values() if row[1] % 10 != 0)
    assert sorted(rows(job, "SELECT account, total, id FROM newest")) == kept
    nothing_left(job)


def nothing_left(job: Job) -> None:
    """No staging table; of the ledger only what may still be asked for."""
    assert rows(job, "SELECT relname FROM pg_class WHERE relname LIKE 'stage\\_%' AND relkind = 'r'") == []
    assert rows(job, "SELECT * FROM kafka_eos.staged") == []
    assert in_doubt(job) == []
    assert len(rows(job, "SELECT DISTINCT epoch FROM kafka_eos.ledger")) <= 2
    assert harness.open_transactions(job) == []


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("points", "workers"),
    [
        pytest.param(("sink.prepare.after", "commit.between", "recovery.probed"), 1, id="some-1"),
        campaign(("commit.between",), 3, named="some-3"),
        *(
            campaign(points, workers, named=f"{name}-{workers}")
            for name, points in {"an-epoch": AN_EPOCH, "a-recovery": A_RECOVERY}.items()
            for workers in (1, 3)
        ),
    ],
)
def test_a_job_that_dies_between_any_two_steps_loses_and_doubles_nothing(
    new_tables: NewJob, points: tuple[str, ...], workers: int
) -> None:
    job = new_tables(KAFKA_EOS_PARALLELISM=workers)

    job.run(";".join(f"{point}=kill" for point in points))

    check(job)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("points", "workers"),
    [
        pytest.param(("sink.prepare.after", "commit.between"), 1, id="some-1"),
        *(
            campaign(points, workers, named=f"{name}-{workers}")
            for name, points in {"an-epoch": AN_EPOCH, "a-recovery": A_RECOVERY}.items()
            for workers in (1, 3)
        ),
    ],
)
def test_a_job_that_prepares_transactions_dies_between_any_two_steps_too(
    new_prepared: NewJob, points: tuple[str, ...], workers: int
) -> None:
    job = new_prepared(KAFKA_EOS_PARALLELISM=workers)

    job.run(";".join(f"{point}=kill" for point in points))

    check(job)
    assert "are staged in prepared transactions" in job.log.read_text()


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_job_may_change_its_strategy_between_two_runs_and_doctor_shows_what_is_open(new_prepared: NewJob) -> None:
    """Each run dies with a decided epoch, and with the next one open; the other strategy finishes and clears them."""
    job = new_prepared(KAFKA_EOS_PARALLELISM=1)
    for strategy in ("prepare", "stage", "prepare"):
        job.environment["TEST_STRATEGY"] = strategy
        before = len(in_totals(job))

        def decided(so_far: int = before) -> bool:
            """Something of this run is; what the run before has decided is committed first."""
            staged = "SELECT FROM kafka_eos.staged WHERE target = 'public.totals' AND rows > 0"
            return len(in_totals(job)) > so_far and bool(in_doubt(job) or rows(job, staged))

        with standing(job, "commit.before", decided) as run:
            run.send(signal.SIGKILL)
        (job.directory / "failpoints.log").unlink()
        code, listed = doctor(job)
        assert (code, "prepared, holds its locks, for public.totals" in listed) == (1, strategy == "prepare"), listed
        assert ("transaction kafka_eos_" in listed) == (strategy == "prepare")
    job.environment["TEST_STRATEGY"] = "stage"

    job.run()

    check(job)
    assert doctor(job) == (0, "no open output\n")


@pytest.mark.chaos
@pytest.mark.campaign
@pytest.mark.parametrize("server", ["new_tables", "new_prepared"])
def test_fifty_restarts_leave_nothing_behind(server: str, request: pytest.FixtureRequest) -> None:
    job = request.getfixturevalue(server)()
    for _ in range(5):  # of ten deaths each
        job.run(";".join(f"{point}=kill" for point in AN_EPOCH))
        (job.directory / "failpoints.log").unlink()  # else the next script counts as done

    check(job)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that only this test has, to stop and start."""
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))).start()
    yield server
    server.remove()


@pytest.mark.chaos
def test_a_server_that_crashes_between_decision_and_commit_gets_the_commit_when_it_is_back(
    new_job: NewJob, own_server: PostgresServer
) -> None:
    job = new_job(300, app="tables.py", TEST_DATABASE=own_server.conninfo)
    with standing(job, "commit.before", lambda: has_output(job)) as run:
        own_server.stop(signal.SIGQUIT)
        run.send(signal.SIGCONT)
        run.until(lambda: "trying again" in run.log, "wait for the server")
        own_server.start()
        run.until_all_committed()
        run.drain()

    check(job)
    assert [event for event in events(job) if event["event"] == "revoked"] == []


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_table_that_is_gone_at_the_commit_stops_the_job_which_goes_on_when_it_is_back(new_tables: NewJob) -> None:
    job = new_tables()
    with standing(job, "commit.before", lambda: has_output(job)) as run:
        change(job, "ALTER TABLE newest RENAME TO elsewhere")
        run.send(signal.SIGCONT)
        assert run.ended() == 2, run.log[-3000:]
        assert 'relation "public.newest" does not exist' in run.log and "Nothing is lost" in run.log
    code, listed = doctor(job)
    assert code == 1 and "kafka_eos.stage_" in listed and "prepared, for public.newest" in listed
    assert "table public.newest existed at an earlier start" in refused(job, 2)
    change(job, "ALTER TABLE elsewhere RENAME TO newest")

    job.run()

    check(job)
    assert doctor(job) == (0, "no open output\n")


@pytest.mark.chaos
@pytest.mark.campaign
def test_a_column_that_went_while_the_job_runs_stops_it_with_its_name(new_tables: NewJob) -> None:
    job = new_tables()
    with standing(job, "receipt.after", lambda: has_output(job)) as run:
        change(job, "ALTER TABLE totals RENAME COLUMN id TO number")
        run.send(signal.SIGCONT)
        assert run.ended() == 2, run.log[-3000:]
        assert "id" in run.log and "public.totals" in run.log
    change(job, "ALTER TABLE totals RENAME COLUMN number TO id")

    job.run()

    check(job)
