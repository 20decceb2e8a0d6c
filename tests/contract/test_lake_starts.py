"""Starts of sinks for tables of a lake whose place cannot be used: what no waiting mends is said with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from deltalake import DeltaTable

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors._lake.lake_sink import LakeSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import Term
from tests.contract import s3_server
from tests.contract.lakes import COLUMNS, DeltaLake, IcebergLake, Lake

JOB = JobContext("orders", Term(1), {})
MAY_WRITE = "The user of the job must be able to create, write and remove files there"
Made: TypeAlias = Callable[[Path, int, str], LakeSink[Any]]


class Sale(msgspec.Struct):
    user: str
    n: int


def delta(home: Path, port: int, bucket: str) -> LakeSink[Any]:
    address = s3_server.address(port, "starts/delta").replace(s3_server.BUCKET, bucket)
    return DeltaSink(address, value=Sale, create=True)


def iceberg(home: Path, port: int, bucket: str) -> LakeSink[Any]:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{home}/{bucket}.db",
        "warehouse": f"s3://{bucket}/starts/iceberg",
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.region": "us-east-1",
    }
    return IcebergSink("shop.sales", properties=properties, value=Sale, create=True)


@pytest.mark.parametrize("made", [delta, iceberg])
def test_a_bucket_that_refuses_is_said_at_once_and_one_that_is_away_may_come_back(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server.reachable(tmp_path / "s3") as port:
        sink = made(tmp_path, port, s3_server.BUCKET)
        sink.check(JOB)
        sink.check(JOB)
        with pytest.raises(ConfigError, match="bucket nowhere does not exist: create it first"):
            made(tmp_path, port, "nowhere").check(JOB)

        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(ConfigError, match=r"put, get, delete and list objects.* AWS_ACCESS_KEY_ID"):
            made(tmp_path, port, s3_server.BUCKET).check(JOB)

    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Retryable, match=r"could not look for .*(Could not connect|NETWORK_CONNECTION)"):
        made(tmp_path, port, s3_server.BUCKET).check(JOB)


@pytest.mark.parametrize("make", [DeltaLake, IcebergLake])
def test_a_directory_in_which_nothing_can_be_staged_is_refused(make: Callable[[Path], Lake], tmp_path: Path) -> None:
    lake = make(tmp_path)
    place = lake.where / "data" if isinstance(lake, IcebergLake) else lake.where
    place.mkdir(exist_ok=True)
    (place / CONTROL).write_text("no directory")

    with pytest.raises(ConfigError, match=rf"could not write beside the files of .*{MAY_WRITE}"):
        lake.sink().check(JOB)


def test_a_start_leaves_nothing_of_its_trial(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake.sink().check(JOB)

    assert [*(lake.where / CONTROL).iterdir()] == []
    assert isinstance(DeltaTable(lake.where), DeltaTable) and lake.versions() == 1


def test_no_table_is_made_for_a_job_whose_name_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the job's name"):
        DeltaSink(tmp_path / "table", value=Sale, create=True).check(JobContext("a/b", Term(1), {}))

    assert not (tmp_path / "table").exists()


def test_a_table_that_cannot_be_made_where_it_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/file/lake"}

    for sink in (
        DeltaSink(tmp_path / "file/table", value=Sale, create=True),
        IcebergSink("shop.sales", properties=catalog, value=Sale, create=True),
    ):
        with pytest.raises(ConfigError, match=rf"could not create .*{MAY_WRITE}"):
            sink.check(JOB)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ('{"protocol":{"minReaderVersion":"x","minWriterVersion":2}}', 'failed to parse "x" as Int32'),
        ('{"protocol":{"minReaderVersion":3,"minWriterVersion":7}}', "Reader features must be present"),
        ('{"protocol":{"minReaderVersion":99,"minWriterVersion":99}}', "Unsupported minimum reader version 99"),
        ("", "No protocol found in delta log"),
        ('{"metaData":{"schemaString":"{}"}}', "Json error.*"),
    ],
)
def test_a_log_of_delta_that_is_malformed_is_refused_and_not_tried_again(entry: str, why: str, tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    log = lake.where / "_delta_log/00000000000000000000.json"
    replaced = '{"metaData"' if "metaData" in entry else '{"protocol"'
    lines = log.read_text().splitlines()
    log.write_text("\n".join(entry if line.startswith(replaced) else line for line in lines))

    with pytest.raises(ConfigError, match=rf"{why}[^<]*\. Restore its log, or write to a table"):
        lake.sink().check(JOB)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("sqlite:///{home}/none/catalog.db", r"its directory does not exist\. Create it: mkdir -p .*/none\. Or name"),
        ("sqlite:///{home}/text", "it is not an SQLite database"),
        ("sqlite:///{home}", "it is not a file"),
        ("sqllite:///{home}/catalog.db", r"cannot be opened: .*sqllite.* PYICEBERG_CATALOG__DEFAULT__URI"),
        ("{home}/catalog.db", r"cannot be opened: .* PYICEBERG_CATALOG__DEFAULT__URI"),
        ("mysql+pymysql://host/db", "could not look for default:shop.sales: .*not installed"),
    ],
)
def test_a_catalog_that_no_waiting_opens_is_refused(uri: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(str(COLUMNS))
    properties = {"type": "sql", "uri": uri.format(home=tmp_path)}

    with pytest.raises(ConfigError, match=why):
        IcebergSink("shop.sales", properties=properties, value=Sale, create=True).check(JOB)


def test_a_catalog_of_pyiceberg_s_own_configuration_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/none/catalog.db")

    with pytest.raises(ConfigError, match=r"catalog 'default' is .*: its directory does not exist"):
        IcebergSink("shop.sales", value=Sale, create=True).check(JOB)


@pytest.mark.parametrize(("make", "word"), [(DeltaLake, "log"), (IcebergLake, "metadata")])
def test_a_table_that_is_gone_is_asked_for_with_what_its_format_calls_it(
    make: Callable[[Path], Lake], word: str, tmp_path: Path
) -> None:
    gone: LakeSink[Any] = (
        DeltaSink(tmp_path / "gone", value=Sale, create=True)
        if make is DeltaLake
        else IcebergSink("shop.gone", properties=IcebergLake(tmp_path).properties, value=Sale, create=True)
    )
    known = JobContext("orders", Term(2), {}, written_scopes=frozenset({gone.scope(JOB)}))

    with pytest.raises(ConfigError, match=f"Restore it with its {word}"):
        gone.check(known)
