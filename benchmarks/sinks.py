"""Sinks beside the bulk loaders of their systems: ``python -m benchmarks.sinks --database CONNINFO``.

The same rows, in batches of 5,000, by one writer, in one epoch, in one process, without Kafka:

    sink      write, seal, pre-commit, probe, commit: durable and exactly once
    loader    what a program would call that wants the rows there, once, if nothing fails: ``pyarrow`` builds a table of
              each batch and writes a file, ``write_deltalake`` and pyiceberg's ``append`` get all of these in one
              commit, ``COPY`` sends tuples into the table itself, ``executemany`` inserts them in one transaction, and
              a loop sends requests with the client that the sink uses, a hundred rows each, to a receiver beside it,
              or calls the function of the receiver that ``IdempotentSink`` was given, with a hundred rows each
    by key    a table has all rows, and every twentieth one comes again, changed, in one epoch; the loader is
              ``DeltaTable.merge``. pyiceberg's ``upsert`` is given a tenth of all that: it compares row by row

Both begin with the same Python objects and take turns; figures are medians of wall time, in rows a second. Without
``--database`` there is no figure of PostgreSQL, and one of its prepared transactions only where that server has
max_prepared_transactions. Its tables are made in that database, and dropped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import httpx2
import msgspec
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from benchmarks.command import machine, table, tell
from kafka_eos.abc.committer import AtomicCommitter
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.sink import Sink
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.idempotent import IdempotentSink, Receiver, Row
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.testing.list_source import ListOrigin

_BATCH = 5000
_REQUEST = 100
"""Rows in one request."""
_EPOCH = EpochId(Epoch(1), Term(1))
_SCHEMA = pa.schema({"id": pa.int64(), "owner": pa.string(), "balance": pa.float64(), "blocked": pa.bool_()})


class Account(msgspec.Struct):
    id: int
    owner: str
    balance: float
    blocked: bool


def batches(rows: Sequence[Account]) -> Iterator[Sequence[Account]]:
    for begin in range(0, len(rows), _BATCH):
        yield rows[begin : begin + _BATCH]


def through(sink: Sink[Account], rows: Sequence[Account]) -> None:
    """As an engine does it."""
    ctx = JobContext("benchmark", Term(1), {})
    sink.check(ctx)
    writer, committer = sink.writer(TaskContext(ctx, 0, 1, "out")), sink.committer(ctx)
    for n, some in enumerate(batches(rows)):
        writer.write(Batch(some, range(len(some)), ListOrigin("in", "list", 0, n * _BATCH, some)))
    committables = writer.seal(_EPOCH)()
    decision = authorize(_EPOCH, [committer.probe(each) for each in committables], 0.0)
    assert isinstance(decision, CommitAuthorized)
    if isinstance(committer, AtomicCommitter):
        committer.commit_all(decision.permit, committables)
    else:
        for each in committables:
            committer.commit(decision.permit, each)
    writer.discard()
    committer.close()


def tables(rows: Sequence[Account]) -> Iterator[pa.Table]:
    for some in batches(rows):
        columns = zip(*((row.id, row.owner, row.balance, row.blocked) for row in some), strict=True)
        arrays = [pa.array(cells, field.type) for cells, field in zip(columns, _SCHEMA, strict=True)]
        yield pa.Table.from_arrays(arrays, schema=_SCHEMA)


def bare_parquet(path: Path, rows: Sequence[Account]) -> None:
    with pq.ParquetWriter(path, _SCHEMA) as writer:
        for some in tables(rows):
            writer.write_table(some)


def bare_copy(conninfo: str, name: str, rows: Sequence[Account]) -> None:
    statement = f"COPY {name} FROM STDIN".encode()
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row((row.id, row.owner, row.balance, row.blocked))


def seconds(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def parquet(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """Seconds of the sink, and of the loader."""
    here = home / uuid.uuid4().hex
    sink = FileSink(here, value=Account, format="parquet")
    took = seconds(lambda: through(sink, rows))
    assert sum(pq.ParquetFile(part).metadata.num_rows for part in here.glob("part-*")) == len(rows)
    return took, seconds(lambda: bare_parquet(here / "bare", rows))


def delta(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """The same of a Delta table."""
    here, bare = (home / uuid.uuid4().hex for _ in range(2))
    for each in (here, bare):
        DeltaTable.create(each, _SCHEMA)
    took = seconds(lambda: through(DeltaSink(here, value=Account), rows))
    loaded = seconds(lambda: write_deltalake(bare, pa.concat_tables(tables(rows)), mode="append"))
    for each in (here, bare):
        assert DeltaTable(each).count() == len(rows)
    return took, loaded


def iceberg(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """The same of an Iceberg table, with its catalog in SQLite."""
    here = home / uuid.uuid4().hex
    here.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{here}/catalog.db", "warehouse": f"file://{here}"}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("bench")
    bare, _ = (catalog.create_table(f"bench.{name}", _SCHEMA) for name in ("bare", "rows"))
    took = seconds(lambda: through(IcebergSink("bench.rows", properties=properties, value=Account), rows))
    loaded = seconds(lambda: bare.append(pa.concat_tables(tables(rows))))
    for name in ("bare", "rows"):
        assert catalog.load_table(f"bench.{name}").scan().count() == len(rows)
    return took, loaded


def changed(rows: Sequence[Account]) -> list[Account]:
    return [Account(row.id, row.owner, row.balance + 1, row.blocked) for row in rows[::20]]


def delta_by_key(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """The same where rows replace others."""
    here, bare = (home / uuid.uuid4().hex for _ in range(2))
    for each in (here, bare):
        write_deltalake(each, pa.concat_tables(tables(rows)))
    new = changed(rows)
    took = seconds(lambda: through(DeltaSink(here, value=Account, key="id"), new))

    def merge() -> None:
        source = pa.concat_tables(tables(new))
        merger = DeltaTable(bare).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    loaded = seconds(merge)
    for each in (here, bare):
        assert pc.sum(DeltaTable(each).to_pyarrow_table()["balance"]).as_py() > sum(row.balance for row in rows) + 1
    return took, loaded


def iceberg_by_key(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """The same of an Iceberg table."""
    here = home / uuid.uuid4().hex
    here.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{here}/catalog.db", "warehouse": f"file://{here}"}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("bench")
    for name in ("bare", "rows"):
        catalog.create_table(f"bench.{name}", _SCHEMA).append(pa.concat_tables(tables(rows)))
    new = changed(rows)
    sink = IcebergSink("bench.rows", properties=properties, value=Account, key="id")
    took = seconds(lambda: through(sink, new))
    bare = catalog.load_table("bench.bare")
    loaded = seconds(lambda: bare.upsert(pa.concat_tables(tables(new)), join_cols=["id"]))
    for name in ("bare", "rows"):
        found = catalog.load_table(f"bench.{name}").scan().to_arrow()
        assert pc.sum(found["balance"]).as_py() > sum(row.balance for row in rows) + 1
    return took, loaded


def sqlite(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """The same of a database through its driver alone."""
    here = home / f"{uuid.uuid4().hex}.db"
    declared = {"id": "INTEGER", "owner": "TEXT", "balance": "REAL", "blocked": "BOOLEAN"}
    with sqlite3.connect(here) as connection:
        for name in ("bare", "rows"):
            connection.execute(f"CREATE TABLE {name} ({', '.join(map(' '.join, declared.items()))})")
    took = seconds(lambda: through(DbApiSink(f"sqlite:///{here}", "rows", declared), rows))

    def load() -> None:
        with sqlite3.connect(here) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            for some in batches(rows):
                cells = [(row.id, row.owner, row.balance, row.blocked) for row in some]
                connection.executemany("INSERT INTO bare VALUES (?, ?, ?, ?)", cells)

    loaded = seconds(load)
    with sqlite3.connect(here) as connection:
        for name in ("bare", "rows"):
            assert connection.execute(f"SELECT count(*) FROM {name}").fetchone() == (len(rows),)
    return took, loaded


def http(home: Path, url: str, rows: Sequence[Account]) -> tuple[float, float]:
    """The same of a receiver."""
    sink = HttpSink(url, outbox=home / uuid.uuid4().hex, value=Account, batch=_REQUEST)
    took = seconds(lambda: through(sink, rows))

    def load() -> None:
        with httpx2.Client() as client:
            for begin in range(0, len(rows), _REQUEST):
                body = msgspec.json.encode(rows[begin : begin + _REQUEST])
                client.post(url, content=body, headers={"Content-Type": "application/json"}).raise_for_status()

    return took, seconds(load)


class _Keys(Receiver):
    """A table of SQLite that does nothing under a key that it knows; each call is a transaction on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connected()) as connection:
            connection.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    def send(self, rows: Sequence[Row]) -> None:
        with closing(self._connected()) as connection, connection:
            cells = [(row.key, row.value) for row in rows]
            connection.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?)", cells)

    def count(self) -> int:
        with closing(self._connected()) as connection:
            return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path)
        connection.execute("PRAGMA synchronous = FULL")
        return connection


