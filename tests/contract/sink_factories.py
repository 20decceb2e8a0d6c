"""Sinks by importable name, for ``check_sink``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal

import pyarrow as pa

from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import Avro, Csv, FileSink, Parquet, Roll
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.idempotent import IdempotentSink, Receiver, Row
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.testing import MemorySink

_memory: dict[str, MemorySink] = {}


def memory_sink(name: str) -> MemorySink:
    return _memory.setdefault(name, MemorySink())


def file_sink(directory: str, envelope: bool = False, roll: int | None = None) -> FileSink:
    return FileSink(directory, value=dict[str, Any], envelope=envelope, roll=Roll(rows=roll))


_ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]}
FORMATS = {
    "parquet": Parquet(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])),
    "avro": Avro(_ROW),
    "csv": Csv(("id", "text"), compression="gzip"),
}


def formatted_file_sink(directory: str, kind: str) -> FileSink:
    """Parquet in partitions; the others with files that end after two rows."""
    if kind == "parquet":
        return FileSink(directory, format=FORMATS[kind], partition_by=lambda row: {"odd": row["id"] % 2 == 1})
    return FileSink(directory, format=FORMATS[kind], roll=Roll(rows=2))


def s3_sink(address: str) -> FileSink:
    return FileSink(address, value=dict[str, Any])


def kafka_sink(topic: str) -> KafkaSink[dict[str, Any]]:
    """With a compression that the independent reader of the test knows without further libraries."""
    return KafkaSink(topic, value=dict[str, Any], config={"compression.type": "gzip"})


def postgres_sink(
    conninfo: str, key: Sequence[str] = (), strategy: Literal["stage", "prepare"] | None = None
) -> PostgresSink[dict[str, Any]]:
    return PostgresSink(conninfo, "rows", columns=("id", "text"), key=key, strategy=strategy)


def delta_sink(table: str, key: Sequence[str] = ()) -> DeltaSink[dict[str, Any]]:
    return DeltaSink(table, key=key)


def iceberg_sink(properties: dict[str, str], key: Sequence[str] = ()) -> IcebergSink[dict[str, Any]]:
    return IcebergSink("shop.rows", catalog="test", properties=properties, key=key)


def http_sink(url: str, outbox: str, batch: int = 1) -> HttpSink[dict[str, Any]]:
    return HttpSink(url, outbox=outbox, value=dict[str, Any], batch=batch)


class InSqlite(Receiver):
    """A table that does nothing under a key that it knows."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    def send(self, rows: Sequence[Row]) -> None:
        given = [(row.key, row.provenance, row.value.decode()) for row in rows]
        with closing(sqlite3.connect(self._path, timeout=10)) as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO rows (key, provenance, value) VALUES (?, ?, ?)", given)

    def check_reachable(self) -> None:
        with closing(sqlite3.connect(self._path, timeout=10)) as connection:
            connection.execute("SELECT * FROM rows LIMIT 1")


def idempotent_sink(path: str, outbox: str, batch: int = 1) -> IdempotentSink[dict[str, Any]]:
    return IdempotentSink(InSqlite(path), outbox=outbox, value=dict[str, Any], batch=batch)
