"""Sinks beside the bulk loaders of their systems: ``python -m benchmarks.sinks --database CONNINFO``.

The same rows, in batches of 5,000, by one writer, in one epoch, in one process, without Kafka:

    sink      write, seal, pre-commit, probe, commit: durable and exactly once
    loader    what a program would call that wants the rows there, once, if nothing fails: ``pyarrow`` builds a table of
              each batch and writes a file, ``write_deltalake`` and pyiceberg's ``append`` get all of these in one
              commit, ``COPY`` sends tuples into the table itself

Both begin with the same Python objects and take turns; figures are medians of wall time, in rows a second. Without
``--database`` there is no figure of PostgreSQL, and one of its prepared transactions only where that server has
max_prepared_transactions. Its tables are made in that database, and dropped.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from benchmarks.command import machine, table, tell
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import CommitsTogether, JobContext, Sink, TaskContext
from kafka_eos.protocol.commit import Commit, authorize
from kafka_eos.records import Batch
from kafka_eos.testing.sources import ListOrigin

_BATCH = 5000
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
    for some in batches(rows):
        writer.write(Batch(some, range(len(some)), ListOrigin("in", "list", 0, 0, some)))
    committables = writer.seal(_EPOCH)()
    decision = authorize(_EPOCH, [committer.probe(each) for each in committables], 0.0)
    assert isinstance(decision, Commit)
    if isinstance(committer, CommitsTogether):
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=500_000)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--database", help="of a PostgreSQL, as libpq reads it")
    given = options.parse_args()
    facts = machine(f"python -m benchmarks.sinks --rows {given.rows} --turns {given.turns}")
    rows = [Account(n, f"owner {n % 1000}", n / 7, n % 3 == 0) for n in range(given.rows)]
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home:
        contenders = {
            "Parquet file, pyarrow": lambda: parquet(Path(home), rows),
            "Delta table, `write_deltalake`": lambda: delta(Path(home), rows),
            "Iceberg table, pyiceberg": lambda: iceberg(Path(home), rows),
        }
        if given.database:
            contenders["PostgreSQL table staged, COPY"] = lambda: postgres(given.database, "stage", rows)
            if can_prepare(given.database):
                contenders["PostgreSQL table prepared, COPY"] = lambda: postgres(given.database, "prepare", rows)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for turn in range(given.turns):
            for name, measure in contenders.items():
                found[name].append(measure())
                tell(f"turn {turn + 1}, {name}")
    lines = []
    for name, turns in found.items():
        sink, loader = (statistics.median(column) for column in zip(*turns, strict=True))
        lines.append((name, f"{len(rows) / sink:,.0f}", f"{len(rows) / loader:,.0f}", f"{loader / sink:.2f}"))
    print(f"{facts}\n\n{table(('sink, loader', 'sink, rows/s', 'loader, rows/s', 'ratio'), lines)}")


if __name__ == "__main__":
    main()
