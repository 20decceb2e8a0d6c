"""One job that writes Kafka, PostgreSQL, Parquet files, a Delta and an Iceberg table, killed between two commits."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import psycopg
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from kafka_eos._util.store_urls import parse_options
from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors.files.s3.bucket import BucketAddress
from kafka_eos.storage import object_names as paths
from tests.chaos import harness
from tests.chaos.harness import Job, expected
from tests.chaos.running import has_output, manifests, standing, storage
from tests.chaos.storm import Storm
from tests.chaos.test_tables import A_RECOVERY, AN_EPOCH, doctor
from tests.marks import campaign

Rows = list[tuple[str, int, int]]
COMMITS = tuple(f"commit.between=kill@{n}" for n in (1, 2, 3, 4, 5, 6, 7))
"""An epoch has eight commits: a transaction, a staging table, a file of each partition, a version of each table."""
OF_A_TABLE = (
    "lake.commit.before=kill", "lake.commit.after=kill", "lake.replaced=kill", "lake.replaced=kill@2",
    "lake.commit.after=kill@4",
)  # fmt: skip
FEW = (COMMITS[0], COMMITS[-1], "lake.commit.after=kill", "lake.replaced=kill", "recovery.probed=kill")
"""Between the first two commits, before the last, in those of a table, and when all of them are looked for."""

RESTARTS_BEGIN_WITH = 300
RESTARTS = tuple(
    f"{point}=kill" for point in (*AN_EPOCH * 4, *("commit.before", "lake.replaced", "recovery.probed") * 5)
)
SINKS = ("to-kafka", "to-rows", "to-lake", "to-delta", "to-iceberg")
ALONE = (
    "sink.flush.after", "sink.prepare.after", "manifest.published", "commit.before", "recovery.probed", "commit.after",
    "receipt.before", "recovery.aborted",
)  # fmt: skip
"""A job with one sink has no step between two commits."""
LEDGERS = {"incarnations", "made", "staged", "ledger"}
"""Tables that the sink keeps in its schema."""


def place(job: Job) -> tuple[fs.FileSystem, str]:
    """Where files are, as Arrow reads it."""
    where = job.environment["TEST_OUT_DIR"]
    if "://" not in where:
        return fs.LocalFileSystem(), where
    endpoint = urlsplit(parse_options(where)["endpoint"]).netloc
    return fs.S3FileSystem(endpoint_override=endpoint, scheme="http"), where.partition("?")[0].removeprefix("s3://")


def in_kafka(job: Job) -> Rows:
    rows = [json.loads(message.value()) for message in harness.read(job.bootstrap, job.output)]
    return sorted((row["account"], row["total"], row["id"]) for row in rows)


def in_table(job: Job) -> Rows:
    with psycopg.connect(job.environment["TEST_DATABASE"]) as connection:
        return sorted(connection.execute("SELECT account, total, id FROM totals").fetchall())  # type: ignore[arg-type]


def in_lake(job: Job) -> Rows:
    """As a reader sees them who knows of nothing but Parquet and Hive's partitions."""
    filesystem, root = place(job)
    if filesystem.get_file_info(root).type == fs.FileType.NotFound:
        return []
    rows = ds.dataset(root, format="parquet", partitioning="hive", filesystem=filesystem).to_table().to_pylist()
    return sorted((row["account"], row["total"], row["id"]) for row in rows)


def in_delta(job: Job, table: str = "delta") -> Rows:
    where = f"{job.environment['TEST_TABLES']}/{table}"
    if not DeltaTable.is_deltatable(where):
        return []
    rows = DeltaTable(where).to_pyarrow_table().to_pylist()
    return sorted((row["account"], row["total"], row["id"]) for row in rows)


def iceberg(job: Job, name: str = "shop.totals") -> Table | None:
    where = job.environment["TEST_TABLES"]
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{where}/catalog.db", warehouse=f"file://{where}")
    return catalog.load_table(name) if catalog.table_exists(name) else None


def in_iceberg(job: Job, name: str = "shop.totals") -> Rows:
    table = iceberg(job, name)
    rows = [] if table is None else table.scan().to_arrow().to_pylist()
    return sorted((row["account"], row["total"], row["id"]) for row in rows)


