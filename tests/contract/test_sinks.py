"""Every sink of the package keeps the contract of ``abc.Sink``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sink_factories
from confluent_kafka import OFFSET_END
from confluent_kafka import TopicPartition as End
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from kafka_eos.core.json_values import Json
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.check_sink import TWO_PROCESSES
from tests.chaos.harness import read
from tests.contract.lakes import IcebergLake
from tests.examples import other_seeds
from tests.marks import campaign


@pytest.mark.parametrize("check", [name for name in SINK_CHECKS if name not in TWO_PROCESSES])
def test_memory_sink(check: str) -> None:
    def fresh() -> SinkUnderTest:
        name = uuid.uuid4().hex
        sink = sink_factories.memory_sink(name)
        return SinkUnderTest(
            "sink_factories:memory_sink",
            {"name": name},
            lambda: list(sink.committed),
            single_process=True,
            remove_visible=sink.committed.clear,
        )

    check_sink(fresh, check, seeds=other_seeds(1))


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_file_sink(check: str, tmp_path: Path) -> None:
    check_sink(_files(tmp_path, lambda line: line), check, seeds=other_seeds(1))


@pytest.mark.parametrize("check", [campaign(name) if name in TWO_PROCESSES else name for name in SINK_CHECKS])
def test_file_sink_with_envelope(check: str, tmp_path: Path) -> None:
    check_sink(_files(tmp_path, lambda line: line["value"], envelope=True), check, seeds=other_seeds(1))


def _files(tmp_path: Path, unwrap: Callable[[Any], Any], **options: bool) -> Callable[[], SinkUnderTest]:
    def fresh() -> SinkUnderTest:
        directory = tmp_path / uuid.uuid4().hex

        def read_back() -> list[Any]:
            parts = sorted(directory.glob("part-*.jsonl"))
            return [unwrap(json.loads(line)) for part in parts for line in part.read_bytes().splitlines()]

        def take_away() -> None:
            for part in directory.glob("part-*.jsonl"):
                part.rename(tmp_path / part.name)

        arguments: dict[str, Json] = {"directory": str(directory), **options}
        return SinkUnderTest("sink_factories:file_sink", arguments, read_back, remove_visible=take_away)

    return fresh


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_postgres_sink_that_inserts(check: str, database: Callable[[], str]) -> None:
    """The table numbers its rows as they come, and has no key that could hide one that comes twice."""
    columns = "n bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, text text"
    check_sink(_table(database, columns, "n"), check, seeds=other_seeds(1))


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_postgres_sink_that_prepares_transactions(check: str, preparing_database: Callable[[], str]) -> None:
    columns = "n bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, text text"
    check_sink(_table(preparing_database, columns, "n", strategy="prepare"), check, seeds=other_seeds(1))


@pytest.mark.parametrize("check", [*map(campaign, SINK_CHECKS)])
def test_postgres_sink_that_upserts(check: str, database: Callable[[], str]) -> None:
    check_sink(_table(database, "id bigint PRIMARY KEY, text text", "id", key=["id"]), check, seeds=other_seeds(1))


def _table(database: Callable[[], str], columns: str, order: str, **options: Any) -> Callable[[], SinkUnderTest]:
    def fresh() -> SinkUnderTest:
        conninfo = database()

        def asked(statement: str) -> psycopg.Cursor[Any]:
            with psycopg.connect(conninfo) as connection:
                return connection.execute(statement.encode())

        def read_back() -> list[Any]:
            with psycopg.connect(conninfo) as connection:
                rows = connection.execute(f"SELECT id, text FROM rows ORDER BY {order}".encode())
                return [{"id": number, "text": text} for number, text in rows]

        asked(f"CREATE TABLE rows ({columns})")
        arguments: dict[str, Json] = {"conninfo": conninfo, **options}
        return SinkUnderTest(
            "sink_factories:postgres_sink",
            arguments,
            read_back,
            remove_visible=lambda: asked("DELETE FROM rows").close(),
        )

    return fresh


@pytest.mark.parametrize("key", [[], campaign(["id"])])
@pytest.mark.parametrize("check", SINK_CHECKS)
def test_delta_sink(check: str, key: list[Json], tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])

    def fresh() -> SinkUnderTest:
        table = str(tmp_path / uuid.uuid4().hex)
        DeltaTable.create(table, columns)

        def read_back() -> list[Any]:
            found = pa.table(DeltaTable(table).to_pyarrow_table()).to_pylist()
            return sorted(found, key=lambda row: int(row["id"]))

        arguments: dict[str, Json] = {"table": table, "key": key}
        return SinkUnderTest(
            "sink_factories:delta_sink", arguments, read_back, remove_visible=lambda: DeltaTable(table).delete()
        )

    check_sink(fresh, check, seeds=other_seeds(1))


@pytest.mark.parametrize("key", [[], campaign(["id"])])
@pytest.mark.parametrize("check", SINK_CHECKS)
def test_iceberg_sink(check: str, key: list[Json], tmp_path: Path) -> None:
    def fresh() -> SinkUnderTest:
        lake = IcebergLake(tmp_path / uuid.uuid4().hex)

        def read_back() -> list[Any]:
            return sorted(lake.table().scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))

        arguments: dict[str, Json] = {"properties": {**lake.properties}, "key": key}
        return SinkUnderTest(
            "sink_factories:iceberg_sink", arguments, read_back, remove_visible=lambda: lake.table().delete("true")
        )

    check_sink(fresh, check, seeds=other_seeds(1))


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_kafka_sink(check: str, bootstrap: str, topic: Callable[[], str]) -> None:
    def fresh() -> SinkUnderTest:
        name = topic()
        return SinkUnderTest(
            "sink_factories:kafka_sink",
            {"topic": name},
            lambda: _read_committed(bootstrap, name),
            settings={"bootstrap_servers": bootstrap},
            visible_within=20.0,
            stable_offset=True,
            remove_visible=lambda: _delete_records(bootstrap, name),
        )

    check_sink(fresh, check, seeds=other_seeds(1))


def _delete_records(bootstrap: str, topic: str) -> None:
    """What retention does, at once."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([End(topic, 0, OFFSET_END)]).values():
        deleted.result(20)


def _read_committed(bootstrap: str, topic: str) -> list[Any]:
    """Everything a read_committed consumer can see now."""
    return [json.loads(message.value()) for message in read(bootstrap, topic)]
