"""Tables of PostgreSQL and of a lake, and a topic, in one epoch on Spark; a job that moves between the engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kafka_eos.connectors._lake.file_names import CONTROL
from tests.spark.kit import Job, feed, payment, rows, same, totals

TABLES = """
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.postgres import PostgresSink

pipeline = Pipeline("{name}")
totals = (
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .filter(lambda payment: payment.id != 333 or not once("killed") or os.kill(os.getpid(), signal.SIGKILL))
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
)
totals.sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(PostgresSink("DATABASE", "totals", value=Total, create=True), name="to-rows")
totals.sink(PostgresSink("DATABASE", "newest", value=Total, key="account", create=True), name="to-newest")
totals.sink(DeltaSink("LAKE/delta", value=Total, create=True), name="to-delta")
catalog = {{"type": "sql", "uri": "sqlite:///LAKE/catalog.db", "warehouse": "file://LAKE/iceberg"}}
totals.sink(IcebergSink("shop.totals", properties=catalog, value=Total, create=True), name="to-iceberg")
keyed = {{"value": Total, "create": True, "key": "account"}}
totals.sink(DeltaSink("LAKE/newest", **keyed), name="newest-to-delta")
totals.sink(IcebergSink("shop.newest", properties=catalog, **keyed), name="newest-to-iceberg")
"""


def test_rows_are_there_once_though_a_task_is_killed_and_the_job_moves_to_the_other_engine(
    new_job: Callable[..., Job], spark: Any, database: Callable[[], str], tmp_path: Path
) -> None:
    where = database()
    job = new_job(TABLES.replace("DATABASE", where).replace("LAKE", str(tmp_path)), input=3, output=3)

    feed(job, "input", map(payment, range(400)))
    job.on_spark(spark)
    feed(job, "input", map(payment, range(400, 500)))
    job.embedded(3)

    wanted = totals(map(payment, range(500)))
    assert (job.directory / "killed").exists()
    same(rows(job.values("output")), wanted)
    with psycopg.connect(where) as connection:
        same(connection.execute("SELECT account, total, id FROM totals ORDER BY id").fetchall(), wanted)
        newest = {row[0]: row for row in wanted}
        found = connection.execute("SELECT account, total, id FROM newest").fetchall()
        assert sorted(found) == sorted(newest.values())
        assert connection.execute("SELECT * FROM kafka_eos.staged").fetchall() == []
    table = DeltaTable(tmp_path / "delta")
    in_delta = [(row["account"], row["total"], row["id"]) for row in table.to_pyarrow_table().to_pylist()]
    assert sorted(in_delta) == sorted(wanted)  # a table has no order
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    iceberg = catalog.load_table("shop.totals")
    assert sorted(tuple(row.values()) for row in iceberg.scan().to_arrow().to_pylist()) == sorted(wanted)
    keyed = (DeltaTable(tmp_path / "newest").to_pyarrow_table(), catalog.load_table("shop.newest").scan().to_arrow())
    for found in keyed:
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == sorted(newest.values())
    named = [*table.file_uris(), *iceberg.inspect.files().column("file_path").to_pylist()]
    there = {path.name for place in ("delta", "iceberg/shop/totals") for path in (tmp_path / place).rglob("part-*")}
    assert there == {Path(uri).name for uri in named}
    assert list(tmp_path.rglob(f"{CONTROL}/.staged*")) == []
    assert job.left_open() == []