def told(job: Job) -> Rows:
    """The rows of the epochs of which readers are told that every system has them."""
    filesystem, root = place(job)
    epochs = filesystem.get_file_info(fs.FileSelector(f"{root}/_epochs", allow_not_found=True))
    files = [file for epoch in epochs for file in json.loads(filesystem.open_input_file(epoch.path).read())["files"]]
    tables = [
        ds.dataset(f"{root}/{file['file']}", format="parquet", filesystem=filesystem).to_table() for file in files
    ]
    assert [table.num_rows for table in tables] == [file["rows"] for file in files]
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted((row["account"], row["total"], row["id"]) for row in rows)


def check(job: Job) -> None:
    """Each system holds what the input makes, and nothing is left over."""
    wanted = sorted(expected(harness.read(job.bootstrap, job.input)))

    assert in_kafka(job) == wanted
    assert in_table(job) == wanted
    assert in_lake(job) == wanted
    assert in_delta(job) == wanted
    assert in_iceberg(job) == wanted
    assert told(job) == wanted
    newest = {row[0]: row for row in sorted(wanted, key=lambda row: row[2])}
    assert in_delta(job, "newest") == in_iceberg(job, "shop.newest") == sorted(newest.values())
    assert doctor(job) == (0, "no open output\n")
    assert leftovers(job) == {}


def leftovers(job: Job) -> dict[str, list[str]]:
    """What no reader sees and nobody will ever need: by kind, all that is there of it."""
    found = {
        "transactions": harness.open_transactions(job),
        "staged files": staged_files(job),
        "uploads": uploads(job),
        "data files": data_files(job),
        "staged rows": staged_rows(job),
        "stored files": unnamed(job),
        "local state": local_state(job),
    }
    return {kind: names for kind, names in found.items() if names}


def staged_files(job: Job) -> list[str]:
    """Files and directories that the sink has hidden from readers, but for the traces of what it has committed."""
    where = Path(job.environment["TEST_OUT_DIR"])
    return [str(path) for path in where.rglob(".*") if not path.name.startswith(harness.KEPT)]


def data_files(job: Job) -> list[str]:
    """Files of the tables that no commit has ever named, and notes of what is staged."""
    where = Path(job.environment["TEST_TABLES"])
    named: set[str] = set()
    for name in ("delta", "newest"):
        log = "".join(path.read_text() for path in (where / name / "_delta_log").glob("*.json"))
        named |= {f"{where}/{name}/{path}" for path in re.findall(r'"path":"([^"]+)"', log)}
    for name in ("shop.totals", "shop.newest"):
        table = iceberg(job, name)
        assert table is not None
        files = table.inspect.all_files().column("file_path").to_pylist()
        named |= {path.removeprefix("file://") for path in files}
    there = {str(path) for path in where.rglob("part-*.parquet")}
    assert named <= there, "a table names a file that is not there"
    return [*sorted(there - named), *(path.name for path in where.rglob(f"{CONTROL}/.staged*"))]


def uploads(job: Job) -> list[str]:
    """Parts in the bucket that belong to no object. A store shows them to nobody, and bills them."""
    where = job.environment["TEST_OUT_DIR"]
    if "://" not in where:
        return []
    address = BucketAddress.read(where)
    client = boto3.client("s3", endpoint_url=parse_options(where)["endpoint"], region_name="us-east-1")
    found = client.list_multipart_uploads(Bucket=address.bucket).get("Uploads", [])
    return [each["Key"] for each in found]


def staged_rows(job: Job) -> list[str]:
    """Rows and tables of epochs that are over, and transactions that were prepared."""
    with psycopg.connect(job.environment["TEST_DATABASE"]) as connection:
        rows = connection.execute("SELECT * FROM kafka_eos.staged").fetchall()
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'kafka_eos'").fetchall()
        prepared = connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
    staging = [name for (name,) in tables if name not in LEDGERS]
    return [*staging, *(str(row) for row in (*rows, *prepared))]


def unnamed(job: Job) -> list[str]:
    """Files of state that no checkpoint names, and files that were not finished."""
    home = job.checkpoints / job.name
    named = {f"{paths.SHARED}/{sha256}" for manifest in manifests(job) for sha256 in manifest.files}
    stored = [name for name in storage(job).list(paths.SHARED) if name not in named]
    return stored + [str(path) for name in paths.DIRECTORIES for path in (home / name).glob(".*")]


