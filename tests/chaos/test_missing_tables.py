"""Tables that a job has made are gone at its next start, or are ahead of it: it goes back to an older checkpoint."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from tests.chaos.harness import APPS, Job
from tests.chaos.running import Running, events, manifests, refused, running
from tests.chaos.test_savepoints import kafka_eos
from tests.marks import campaign

NOWHERE = "127.0.0.1:1"
NUMBERS = list(range(100))
EPOCHS = 100
"""More than the job has."""


@pytest.fixture
def job(tmp_path: Path, database: Callable[[], str]) -> Job:
    (tmp_path / "tables").mkdir()
    environment = {"COLUMNS": "5000", "TEST_TABLES": str(tmp_path / "tables"), "TEST_DATABASE": database()}
    return Job("made", NOWHERE, "", "", tmp_path, APPS / "made.py", environment)


def catalog(job: Job) -> Catalog:
    where = job.environment["TEST_TABLES"]
    return load_catalog("default", type="sql", uri=f"sqlite:///{where}/catalog.db", warehouse=f"file://{where}/iceberg")


def ask(job: Job, statement: str) -> list[int]:
    with psycopg.connect(job.environment["TEST_DATABASE"]) as connection:
        cursor = connection.execute(statement.encode())
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


def rows(job: Job, delta_table: str = "delta", table: str = "numbers") -> list[list[int]]:
    """Of all three tables."""
    delta = DeltaTable(f"{job.environment['TEST_TABLES']}/{delta_table}").to_pyarrow_table()
    iceberg = catalog(job).load_table(f"shop.{table}").scan().to_arrow()
    return [
        *(sorted(table.column("id").to_pylist()) for table in (delta, iceberg)),
        ask(job, f"SELECT id FROM {table} ORDER BY id"),
    ]


@pytest.mark.parametrize("way", ["dropped", campaign("emptied")])
def test_a_table_that_is_gone_refuses_the_next_start_and_is_not_made_again(job: Job, way: str) -> None:
    """``emptied``: of the database nothing is left, so nothing there knows of the table."""
    job.run()
    delta, away = (Path(job.environment["TEST_TABLES"]) / name for name in ("delta", "away"))
    delta.rename(away)
    metadata = catalog(job).load_table("shop.numbers").metadata_location
    catalog(job).drop_table("shop.numbers")
    ask(job, "ALTER TABLE numbers RENAME TO away")
    if way == "emptied":
        ask(job, "ALTER SCHEMA kafka_eos RENAME TO away")

    for _ in range(2):  # the first refusal makes nothing that the second one would take for the table
        said = refused(job, 2)
        assert f"{delta} does not exist" in said
        assert "default:shop.numbers does not exist" in said
        assert ("public.numbers existed at an earlier start" if way == "dropped" else "neither table numbers") in said
        assert said.count("estore it") + said.count("estore the database") == 3
    away.rename(delta)
    catalog(job).register_table("shop.numbers", metadata)
    ask(job, "ALTER TABLE away RENAME TO numbers")
    if way == "emptied":
        ask(job, "ALTER SCHEMA away RENAME TO kafka_eos")
    job.run()

    assert rows(job) == [NUMBERS] * 3


@pytest.mark.campaign
def test_who_makes_the_tables_goes_on_with_empty_ones(job: Job) -> None:
    """And a job that begins makes them, wherever another one has written before."""
    job.run()
    delta = Path(job.environment["TEST_TABLES"]) / "delta"
    table = catalog(job).load_table("shop.numbers")
    kept = table.schema(), DeltaTable(delta).schema()
    delta.rename(delta.with_name("away"))
    catalog(job).drop_table("shop.numbers")
    ask(job, "DROP TABLE numbers")

    catalog(job).create_table("shop.numbers", kept[0])
    DeltaTable.create(delta, kept[1])
    ask(job, "CREATE TABLE numbers (id bigint NOT NULL)")
    job.run()
    assert rows(job) == [[]] * 3

    job.name = "another"
    job.run()
    assert rows(job) == [NUMBERS] * 3


@pytest.mark.campaign
@pytest.mark.chaos
def test_an_older_copy_that_was_put_back_refuses_the_next_start_until_the_newer_one_is_there(job: Job) -> None:
    """A copy of a moment ago: the job has not been started since, and has finished an epoch with rows for each."""
    with running(job, ";".join(["receipt.after=stop"] * EPOCHS)) as run:
        turns = iter(range(1, EPOCHS))
        _until_rows_are_committed(run, turns)
        keep(job, "older")
        run.send(signal.SIGCONT)
        _until_rows_are_committed(run, turns)
    keep(job, "newer")
    put_back(job, "older")

    for _ in range(2):  # the first refusal changes nothing that the second one looks at
        said = refused(job, 2)
        assert f"the log of {job.environment['TEST_TABLES']}/delta has term 1 and epoch" in said
        assert "the metadata of default:shop.numbers has term 1 and epoch" in said
        assert (
            "lacks output that was committed up to epoch" in said
            and "an older copy of the sink or of the checkpoints was restored" in said
        )
    put_back(job, "newer")
    job.run()

    assert rows(job) == [NUMBERS] * 3


@pytest.mark.campaign
def test_who_has_no_newer_copy_goes_on_with_a_savepoint(job: Job) -> None:
    """In the copy are tables and files that the job had staged then: they go, and nothing is written twice."""
    with running(job, ";".join(["receipt.after=stop"] * EPOCHS)) as run:
        turns = iter(range(1, EPOCHS))
        _until_rows_are_committed(run, turns)
        keep(job, "older")
        before = rows(job)
        run.send(signal.SIGCONT)
        _until_rows_are_committed(run, turns)
    after = rows(job)
    put_back(job, "older")
    said, savepoint = refused(job, 2), job.directory / "savepoint"
    assert "--checkpoint-dir, --from and --take-over" in said

    asked = kafka_eos(job, "savepoint", "trigger", str(job.app), "--path", str(savepoint))
    assert asked[0] == 0, asked
    (job.checkpoints / job.name).rename(job.directory / "first-life")
    with running(job, "", "--until-caught-up", "--from", str(savepoint), "--take-over") as run:
        assert run.ended() == 0, run.log[-3000:]

    lost = [sorted({*new} - {*old}) for new, old in zip(after, before, strict=True)]
    assert all(lost)
    assert rows(job) == [[n for n in NUMBERS if n not in missing] for missing in lost]
    assert ask(job, "SELECT count(*) FROM kafka_eos.staged") == [0]


def _until_rows_are_committed(run: Running, turns: Iterator[int]) -> None:
    """The supervisor stands behind the receipt of an epoch that has rows for all three tables."""
    for turn in turns:
        run.until_stopped(turn)
        if len(manifests(run.job)[-1].committables) == 3:
            return
        run.send(signal.SIGCONT)
    raise AssertionError(f"no epoch had rows; log:\n{run.log[-3000:]}")


BOOKS = ("kafka_eos.ledger", "kafka_eos.incarnations", "kafka_eos.staged", "numbers")


def keep(job: Job, copy: str) -> None:
    """All that there is of the three tables, under a name."""
    home = Path(job.environment["TEST_TABLES"])
    shutil.copytree(home, home.with_name(copy))
    ask(job, f"CREATE SCHEMA {copy}")
    for table in BOOKS:
        ask(job, f"CREATE TABLE {copy}.{table.rpartition('.')[2]} AS TABLE {table}")


def put_back(job: Job, copy: str) -> None:
    home = Path(job.environment["TEST_TABLES"])
    shutil.rmtree(home)
    shutil.copytree(home.with_name(copy), home)
    for table in BOOKS:
        ask(job, f"TRUNCATE {table}; INSERT INTO {table} SELECT * FROM {copy}.{table.rpartition('.')[2]}")


@pytest.mark.campaign
def test_a_job_that_goes_back_adds_rows_again_and_replaces_those_of_its_keys(job: Job) -> None:
    """What was committed after the checkpoint stays, and is made again: it is there twice unless it has a key."""
    job.environment["TEST_MORE"] = "1"
    job.run()
    older = next(epoch for epoch in events(job) if epoch["event"] == "decided" and sum(epoch["read"].values()))["epoch"]
    at = next(m for m in manifests(job) if m.epoch == older)
    before = sum(c.records for c in at.committables if c.by_sink.keys() == {"to-rows"})
    assert 0 < before < len(NUMBERS), "it has no older epoch in the middle"
    savepoint = job.directory / "savepoint"
    asked = kafka_eos(job, "savepoint", "trigger", str(job.app), "--epoch", str(older), "--path", str(savepoint))
    assert asked[0] == 0, asked
    (job.checkpoints / job.name).rename(job.directory / "first-life")

    with running(job, "", "--until-caught-up", "--from", str(savepoint), "--allow-repeated-output") as run:
        assert run.ended() == 0, run.log[-3000:]

    again = sorted([*NUMBERS, *NUMBERS[before:]])
    assert rows(job) == [again] * 3
    assert rows(job, "keyed", "keyed") == [NUMBERS] * 3
    lines = [line for part in Path(job.environment["TEST_TABLES"], "files").glob("part-*") for line in part.open()]
    assert sorted(json.loads(line)["id"] for line in lines) == again
