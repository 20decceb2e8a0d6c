"""Tables and buckets, audited as topics are: what a job has written passes, and what was done to it is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import And, EqualTo

from kafka_eos.audit import Check, Verdict
from kafka_eos.audit.checks import database_tables as relations
from kafka_eos.connectors.files.s3.bucket import Bucket, BucketAddress
from tests.audit.job import Job
from tests.contract import s3_server
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PIPELINE = """
import decimal
import os
import msgspec
from pathlib import Path
from kafka_eos import Pipeline
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.postgres import PostgresSink

DATABASE = "{database}"
os.environ.update({credentials})  # the session was there before the store

class Order(msgspec.Struct):
    user: str
    n: int

class Total(msgspec.Struct):
    user: str
    total: int
    share: float

class Line(msgspec.Struct):
    user: str
    price: decimal.Decimal
    note: str

pipeline = Pipeline("{name}", checkpoint_interval=0.05, batch_size=20)
orders = pipeline.source(KafkaSource("{input}", value=Order), name="orders")
totals = orders.key_by(lambda order: order.user).fold(
    name="total", init=lambda: 0, step=lambda total, order: total + order.n,
    emit=lambda user, total: Total(user, total, total / 7))
lines = orders.map(lambda order: Line(order.user, round(decimal.Decimal(order.n) / 3, 2), "x" * (order.n % 4)))
lines.sink(PostgresSink(DATABASE, "lines", value=Line), name="lines")
orders.sink(PostgresSink(DATABASE, "newest", value=Order, key="user", create=True), name="newest")
totals.sink(
    PostgresSink(DATABASE, "totals", value=Total, key="user", delete=lambda t: t.total % 5 == 0, create=True),
    name="totals")
totals.sink(FileSink("{bucket}", value=Total, format="parquet", envelope=True,
                     partition_by=lambda row: {{"user": row.user}}), name="objects")
totals.sink(FileSink(Path(__file__).parent / "files", value=Total, format="parquet"), name="files")
totals.sink(DeltaSink(Path(__file__).parent / "delta", value=Total, create=True, partition_by=["user"]), name="delta")
home = Path(__file__).parent
catalog = {{"type": "sql", "uri": f"sqlite:///{{home}}/catalog.db", "warehouse": f"file://{{home}}"}}
totals.sink(IcebergSink("shop.totals", properties=catalog, value=Total, create=True), name="iceberg")
CELLS = {{"user": "TEXT NOT NULL", "n": "INTEGER NOT NULL"}}
orders.sink(DbApiSink(f"sqlite:///{{home}}/orders.db", "orders", CELLS), name="sqlite")
orders.sink(DbApiSink(f"sqlite:///{{home}}/orders.db", "newest", CELLS, key="user"), name="sqlite-newest")
keyed = {{"value": Total, "create": True, "key": "user", "delete": lambda t: t.total % 5 == 0}}
totals.sink(DeltaSink(home / "keyed", **keyed), name="delta-newest")
totals.sink(IcebergSink("shop.newest", properties=catalog, **keyed), name="iceberg-newest")
"""
ORDERS = 60


@pytest.fixture
def job(
    new_job: Callable[..., Job], bootstrap: str, topic: Callable[..., str], s3: str, database: Callable[[], str]
) -> Job:
    conninfo = database()
    with psycopg.connect(conninfo) as connection:
        # What is written is not what is there: a price has as many decimals as its column.
        connection.execute('CREATE TABLE lines (id serial, "user" text, price numeric(10, 3), note varchar(5))')
    source = PIPELINE.replace("{database}", conninfo).replace("{bucket}", s3)
    source = source.replace("{credentials}", f"{{{s3_server.CREDENTIALS}}}")
    made = new_job(source, input=topic(partitions=3))
    made.topics["database"], made.topics["bucket"] = conninfo, s3
    producer = in_order(bootstrap)
    for i in range(ORDERS):
        user = i % 6
        producer.produce(made.topics["input"], b'{"user":"u%d","n":%d}' % (user, i % 11 + 1), partition=user % 3)
    assert producer.flush(PATIENCE) == 0
    with sqlite3.connect(made.app.parent / "orders.db") as connection:
        connection.execute("CREATE TABLE orders (user TEXT NOT NULL, n INTEGER NOT NULL)")
        connection.execute("CREATE TABLE newest (user TEXT PRIMARY KEY, n INTEGER NOT NULL)")
    made.run(failpoints="commit.after=kill@5")
    return made


def execute(job: Job, *statements: str) -> None:
    with psycopg.connect(job.topics["database"]) as connection:
        for statement in statements:
            connection.execute(statement)


def corrupt_tables(job: Job) -> None:
    """In each, one row is taken away, one is there twice, and one is nobody's."""
    table = DeltaTable(job.app.parent / "delta")
    first, *_, last = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: (row["user"], row["total"]))
    table.delete(f"user = '{first['user']}' AND total = {first['total']}")
    more = [last, {"user": "stranger", "total": 1, "share": 0.5}]
    write_deltalake(table, pa.Table.from_pylist(more, pa.schema(table.schema().to_arrow())), mode="append")
    home = job.app.parent
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}")
    iceberg = catalog.load_table("shop.totals")
    iceberg.delete(And(EqualTo("user", first["user"]), EqualTo("total", first["total"])))
    iceberg.append(pa.Table.from_pylist(more, iceberg.schema().as_arrow()))
    corrupt_keyed_tables(job)


