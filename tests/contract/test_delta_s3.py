"""Delta tables in a bucket: the tests of a directory, on a real S3 server that keeps its objects as files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files.s3.bucket import Bucket, BucketAddress
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.list_source import ListOrigin
from tests.contract import s3_server
from tests.contract.lakes import COLUMNS, DeltaLake, at, commit, expect_fences
from tests.marks import campaign

CONTEXT = JobContext("orders", Term(1), {})


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.reachable(tmp_path_factory.mktemp("s3")) as port:
        yield port


class Sale(msgspec.Struct):
    user: str
    day: str
    n: int


class BucketLake(DeltaLake):
    """An empty table. ``key``: of its sink."""

    def __init__(self, port: int, key: str = "") -> None:
        prefix = f"lake/{uuid.uuid4().hex}"
        self.address, self._key = s3_server.address(port, prefix), key
        self._uri = f"s3://{s3_server.BUCKET}/{prefix}"
        endpoint = f"http://127.0.0.1:{port}"
        self._options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        DeltaTable.create(self._uri, COLUMNS, storage_options=self._options)

    def table(self) -> DeltaTable:
        return DeltaTable(self._uri, storage_options=self._options)

    def sink(self) -> DeltaSink[Any]:
        return DeltaSink(self.address, key=self._key or ())

    def entry(self, version: int) -> str:
        """Of the log."""
        return Bucket(BucketAddress.read(self.address)).read(f"_delta_log/{version:020}.json").decode()

    def objects(self, begin: str) -> set[str]:
        return {*Bucket(BucketAddress.read(self.address)).names(begin)}


@pytest.mark.parametrize("key", ["", campaign("id")])
@pytest.mark.parametrize("check", ["happy-path", *map(campaign, SINK_CHECKS)])
def test_delta_sink_on_s3(check: str, key: str, port: int) -> None:
    def fresh() -> SinkUnderTest:
        lake = BucketLake(port)

        def read_back() -> list[Any]:
            return sorted(pa.table(lake.table().to_pyarrow_table()).to_pylist(), key=lambda row: int(row["id"]))

        arguments: dict[str, Json] = {"table": lake.address, "key": [key] if key else []}
        return SinkUnderTest(
            "sink_factories:delta_sink", arguments, read_back, remove_visible=lambda: lake.table().delete()
        )

    check_sink(fresh, check)


@pytest.mark.parametrize("key", ["", "id"])
def test_terms_fence_each_other_and_what_is_left_over_goes(key: str, port: int) -> None:
    lake = BucketLake(port, key)
    expect_fences(lake, keyed=bool(key))
    assert lake.objects(f"{CONTROL}/.staged") == set()
    log = "".join(map(lake.entry, range(lake.versions())))
    assert [name for name in lake.objects("part-") if name not in log] == []


def test_the_table_is_made_and_the_audit_reads_it(port: int) -> None:
    address = s3_server.address(port, f"lake/{uuid.uuid4().hex}")
    sink = DeltaSink(address, value=Sale, create=True, key="user", partition_by=["day"])
    assert sink.check(CONTEXT) == []
    writer = sink.writer(TaskContext(CONTEXT, 0, 1, "out", first_epoch=Epoch(1)))
    rows = [Sale("ann", "mon", 1), Sale("bob", "mon", 2), Sale("ann", "tue", 3)]
    writer.write(Batch(rows, range(3), ListOrigin("in", "list", 0, 0, rows)))
    commit(sink.committer(CONTEXT), at(1, 1), writer.seal(at(1, 1))())  # type: ignore[arg-type]

    found = sorted(sink.audit_table_rows())
    assert found == [
        (b'{"user": "ann"}', b'{"user": "ann", "day": "tue", "n": 3}'),
        (b'{"user": "bob"}', b'{"user": "bob", "day": "mon", "n": 2}'),
    ]


@pytest.mark.parametrize(
    ("table", "why"),
    [("gs://bucket/table", "not in gs://"), ("s3://bucket", "use s3://bucket/prefix"), ("", "does not name a table")],
)
def test_places_that_are_none_are_refused(table: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        DeltaSink[Any](table)
