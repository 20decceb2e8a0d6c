"""One job that writes Delta and Iceberg tables in a bucket, killed at each step of an epoch and of a table's commit."""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from kafka_eos.connectors._lake.file_names import CONTROL
from tests.chaos import harness
from tests.chaos.harness import Job, expected
from tests.chaos.test_tables import A_RECOVERY, AN_EPOCH, doctor
from tests.contract import s3_server
from tests.marks import campaign

PREFIX = "lake"
Rows = list[tuple[str, int, int]]
OF_A_TABLE = (
    "lake.commit.before=kill", "lake.commit.after=kill", "lake.replaced=kill", "lake.replaced=kill@2",
    "lake.commit.after=kill@4",
)  # fmt: skip


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("script", "workers"),
    [
        pytest.param(OF_A_TABLE, 1, id="a-table-1"),
        campaign((*(f"{point}=kill" for point in AN_EPOCH), *OF_A_TABLE), 3, named="an-epoch-3"),
        campaign([f"{point}=kill" for point in A_RECOVERY], 2, named="a-recovery-2"),
    ],
)
def test_tables_in_a_bucket_have_each_epoch_once_and_nothing_is_left_over(
    in_bucket: Callable[..., Job], script: tuple[str, ...], workers: int
) -> None:
    job = in_bucket(KAFKA_EOS_PARALLELISM=workers)

    job.run(";".join(script))

    check(job)


def check(job: Job) -> None:
    """Each table holds what the input makes, and nothing is left over."""
    check_rows(job)
    assert left(job) == []


def check_rows(job: Job) -> None:
    wanted = sorted(expected(harness.read(job.bootstrap, job.input)))
    newest = sorted({row[0]: row for row in sorted(wanted, key=lambda row: row[2])}.values())
    assert told(delta(job, "delta").to_pyarrow_table()) == told(iceberg(job, "totals").scan().to_arrow()) == wanted
    assert told(delta(job, "newest").to_pyarrow_table()) == told(iceberg(job, "newest").scan().to_arrow()) == newest
    assert doctor(job) == (0, "no open output\n")


def told(rows: object) -> Rows:
    return sorted((row["account"], row["total"], row["id"]) for row in pa.table(rows).to_pylist())


def delta(job: Job, name: str) -> DeltaTable:
    options = {"AWS_ENDPOINT_URL": job.environment["TEST_ENDPOINT"], "AWS_REGION": "us-east-1"}
    return DeltaTable(f"{job.environment['TEST_BUCKET']}/{name}", storage_options=options | {"AWS_ALLOW_HTTP": "true"})


def iceberg(job: Job, name: str) -> Table:
    properties = {"s3.endpoint": job.environment["TEST_ENDPOINT"], "s3.region": "us-east-1"}
    uri = f"sqlite:///{job.environment['TEST_CATALOG']}"
    return load_catalog("default", type="sql", uri=uri, **properties).load_table(f"shop.{name}")


def left(job: Job) -> list[str]:
    """Uploads, notes of what is staged, and data files that no version of a table has ever named."""
    client = boto3.client("s3", endpoint_url=job.environment["TEST_ENDPOINT"], region_name="us-east-1")
    uploads = client.list_multipart_uploads(Bucket=s3_server.BUCKET).get("Uploads", [])
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=s3_server.BUCKET, Prefix=f"{PREFIX}/")
    there = [each["Key"] for page in pages for each in page.get("Contents", ())]
    log = ""
    for name in (key for key in there if "/_delta_log/" in key and key.endswith(".json")):
        log += client.get_object(Bucket=s3_server.BUCKET, Key=name)["Body"].read().decode()
    for table in ("totals", "newest"):
        log += "".join(iceberg(job, table).inspect.all_files().column("file_path").to_pylist())
    data = [key for key in there if key.rpartition("/")[2].startswith("part-")]
    assert data
    return [
        *(each["Key"] for each in uploads),
        *(key for key in there if f"/{CONTROL}/.staged" in key),
        *(key for key in data if key.rpartition("/")[2] not in log),
    ]