def idempotent(home: Path, rows: Sequence[Account]) -> tuple[float, float]:
    """The same of a receiver with a client of its own."""
    kept, bare = (_Keys(home / f"{uuid.uuid4().hex}.db") for _ in range(2))
    sink = IdempotentSink(kept, outbox=home / uuid.uuid4().hex, value=Account, batch=_REQUEST)
    took = seconds(lambda: through(sink, rows))

    def load() -> None:
        for begin in range(0, len(rows), _REQUEST):
            some = rows[begin : begin + _REQUEST]
            bare.send([Row(uuid.uuid4().hex, "", msgspec.json.encode(row)) for row in some])

    loaded = seconds(load)
    assert kept.count() == bare.count() == len(rows)
    return took, loaded


class _Receiver(BaseHTTPRequestHandler):
    """Takes whatever comes."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_HEAD()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Nothing."""


def _serve(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def receiving() -> Iterator[str]:
    """A receiver in a process of its own."""
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(its,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/rows"
    finally:
        process.terminate()
        process.join()


def postgres(conninfo: str, strategy: Literal["stage", "prepare"], rows: Sequence[Account]) -> tuple[float, float]:
    """The same of PostgreSQL."""
    name, control = f"bench_{uuid.uuid4().hex[:8]}", f"bench_{uuid.uuid4().hex[:8]}"
    columns = "id bigint, owner text, balance double precision, blocked boolean"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for each in (name, f"{name}_bare"):
            connection.execute(f"CREATE TABLE {each} ({columns})".encode())
        try:
            sink = PostgresSink(conninfo, name, value=Account, control_schema=control, strategy=strategy)
            took = seconds(lambda: through(sink, rows))
            bare = seconds(lambda: bare_copy(conninfo, f"{name}_bare", rows))
            for each in (name, f"{name}_bare"):
                assert connection.execute(f"SELECT count(*) FROM {each}".encode()).fetchone() == (len(rows),)
            return took, bare
        finally:
            connection.execute(f"DROP TABLE {name}, {name}_bare".encode())
            connection.execute(f"DROP SCHEMA IF EXISTS {control} CASCADE".encode())


def can_prepare(conninfo: str) -> bool:
    with psycopg.connect(conninfo) as connection:
        return connection.execute("SHOW max_prepared_transactions").fetchone() != ("0",)


@dataclass(frozen=True, slots=True)
class Contender:
    """``rows``: how many are written, by each of the two."""

    rows: int
    measure: Callable[[], tuple[float, float]]


def contenders(home: Path, url: str, database: str | None, rows: Sequence[Account]) -> dict[str, Contender]:
    all_, few = len(rows), rows[: len(rows) // 10]
    found = {
        "Parquet file, pyarrow": Contender(all_, partial(parquet, home, rows)),
        "Delta table, `write_deltalake`": Contender(all_, partial(delta, home, rows)),
        "Iceberg table, pyiceberg": Contender(all_, partial(iceberg, home, rows)),
        "Delta table by key, `merge`": Contender(len(changed(rows)), partial(delta_by_key, home, rows)),
        "Iceberg table by key, `upsert`": Contender(len(changed(few)), partial(iceberg_by_key, home, few)),
        "SQLite table by `DbApiSink`, `executemany`": Contender(all_, partial(sqlite, home, rows)),
        "Requests, the client in a loop": Contender(len(few), partial(http, home, url, few)),
        "Calls by `IdempotentSink`, the function in a loop": Contender(len(few), partial(idempotent, home, few)),
    }
    if database:
        found["PostgreSQL table staged, `COPY`"] = Contender(all_, partial(postgres, database, "stage", rows))
        if can_prepare(database):
            found["PostgreSQL table prepared, `COPY`"] = Contender(all_, partial(postgres, database, "prepare", rows))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=500_000)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--database", help="of a PostgreSQL, as libpq reads it")
    given = options.parse_args()
    facts = machine(f"python -m benchmarks.sinks --rows {given.rows} --turns {given.turns}")
    rows = [Account(n, f"owner {n % 1000}", n / 7, n % 3 == 0) for n in range(given.rows)]
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, receiving() as url:
        running = contenders(Path(home), url, given.database, rows)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        for turn in range(given.turns):
            for name, contender in running.items():
                found[name].append(contender.measure())
                tell(f"turn {turn + 1}, {name}")
    lines = []
    for name, turns in found.items():
        sink, loader = (statistics.median(column) for column in zip(*turns, strict=True))
        count = running[name].rows
        lines.append((name, f"{count / sink:,.0f}", f"{count / loader:,.0f}", f"{loader / sink:.2f}"))
    print(f"{facts}\n\n{table(('sink, loader', 'sink, rows/s', 'loader, rows/s', 'ratio'), lines)}")


if __name__ == "__main__":
    main()
