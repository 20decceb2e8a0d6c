"""Iceberg tables in a bucket: the tests of a directory, on a real S3 server that keeps its objects as files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos.abc.committer import CommitOutcome
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors.files.s3.bucket import AccessKeys, Bucket, BucketAddress
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, Retryable
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.list_source import ListOrigin
from tests.contract import s3_server
from tests.contract.lakes import COLUMNS, IcebergLake, LakeJob, at, commit, expect_fences, permit
from tests.marks import campaign

CONTEXT = JobContext("orders", Term(1), {})


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.reachable(tmp_path_factory.mktemp("s3")) as port:
        yield port


class BucketLake(IcebergLake):
    """An empty table, and its catalog in SQLite. ``key``: of its sink."""

    def __init__(self, home: Path, port: int, key: str = "") -> None:
        home.mkdir(exist_ok=True)
        prefix, self._key = f"lake/{uuid.uuid4().hex}", key
        self.bucket = Bucket(BucketAddress.read(s3_server.address(port, f"{prefix}/shop/rows")))
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{home}/catalog.db",
            "warehouse": f"s3://{s3_server.BUCKET}/{prefix}",
            "s3.endpoint": f"http://127.0.0.1:{port}",
            "s3.region": "us-east-1",
        }
        self.catalog().create_namespace("shop")
        self.catalog().create_table("shop.rows", COLUMNS)

    def sink(self) -> IcebergSink[Any]:
        return IcebergSink("shop.rows", catalog="test", properties=self.properties, key=self._key or ())


@pytest.mark.parametrize("key", ["", campaign("id")])
@pytest.mark.parametrize("check", ["happy-path", *map(campaign, SINK_CHECKS)])
def test_iceberg_sink_on_s3(check: str, key: str, port: int, tmp_path: Path) -> None:
    def fresh() -> SinkUnderTest:
        lake = BucketLake(tmp_path / uuid.uuid4().hex, port)

        def read_back() -> list[Any]:
            return sorted(lake.table().scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))

        arguments: dict[str, Json] = {"properties": {**lake.properties}, "key": [key] if key else []}
        return SinkUnderTest(
            "sink_factories:iceberg_sink", arguments, read_back, remove_visible=lambda: lake.table().delete("true")
        )

    check_sink(fresh, check)


@pytest.mark.parametrize("key", ["", "id"])
def test_terms_fence_each_other_and_what_is_left_over_goes(key: str, port: int, tmp_path: Path) -> None:
    lake = BucketLake(tmp_path, port, key)
    expect_fences(lake, keyed=bool(key))
    assert lake.bucket.names(f"data/{CONTROL}/.staged") == []
    named = {path.rpartition("/")[2] for path in lake.table().inspect.all_files().column("file_path").to_pylist()}
    assert {name.removeprefix("data/") for name in lake.bucket.names("data/part-")} == named
    assert lake.bucket.uploads() == []


def test_nothing_is_an_upload_that_a_process_could_leave(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object is one request, also one that is larger than a part: manifests and metadata too."""
    lake = BucketLake(tmp_path, port)
    lake_job = LakeJob(lake)
    begun: list[str] = []
    put = Bucket.put

    def counted(bucket: Bucket, name: str, data: Any) -> None:
        assert bucket.uploads() == []
        put(bucket, name, data)
        begun.append(name)

    monkeypatch.setattr(Bucket, "put", counted)
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), lake_job.prepared(1, 1, [1]))

    kinds = {name.rpartition(".")[2] for name in begun}
    assert kinds == {"parquet", "avro", "json"}
    assert len({*begun}) == len(begun)


@pytest.mark.parametrize("key", ["", campaign("id")])
def test_a_bucket_that_is_away_is_asked_again_by_a_commit_and_ends_an_attempt_of_a_writer(
    key: str, port: int, tmp_path: Path
) -> None:
    server = s3_server.Server(tmp_path / "s3")
    try:
        lake_job = LakeJob(BucketLake(tmp_path / "lake", server.port, key))
        committer, committables = lake_job.recovered(1), lake_job.prepared(1, 1, [1])
        right, writer = permit(committer, at(1, 1), committables), lake_job.writer(1, 2)
        server.kill()
        with pytest.raises(Retryable, match="could not"):
            committer.commit_all(right, committables)
        with pytest.raises(EnvironmentFailed, match="could not"):
            lake_job.sealed(writer, 1, 2, [2])
        server.start()

        assert {*committer.commit_all(right, committables)} == {CommitOutcome.COMMITTED}
        assert lake_job.lake.rows() == [1]
    finally:
        server.kill()


class Sale(msgspec.Struct):
    user: str
    n: int


def test_the_table_is_made_with_keys_of_the_catalog_and_the_audit_reads_it(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in s3_server.CREDENTIALS:
        monkeypatch.delenv(name)
    keys = dict(zip(("s3.access-key-id", "s3.secret-access-key"), s3_server.CREDENTIALS.values(), strict=True))
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{s3_server.BUCKET}/lake/{uuid.uuid4().hex}",
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.region": "us-east-1",
    }
    sink = IcebergSink("shop.sales", properties=properties | keys, value=Sale, create=True, key="user")

    assert sink.check(CONTEXT) == []
    writer = sink.writer(TaskContext(CONTEXT, 0, 1, "out", first_epoch=Epoch(1)))
    rows = [Sale("ann", 1), Sale("bob", 2), Sale("ann", 3)]
    writer.write(Batch(rows, range(3), ListOrigin("in", "list", 0, 0, rows)))
    commit(sink.committer(CONTEXT), at(1, 1), writer.seal(at(1, 1))())  # type: ignore[arg-type]

    assert sorted(sink.audit_table_rows()) == [
        (b'{"user": "ann"}', b'{"user": "ann", "n": 3}'),
        (b'{"user": "bob"}', b'{"user": "bob", "n": 2}'),
    ]
    assert "kafka-eos-test" not in f"{sink.describe()} {sink!r} {sink.scope(CONTEXT)} {AccessKeys('i', 's', 't')}"


def test_a_bucket_that_is_not_there_is_said(port: int, tmp_path: Path) -> None:
    lake = BucketLake(tmp_path, port)
    elsewhere = lake.properties | {"warehouse": "s3://none/lake"}
    sink = IcebergSink("shop.sales", properties=elsewhere, value=Sale, create=True)

    with pytest.raises(ConfigError, match="bucket none does not exist: create it first"):
        sink.check(CONTEXT)