def corrupt_keyed_tables(job: Job) -> None:
    """In each, one row says something else, one is taken away, and one is nobody's."""
    home = job.app.parent
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}")
    delta, iceberg = DeltaTable(home / "keyed"), catalog.load_table("shop.newest")
    rows = sorted(delta.to_pyarrow_table().to_pylist(), key=lambda row: row["user"])
    assert rows == sorted(iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["user"])
    wrong, _, *others = rows
    rows = [wrong | {"total": wrong["total"] + 1}, *others, {"user": "stranger", "total": 1, "share": 0.5}]
    write_deltalake(delta, pa.Table.from_pylist(rows, pa.schema(delta.schema().to_arrow())), mode="overwrite")
    iceberg.overwrite(pa.Table.from_pylist(rows, iceberg.schema().as_arrow()))


def corrupt_sqlite(job: Job) -> None:
    """One row is taken away, one is there twice; of those with a key one says something else, and one is gone."""
    with sqlite3.connect(job.app.parent / "orders.db") as connection:
        connection.execute("DELETE FROM orders WHERE rowid = 1")
        connection.execute("INSERT INTO orders SELECT user, n FROM orders ORDER BY rowid DESC LIMIT 1")
        connection.execute("UPDATE newest SET n = 77 WHERE user = 'u2'")
        connection.execute("DELETE FROM newest WHERE user = 'u1'")


def found(verdict: Verdict) -> dict[Any, Any]:
    return {finding.check: dict(finding.by_sink) for finding in verdict.findings}


@pytest.mark.campaign
def test_tables_and_buckets_that_are_right_pass(job: Job, spark: Any) -> None:
    verdict = job.audit(spark)

    assert (verdict.conclusion.is_clean, found(verdict)) == (True, {}), verdict
    assert "not audited" not in verdict.headline
    assert "sink files not compared: its outputs carry no provenance; FileSink(…, envelope=True)" in verdict.headline
    assert "all but the newest value of each key of sink totals not compared" in verdict.headline
    assert "all but the newest value of each key of sink iceberg-newest not compared" in verdict.headline