def local_state(job: Job) -> list[str]:
    """Working directories of terms that are over: of each worker, all but the newest."""
    workers = (job.checkpoints / job.name / "local").iterdir()
    return [str(term) for worker in workers for term in sorted(worker.iterdir(), key=lambda each: int(each.name))[:-1]]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("script", "workers"),
    [
        pytest.param(FEW, 1, id="few"),
        campaign((*COMMITS, *OF_A_TABLE, "commit.after=kill", "recovery.probed=kill"), 1, named="between-commits-1"),
        campaign((*COMMITS, *OF_A_TABLE), 3, named="between-commits-3"),
        campaign([f"{point}=kill" for point in AN_EPOCH], 1, named="an-epoch-1"),
        campaign([f"{point}=kill" for point in AN_EPOCH], 3, named="an-epoch-3"),
        campaign([f"{point}=kill" for point in A_RECOVERY], 3, named="a-recovery-3"),
    ],
)
def test_an_epoch_is_in_all_systems_or_in_none_whenever_a_process_dies(
    lake: Callable[..., Job], script: tuple[str, ...], workers: int
) -> None:
    job = lake(KAFKA_EOS_PARALLELISM=workers)

    job.run(";".join(script))

    check(job)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("alone", SINKS)
def test_a_system_alone_has_each_row_once_whenever_a_process_dies(lake: Callable[..., Job], alone: str) -> None:
    job = lake(KAFKA_EOS_PARALLELISM=2, TEST_ALONE=alone)

    job.run(";".join(f"{point}=kill" for point in ALONE))

    readers = dict(zip(SINKS, (in_kafka, in_table, in_lake, in_delta, in_iceberg), strict=True))
    assert readers[alone](job) == sorted(expected(harness.read(job.bootstrap, job.input)))
    assert doctor(job) == (0, "no open output\n")


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("store", ["directory", "bucket"])
def test_fifty_restarts_leave_nothing_behind_in_any_system(
    lake: Callable[..., Job], request: pytest.FixtureRequest, store: str
) -> None:
    """A supervisor's end, or a worker's, each at another step; of each something was staged, uploaded or prepared."""
    where = request.getfixturevalue("s3") if store == "bucket" else ""
    job = lake(RESTARTS_BEGIN_WITH, where=where, KAFKA_EOS_PARALLELISM=2, KAFKA_EOS_MAX_RESTARTS=len(RESTARTS))
    storm = Storm(job, RESTARTS_BEGIN_WITH)

    with storm.through(*RESTARTS):
        pass
    job.run()

    check(job)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(
    "script",
    [
        COMMITS,
        *map(
            campaign,
            (("sink.flush.before=kill", "sink.prepare.after=kill"), ("commit.before=kill", "recovery.probed=kill")),
        ),
    ],
)
def test_objects_of_a_store_are_of_the_same_epochs(lake: Callable[..., Job], s3: str, script: tuple[str, ...]) -> None:
    job = lake(where=s3, KAFKA_EOS_PARALLELISM=1)

    job.run(";".join(script))

    check(job)


@pytest.mark.campaign
@pytest.mark.chaos
def test_before_the_first_commit_no_system_shows_an_epoch_and_readers_are_told_after_the_last(
    lake: Callable[..., Job],
) -> None:
    """What is torn is torn between these two moments, and whoever waits for the epoch's file does not see it."""
    job = lake(KAFKA_EOS_PARALLELISM=1)
    with standing(job, "commit.before", lambda: has_output(job)) as run:
        before = in_table(job)
        assert in_kafka(job) == in_lake(job) == in_delta(job) == in_iceberg(job) == told(job) == before
        run.send(signal.SIGKILL)
    (job.directory / "failpoints.log").unlink()
    with standing(job, "commit.after", lambda: len(in_table(job)) > len(before)) as run:
        after = in_table(job)
        assert in_kafka(job) == in_lake(job) == in_delta(job) == in_iceberg(job) == after
        assert len(told(job)) < len(after)
        run.send(signal.SIGKILL)

    job.run()

    check(job)
