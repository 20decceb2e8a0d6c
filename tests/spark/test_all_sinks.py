"""A topic, tables of two databases and two lakes, Parquet files and a receiver in one epoch on Spark, under kills.

Drivers die between commits and in the middle of sending, workers while they stage.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.receiver import receiving
from tests.spark.drivers import Run, fired
from tests.spark.kit import Job, feed, payment, rows, same, totals

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.campaign, pytest.mark.timeout(2400)]

SYSTEMS = """
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.postgres import PostgresSink

CATALOG = {{"type": "sql", "uri": "sqlite:///HERE/catalog.db", "warehouse": "file://HERE/iceberg"}}
COLUMNS = {{"account": "TEXT NOT NULL", "total": "INTEGER NOT NULL", "id": "INTEGER NOT NULL"}}
pipeline = Pipeline("{name}")
totals = (
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
)
totals.sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(PostgresSink("DATABASE", "totals", value=Total, create=True), name="to-rows")
totals.sink(DbApiSink("sqlite:///HERE/totals.db", "totals", COLUMNS), name="to-sqlite")
totals.sink(FileSink("HERE/parquet", value=Total, format="parquet"), name="to-parquet")
totals.sink(DeltaSink("HERE/delta", value=Total, create=True), name="to-delta")
totals.sink(IcebergSink("shop.totals", properties=CATALOG, value=Total, create=True), name="to-iceberg")
totals.sink(HttpSink("RECEIVER", outbox="HERE/outbox", value=Total), name="to-service")
"""
DEATHS = (
    "sink.prepare.after",
    "commit.between",
    "outbox.between",
    "recovery.probed",
    "lake.commit.after",
    "lake.commit.before",
    "outbox.after",
)
SETTINGS = {"KAFKA_EOS_BATCH_SIZE": "20", "KAFKA_EOS_CHECKPOINT_INTERVAL": "100ms"}


def test_every_system_has_each_row_once_whichever_process_is_killed(
    new_job: Callable[..., Job], database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # for the example that the job uses
    where, sqlite = database(), tmp_path / "totals.db"
    with sqlite3.connect(sqlite) as connection:
        connection.execute("CREATE TABLE totals (account TEXT NOT NULL, total INTEGER NOT NULL, id INTEGER NOT NULL)")
    with receiving() as receiver:
        source = SYSTEMS.replace("DATABASE", where).replace("HERE", str(tmp_path)).replace("RECEIVER", receiver.url)
        job = new_job(source, input=3, output=2)
        script, fed = ";".join(f"{point}=kill" for point in DEATHS), 0
        codes = [-signal.SIGKILL]
        while codes[-1] != 0 or len(fired(job)) < len(DEATHS):
            feed(job, "input", map(payment, range(fed, fed + 120)))
            fed += 120
            run = Run(job, "local[2]", "--until-caught-up", "-p", "2", failpoints=script, **SETTINGS)
            codes.append(run.ended())
            assert codes[-1] in (0, -signal.SIGKILL), run.tail()
            assert len(codes) < 4 * len(DEATHS), f"{fired(job)} of {DEATHS}: {run.tail()}"

    assert fired(job) == [*DEATHS]
    wanted = totals(map(payment, range(fed)))
    same(rows(job.values("output")), wanted)
    with psycopg.connect(where) as connection:
        same(connection.execute("SELECT account, total, id FROM totals ORDER BY id").fetchall(), wanted)
        assert connection.execute("SELECT * FROM kafka_eos.staged").fetchall() == []
    with sqlite3.connect(sqlite) as connection:
        same(connection.execute("SELECT account, total, id FROM totals ORDER BY id").fetchall(), wanted)
        states = connection.execute("SELECT DISTINCT state FROM kafka_eos_stages").fetchall()
        assert set(states) <= {("committed",), ("aborted",)}
    in_files = ds.dataset(tmp_path / "parquet", format="parquet").to_table().to_pylist()
    assert sorted(rows(in_files)) == sorted(wanted)
    assert sorted(rows(DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist())) == sorted(wanted)
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    in_iceberg = catalog.load_table("shop.totals").scan().to_arrow().to_pylist()
    assert sorted(rows(in_iceberg)) == sorted(wanted)
    same(rows(receiver.values()), wanted)
    assert max(receiver.asked.values()) > 1
    assert job.left_open() == []