def test_what_is_wrong_in_tables_and_buckets_is_named(job: Job, spark: Any, tmp_path: Path) -> None:
    execute(
        job,
        'UPDATE totals SET total = total + 1 WHERE "user" = (SELECT min("user") FROM totals)',
        "DELETE FROM newest WHERE \"user\" = 'u1'",
        "UPDATE newest SET n = 77 WHERE \"user\" = 'u2'",
        "INSERT INTO newest VALUES ('stranger', 1)",
        "DELETE FROM lines WHERE id = (SELECT min(id) FROM lines)",
        'INSERT INTO lines ("user", price, note) SELECT "user", price, note FROM lines ORDER BY id DESC LIMIT 1',
    )
    bucket = Bucket(BucketAddress.read(job.topics["bucket"]))
    objects = sorted(name for name in bucket.names("") if "/part-" in name)
    bucket.put(objects[0].replace("part-", "part-9"), b"damaged")
    local = tmp_path / "an-object"
    bucket.fetch(objects[-1], local)
    gone = pq.ParquetFile(local).metadata.num_rows
    bucket.delete(objects[-1])
    cut = sorted((job.app.parent / "files").rglob("part-*"))[0]
    cut_rows = pq.ParquetFile(cut).metadata.num_rows
    cut.write_bytes(cut.read_bytes()[:-12])
    corrupt_tables(job)
    corrupt_sqlite(job)

    wrong = found(job.audit(spark))

    keyed = {"newest": 1, "delta-newest": 1, "iceberg-newest": 1}
    also = {**keyed, "sqlite-newest": 1}
    assert {"totals": 1, **also}.items() <= wrong[Check.WRONG_TOTAL].items()
    files = {"objects": gone, "files": cut_rows}
    assert wrong[Check.LOST] == {"lines": 1, "sqlite": 1, "delta": 1, "iceberg": 1, **files, **also}
    assert wrong[Check.UNEXPECTED] == {"delta": 1, "iceberg": 1, **keyed}
    assert wrong[Check.DUPLICATE] == {"lines": 1, "sqlite": 1, "delta": 1, "iceberg": 1}
    assert wrong[Check.MALFORMED] == {"objects": 1, "files": 1}


SEEN = (
    "sink string, key_hash long, value_hash long, floats array<double>, topic string, partition int, offset long, "
    "preview string"
)
MADE = (
    "sink string, id string, e_source string, e_lane int, e_topic string, e_partition int, e_offset long, "
    "e_update long, e_key_hash long, e_value_hash long, e_floats array<double>, e_preview string, grp long, "
    "loose boolean"
)


def test_where_nothing_tells_the_newest_output_of_a_key_its_row_is_any_of_them(spark: Any) -> None:
    """Keys 1 and 2 come from two partitions, 3 from one, of 4 it is not known when its state expired."""

    def made(key: int, at: tuple[int, int], value: int | None, *, loose: bool = False, sub: int = 0) -> tuple[Any, ...]:
        partition, offset = at
        told = "null" if value is None else f'{{"v":{value}}}'
        return ("out", f"in/a.b/{partition}/{offset}/0.{sub}", "in", 0, "a.b", partition, offset, None, key,
                -1 if value is None else value, None, told, None, loose)  # fmt: skip

    outputs = [
        *(made(key, (partition, 5), 10 * key + partition) for key in (1, 2) for partition in (0, 1)),
        made(2, (1, 6), None),
        made(3, (0, 9), 39, sub=9), made(3, (0, 9), 30, sub=10), made(3, (0, 2), 38),
        made(4, (0, 4), 40, loose=True), made(4, (0, 7), 41),
        made(5, (0, 3), 50), made(5, (0, 8), None),
    ]  # fmt: skip

    def wrong(rows: dict[int, int]) -> set[tuple[str, str]]:
        there = [
            ("out", key, value, None, "t", -1, n, f'{{"v":{value}}}') for n, (key, value) in enumerate(rows.items())
        ]
        pairs = relations.met(spark.createDataFrame(there, SEEN), spark.createDataFrame(outputs, MADE), ["no-sink"])
        assert [(row["n"], row["loose"]) for row in relations.expected(pairs).collect()] == [(3, 3)]
        return {(row["check"], row["detail"]) for row in relations.flagged(pairs).collect()}

    assert wrong({1: 10, 3: 30, 4: 40}) == wrong({1: 11, 2: 20, 3: 30, 4: 41}) == set()
    assert wrong({1: 12, 2: 22, 3: 39, 5: 50, 6: 60}) == {
        ("WRONG_TOTAL", 'it is none of the outputs of its key: {"v":12}'),
        ("WRONG_TOTAL", 'it is none of the outputs of its key: {"v":22}'),
        ("WRONG_TOTAL", 'it is {"v":39}: expected {"v":30}'),
        ("LOST", 'the row of its key is missing: expected {"v":41}'),
        ("UNEXPECTED", 'the last output of its key deletes it: {"v":50}'),
        ("UNEXPECTED", 'no output has its key: {"v":60}'),
    }
