"""Jobs that write tables of an SQLite file through the sink for any database, killed at named steps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import harness
from tests.chaos.harness import Job, expected
from tests.marks import campaign

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
RECORDS = 300


@pytest.fixture
def new_tables(new_job: Callable[..., Job]) -> Callable[..., Job]:
    """``new_job`` with an SQLite file that has both tables."""

    def make(**environment: Any) -> Job:
        job = new_job(RECORDS, app="sqlite.py", **environment)
        job.environment["TEST_DATABASE"] = str(job.directory / "totals.db")
        for table, key in (("totals", ""), ("newest", ", PRIMARY KEY (account)")):
            columns = f"account TEXT NOT NULL, total INTEGER NOT NULL, id INTEGER NOT NULL{key}"
            rows(job, f"CREATE TABLE {table} ({columns})")
        return job

    return make


def rows(job: Job, statement: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(job.environment["TEST_DATABASE"]) as connection:
        return connection.execute(statement).fetchall()


def check(job: Job) -> None:
    """Every output holds what the input makes, and nothing is left over."""
    wanted = sorted(expected(harness.read(job.bootstrap, job.input)))
    newest = {account: (account, total, number) for account, total, number in wanted}
    in_kafka = [json.loads(message.value()) for message in harness.read(job.bootstrap, job.output)]

    assert sorted((row["account"], row["total"], row["id"]) for row in in_kafka) == wanted
    assert sorted(rows(job, "SELECT account, total, id FROM totals")) == wanted
    assert sorted(rows(job, "SELECT account, total, id FROM newest")) == sorted(newest.values())
    assert rows(job, "SELECT name FROM sqlite_master WHERE name LIKE 'kafka_eos_stage\\_%' ESCAPE '\\'") == []
    assert rows(job, "SELECT * FROM kafka_eos_stages WHERE state NOT IN ('committed', 'aborted')") == []
    assert len(rows(job, "SELECT DISTINCT epoch FROM kafka_eos_stages")) <= 2
    assert harness.open_transactions(job) == []


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("points", "workers"),
    [
        pytest.param(("sink.prepare.after", "commit.between", "recovery.probed"), 1, id="some-1"),
        *(
            campaign(points, workers, named=f"{name}-{workers}")
            for name, points in {"an-epoch": AN_EPOCH, "a-recovery": A_RECOVERY}.items()
            for workers in (1, 3)
        ),
    ],
)
@pytest.mark.campaign
def test_a_job_that_dies_between_any_two_steps_loses_and_doubles_nothing(
    new_tables: Callable[..., Job], points: tuple[str, ...], workers: int
) -> None:
    job = new_tables(KAFKA_EOS_PARALLELISM=workers)

    job.run(";".join(f"{point}=kill" for point in points))

    check(job)
