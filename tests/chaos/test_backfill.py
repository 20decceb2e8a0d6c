"""A backfill of files that goes on with a topic, under kills: each record once, in the order of event time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.chaos.harness import ACCOUNTS, Job, feed, open_transactions, read
from tests.chaos.running import running
from tests.marks import campaign

NewJob = Callable[..., Job]

FILES, ROWS, LIVE = 8, 100, 200
IN_FILES = FILES * ROWS
BASE = time.time_ns() // 1_000_000
DEATHS = "worker.ack.before=kill@3;commit.before=kill@3;bootstrap.done=kill;worker.ack.before=kill@2"
LAST = 3_000_000
"""Ids of payments behind all others: event time comes to the others with them."""


def begun(new_job: NewJob, **environment: Any) -> Job:
    """A job with payments in files, and later ones in its topic."""
    job = new_job(0, "backfill.py", TEST_BASE=BASE, TEST_IN_FILES=IN_FILES, **{"TEST_PAUSE": 0.002, **environment})
    history = job.directory / "history"
    history.mkdir()
    job.environment["TEST_HISTORY"] = str(history)
    for number in range(FILES):
        ids = range(number * ROWS, number * ROWS + ROWS)
        rows = [{"id": n, "account": f"a{n % ACCOUNTS}", "amount": 1} for n in ids]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), history / f"part-{number}.parquet", row_group_size=30)
    feed(job.bootstrap, job.input, range(IN_FILES, IN_FILES + LIVE))
    return job


def check(job: Job) -> None:
    """Every payment went out once, those of an account in the order of event time, and none before its turn."""
    fed = [json.loads(message.value())["id"] for message in read(job.bootstrap, job.input)]
    feed(job.bootstrap, job.input, range(LAST, LAST + ACCOUNTS))
    job.run()
    sent: dict[str, list[int]] = {}
    for message in read(job.bootstrap, job.output):
        row = json.loads(message.value())
        sent.setdefault(row["account"], []).append(row["id"])
    due: dict[str, list[int]] = {}
    for n in sorted([*range(IN_FILES), *fed]):
        due.setdefault(f"a{n % ACCOUNTS}", []).append(n)

    assert {account: [n for n in ids if n < LAST] for account, ids in sent.items()} == due
    assert not open_transactions(job)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("handover", "workers"),
    [("bootstrap.done=kill", 2), campaign("bootstrap.done=kill@2", 3), campaign("bootstrap.done=kill", 1)],
)
def test_a_backfill_that_is_killed_hands_over_to_kafka_each_record_once_and_in_order(
    new_job: NewJob, handover: str, workers: int
) -> None:
    """Workers and supervisors die while files are read, when the last one is, and when the topic has been begun."""
    job = begun(new_job, KAFKA_EOS_PARALLELISM=workers)

    job.run(f"worker.ack.before=kill@2;commit.before=kill@2;{handover};worker.ack.before=kill@2;commit.before=kill@2")

    check(job)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("script", "workers"),
    [
        campaign("commit.before=kill@3;bootstrap.done=kill", 3, named="few"),
        campaign(DEATHS, 3, named="3"),
        campaign(DEATHS, 1, named="1"),
    ],
)
def test_a_table_of_a_database_comes_before_the_topic_too(
    new_job: NewJob, database: Callable[[], str], script: str, workers: int
) -> None:
    """Rows that are written, and those that are changed when they have been read, do not count."""
    job = begun(new_job, KAFKA_EOS_PARALLELISM=workers, TEST_DATABASE=database())
    with psycopg.connect(job.environment["TEST_DATABASE"], autocommit=True) as connection:
        connection.execute("CREATE TABLE payments (id bigint PRIMARY KEY, account text, amount bigint)")
        some = f"SELECT n, 'a' || n % {ACCOUNTS}, 1 FROM generate_series(0, {IN_FILES - 1}) n"
        connection.execute(f"INSERT INTO payments {some}".encode())
        with running(job) as run:
            run.until(lambda: run.count("committed") >= 2, "commit some of the table")
        connection.execute("INSERT INTO payments VALUES (-1, 'a1', 1), (5000000, 'a1', 1)")

    job.run(script)

    check(job)


@pytest.mark.campaign
@pytest.mark.chaos
def test_event_time_goes_on_while_files_are_read_also_where_one_worker_has_none(new_job: NewJob) -> None:
    """Payments of the first files go out before the last one is read: none waits for the topic."""
    job = begun(new_job, KAFKA_EOS_PARALLELISM=3, TEST_PAUSE=0.01)
    with running(job) as run:
        run.until(lambda: bool(read(job.bootstrap, job.output)), "send something")
        assert run.last("tables")["waiting"] == {"live": ["history"]}
        run.drain()
    check(job)
