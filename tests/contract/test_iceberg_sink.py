"""What ``IcebergSink`` has to do with Iceberg's own ways: ids of columns, manifests, catalogs, what is refused."""

from __future__ import annotations

import datetime
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import StringType

from kafka_eos.abc.committer import CommitOutcome
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._lake.file_names import LakeCommittable, build_entry_name
from kafka_eos.connectors._lake.lake_table import CommitConflict, CommitMetadata, LakeIncarnation
from kafka_eos.connectors.files import FileSource
from kafka_eos.connectors.iceberg import IcebergSink, catalogs
from kafka_eos.connectors.iceberg.table_location import in_bucket, local_path, store_of
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.lakes import IcebergLake, LakeJob, RestLake, at, commit, permit
from tests.contract.rest_catalog import Land

JOB = JobContext("orders", Term(1), {})


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path)


@pytest.fixture
def lake_job(lake: IcebergLake) -> LakeJob:
    return LakeJob(lake)


def sink(lake: IcebergLake, table: str = "shop.rows", **options: Any) -> IcebergSink[Any]:
    return IcebergSink(table, catalog="test", properties=lake.properties, **options)


def test_files_carry_the_ids_of_columns_so_a_renamed_one_fits(lake: IcebergLake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    with lake.table().update_schema() as change:
        change.rename_column("text", "words")

    assert commit(committer, at(1, 1), committables) == {CommitOutcome.COMMITTED}
    assert lake.table().scan().to_arrow().to_pylist() == [{"id": 1, "words": "1"}]


def test_a_field_within_a_column_that_is_another_one_now_stops_the_commit(lake: IcebergLake) -> None:
    """By name it would fit, and readers would find nothing in it."""
    made = sink(lake, "shop.items", value=Basket, create=True)
    made.check(JOB)
    basket = Basket([Item("a", [])])
    writer = made.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    writer.write(Batch([basket], range(1), ListOrigin("in", "list", 0, 0, [basket])))
    committables, committer = writer.seal(at(1, 1))(), made.committer(JOB)
    table = lake.catalog().load_table("shop.items")
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column(("items", "element", "name"))
    with table.update_schema() as change:
        change.add_column(("items", "element", "name"), StringType())

    with pytest.raises(ConfigError, match=r"column items\[\]\.name was dropped or replaced"):
        commit(committer, at(1, 1), committables)  # type: ignore[arg-type]


def test_bounds_and_counts_of_a_file_are_in_its_manifest(lake: IcebergLake, lake_job: LakeJob) -> None:
    """So engines pass over files that have nothing for a query."""
    commit(lake_job.recovered(1), at(1, 1), lake_job.prepared(1, 1, [3, 9]))

    (file,) = lake.table().inspect.files().to_pylist()

    assert file["record_count"] == 2
    assert file["readable_metrics"]["id"]["lower_bound"] == 3
    assert file["readable_metrics"]["id"]["upper_bound"] == 9
    assert file["file_size_in_bytes"] == Path(file["file_path"].removeprefix("file://")).stat().st_size


def test_small_manifests_become_one_as_in_other_engines(lake: IcebergLake, lake_job: LakeJob) -> None:
    with lake.table().transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "4"})
    committer = lake_job.recovered(1)

    for epoch in range(1, 9):
        commit(committer, at(epoch, 1), lake_job.prepared(1, epoch, [epoch]))

    table = lake.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 4
    assert lake.rows() == [*range(1, 9)]


def test_what_our_commits_set_for_themselves_stays_out_of_the_table(lake: IcebergLake, lake_job: LakeJob) -> None:
    commit(lake_job.recovered(1), at(1, 1), lake_job.prepared(1, 1, [1]))

    marks = f"kafka-eos.orders.{lake_job.identity}"
    assert lake.table().properties == {f"{marks}.since": "1", f"{marks}.term": "1", f"{marks}.epoch": "1/1"}
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    told = {name: value for name, value in snapshot.summary.additional_properties.items() if "kafka" in name}
    assert told == {"kafka-eos.job": f"orders.{lake_job.identity}", "kafka-eos.epoch": "1", "kafka-eos.term": "1"}


def test_a_commit_waits_for_a_catalog_that_is_away_and_for_files_that_are(
    lake: IcebergLake, lake_job: LakeJob, tmp_path: Path
) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(committer, at(1, 1), committables)

    lake.where.rename(tmp_path / "away")
    with pytest.raises(Retryable, match="could not look into test:shop.rows: .*No such file"):
        committer.commit_all(right, committables)
    (tmp_path / "away").rename(lake.where)
    lock = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Retryable, match="database is locked"):
        committer.commit_all(right, committables)
    lock.close()

    assert {*committer.commit_all(right, committables)} == {CommitOutcome.COMMITTED}
    assert lake.rows() == [1]


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestLake]:
    made = RestLake(tmp_path)
    with made.server.serving():
        yield made


def test_a_commit_whose_answer_a_rest_catalog_has_lost_is_found_and_not_made_again(rest: RestLake) -> None:
    lake_job = LakeJob(rest)
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(committer, at(1, 1), committables)

    def lost(land: Land) -> None:
        land()

    rest.server.commits = lost
    with pytest.raises(Retryable, match="could not commit to test:shop.rows"):
        committer.commit_all(right, committables)

    assert {*committer.commit_all(right, committables)} == {CommitOutcome.ALREADY}
    assert rest.rows() == [1]


def test_a_commit_that_a_rest_catalog_makes_late_is_refused_by_it(
    rest: RestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when its time was up; then the same rows were committed."""
    monkeypatch.setattr(catalogs, "_ANSWER_SECONDS", 0.5)
    lake_job, late = LakeJob(rest), list[Land]()
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(committer, at(1, 1), committables)
    over = Event()

    def held(land: Land) -> None:
        late.append(land)
        over.wait()

    rest.server.commits = held
    with pytest.raises(Retryable, match="timed out"):
        committer.commit_all(right, committables)
    over.set()
    rest.server.commits = lambda land: land()

    assert {*committer.commit_all(right, committables)} == {CommitOutcome.COMMITTED}
    with pytest.raises(CommitFailedException):
        late[0]()
    assert rest.rows() == [1]


def test_a_commit_that_is_refused_because_it_was_made_already_keeps_its_manifests(rest: RestLake) -> None:
    """Something between the job and the catalog has sent it a second time. Others may read the table at once."""
    lake_job = LakeJob(rest)
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(committer, at(1, 1), committables)

    def twice(land: Land) -> str:
        land()
        return land()

    rest.server.commits = twice
    assert {*committer.commit_all(right, committables)} == {CommitOutcome.ALREADY}

    assert rest.rows() == [1]


def test_a_commit_that_is_refused_leaves_no_manifests(lake: IcebergLake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    seen = committer._table.read_state(LakeIncarnation("orders", lake_job.identity))
    lake.others_append()
    before = {*(lake.where / "metadata").iterdir()}

    with pytest.raises(CommitConflict):
        committer._table.commit(seen, LakeIncarnation("orders", lake_job.identity), CommitMetadata(1))

    assert {*(lake.where / "metadata").iterdir()} == before
    assert commit(committer, at(1, 1), committables) == {CommitOutcome.COMMITTED}


def test_rows_that_older_versions_of_a_table_have_are_not_removed_with_a_note(
    lake: IcebergLake, lake_job: LakeJob
) -> None:
    """The process died before it could remove the note; then others deleted the rows, and kept the snapshot."""
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    kept = lake.where.with_name("kept")
    shutil.copytree(lake.where / "data/_kafka_eos", kept)
    commit(committer, at(1, 1), committables)
    shutil.copytree(kept, lake.where / "data/_kafka_eos", dirs_exist_ok=True)
    before = lake.table().current_snapshot()
    lake.table().delete("id = 1")

    assert lake_job.recovered(2).list_staged(lake_job.context(2)) == []

    assert before is not None
    assert lake.rows() == []
    assert lake.table().scan(snapshot_id=before.snapshot_id).to_arrow().column("id").to_pylist() == [1]


def staged(lake: IcebergLake) -> set[str]:
    return {path.name for path in (lake.where / "data").rglob("part-*")}


def test_a_recovery_opens_only_the_last_of_a_row_of_appends(lake: IcebergLake, lake_job: LakeJob) -> None:
    """The last snapshot's manifests name all files of the appends before it, whose manifest lists are deleted here."""
    committer = lake_job.recovered(1)
    for epoch in (1, 2, 3):
        commit(committer, at(epoch, 1), lake_job.prepared(1, epoch, [epoch]))
    there = staged(lake)
    lake_job.prepared(1, 4, [4])
    (newest,) = (each for each in [lake.table().current_snapshot()] if each is not None)
    for path in (lake.where / "metadata").glob("snap-*.avro"):
        if path.name not in newest.manifest_list:
            path.unlink()

    lake_job.recovered(2)

    assert staged(lake) == there
    assert lake.rows() == [1, 2, 3]


def test_a_recovery_reads_nothing_that_is_older_than_what_is_staged(lake: IcebergLake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), lake_job.prepared(1, 1, [1]))
    old_metadata = [*(lake.where / "metadata").glob("*.avro")]
    commit(committer, at(2, 1), lake_job.prepared(1, 2, [2]))
    there = staged(lake)
    lake_job.prepared(1, 3, [3])
    committer = lake_job.committer()
    committer.register(lake_job.context(2))
    for path in old_metadata:
        path.unlink()

    committer.abort_leftovers(lake_job.context(2))

    assert staged(lake) == there


def test_a_file_stays_that_a_snapshot_names_whose_own_snapshot_has_expired(
    lake: IcebergLake, lake_job: LakeJob
) -> None:
    """Another writer has removed the file from the newest snapshot, and only an older retained snapshot names it."""
    committables = lake_job.prepared(1, 1, [1])
    commit(lake_job.recovered(1), at(1, 1), committables)
    mine = lake.table().current_snapshot()
    (committed,) = (LakeCommittable.read(each.payload) for each in committables)
    lake_job.committer()._table.store().create(build_entry_name(committed.part))
    lake.others_append()
    lake.others_delete()
    assert mine is not None
    lake.table().maintenance.expire_snapshots().by_ids([mine.snapshot_id]).commit()

    lake_job.recovered(2)

    assert staged(lake) == {committed.file}


def test_a_committed_file_stays_though_the_clock_of_a_later_writer_is_behind(
    lake: IcebergLake, lake_job: LakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits of a table are in the order of their sequence numbers, not of their times."""
    committables = lake_job.prepared(1, 1, [1])
    commit(lake_job.recovered(1), at(1, 1), committables)
    (committed,) = (LakeCommittable.read(each.payload) for each in committables)
    lake_job.committer()._table.store().create(build_entry_name(committed.part))
    with monkeypatch.context() as elsewhere:
        now = time.time()
        elsewhere.setattr(time, "time", lambda: now - 3 * 3600)
        lake.others_append()

    lake_job.recovered(2)

    assert staged(lake) == {committed.file}
    assert 1 in lake.rows()


def test_a_committed_file_stays_though_the_clock_of_its_committer_is_behind_that_of_the_store(
    lake: IcebergLake, lake_job: LakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    committables = lake_job.prepared(1, 1, [1])
    (committed,) = (LakeCommittable.read(each.payload) for each in committables)
    with monkeypatch.context() as elsewhere:
        now = time.time()
        elsewhere.setattr(time, "time", lambda: now - 3 * 3600)
        commit(lake_job.recovered(1), at(1, 1), committables)
    lake_job.committer()._table.store().create(build_entry_name(committed.part))

    lake_job.recovered(2)

    assert staged(lake) == {committed.file}
    assert lake.rows() == [1]


def test_a_committed_file_stays_though_this_clock_was_ahead_when_it_was_staged(
    lake: IcebergLake, lake_job: LakeJob
) -> None:
    committables = lake_job.prepared(1, 1, [1])
    commit(lake_job.recovered(1), at(1, 1), committables)
    (committed,) = (LakeCommittable.read(each.payload) for each in committables)
    lake_job.committer()._table.store().create(build_entry_name(committed.part))
    (entry,) = (lake.where / "data/_kafka_eos").glob(".staged*")
    ahead = time.time() + 3 * 3600
    os.utime(entry, (ahead, ahead))

    lake_job.recovered(2)

    assert staged(lake) == {committed.file}


class Item(msgspec.Struct):
    name: str
    tags: list[str]


class Basket(msgspec.Struct):
    items: list[Item]


class Sale(msgspec.Struct):
    user: str
    amount: int
    share: float
    paid: bool
    raw: bytes
    at: datetime.datetime
    day: datetime.date
    hour: datetime.time
    items: list[Item]
    notes: dict[str, int]
    first: Item
    remark: str | None = None


def test_every_type_of_a_model_comes_back_from_a_table_that_the_sink_has_made(lake: IcebergLake) -> None:
    made = sink(lake, "new.sales", value=Sale, create=True)
    assert made.check(JOB) == made.check(JOB) == []
    noon = datetime.datetime(2024, 5, 1, 12, 0, 0, 7, datetime.UTC)
    first = Sale(
        "ann", 2**62, 0.1, True, b"\0", noon, noon.date(), noon.time(), [Item("a", ["x", "y"])], {"n": 1}, Item("b", [])
    )
    second = msgspec.structs.replace(first, user="bob", items=[], notes={}, remark="late")

    writer = made.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    writer.write(Batch([first, second], range(2), ListOrigin("in", "list", 0, 0, [first, second])))
    committables = writer.seal(at(1, 1))()
    commit(made.committer(JOB), at(1, 1), committables)  # type: ignore[arg-type]

    rows = lake.catalog().load_table("new.sales").scan().to_arrow().to_pylist()
    wanted = [msgspec.structs.asdict(sale) for sale in (first, second)]
    for row in wanted:
        row["items"] = [msgspec.structs.asdict(item) for item in row["items"]]
        row["first"], row["notes"] = msgspec.structs.asdict(row["first"]), [*row["notes"].items()]
    assert rows == wanted
    assert len([*made.audit_table_rows()]) == 2


def test_columns_that_models_do_not_have_are_written_by_tables_that_have_them(lake: IcebergLake) -> None:
    columns = pa.schema([
        ("price", pa.decimal128(10, 2)), ("id", pa.uuid()), ("count", pa.int32()), ("code", pa.binary(2)),
    ])  # fmt: skip
    lake.catalog().create_table("shop.prices", columns)
    made = sink(lake, "shop.prices")
    row = {"price": Decimal("1.50"), "id": uuid.uuid4(), "count": 7, "code": b"ab"}

    writer = made.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    writer.write(Batch([row], range(1), ListOrigin("in", "list", 0, 0, [row])))
    commit(made.committer(JOB), at(1, 1), writer.seal(at(1, 1))())  # type: ignore[arg-type]

    assert lake.catalog().load_table("shop.prices").scan().to_arrow().to_pylist() == [row]


class Wait(msgspec.Struct):
    time: datetime.timedelta


class Order(msgspec.Struct):
    user: str
    amount: int


def test_a_field_that_iceberg_has_no_type_for_is_refused_at_the_start(lake: IcebergLake) -> None:
    with pytest.raises(ConfigError, match="test:shop.waits cannot be created: .*duration"):
        sink(lake, "shop.waits", value=Wait, create=True).check(JOB)


def test_a_table_that_rows_do_not_fit_into_is_refused(lake: IcebergLake) -> None:
    with pytest.raises(ConfigError, match=r"rows of Order do not fit into test:shop\.rows: it has no column user"):
        sink(lake, value=Order).check(JOB)


@pytest.mark.parametrize("name", ["write.data.path", "write.object-storage.enabled"])
def test_a_table_whose_data_lies_elsewhere_is_refused(lake: IcebergLake, name: str) -> None:
    with lake.table().transaction() as change:
        change.set_properties({name: "true"})

    with pytest.raises(ConfigError, match=rf"its data files are in another location \({name}\): unset it"):
        sink(lake).check(JOB)


def test_a_table_that_is_neither_in_a_directory_nor_in_a_bucket_is_refused() -> None:
    assert store_of("gs://bucket/shop/rows", {}) is None
    assert store_of("file://host/shop/rows", {}) is None
    assert in_bucket("s3://bucket", {}) is None
    assert local_path("s3://bucket/shop/rows") is None
    assert local_path("file:///a%20b/rows") == Path("/a b/rows")
    assert local_path("/a%20b/rows") == Path("/a%20b/rows")


@dataclass
class Wrong:
    table: str = "shop.rows"
    catalog: str = "test"
    properties: dict[str, Any] | None = None
    create: bool = False
    value: Any = None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Wrong(table="rows"), r"include the namespace in the table's name, as in 'shop\.sales'"),
        (Wrong(table="shop..rows"), "include the namespace"),
        (Wrong(catalog=""), "catalog must not be empty"),
        (Wrong(properties={"uri": 7}), "properties must be strings .not strings: uri"),
        (Wrong(table="shop.none"), r"no Iceberg table test:shop\.none: .*create=True"),
        (Wrong(table="none.none"), r"no Iceberg table test:none\.none"),
        (Wrong(catalog="prod", properties={}), r"catalog 'prod' cannot be opened: .* PYICEBERG_CATALOG__PROD__URI"),
        (Wrong(properties={"type": "sql"}), "catalog 'test' cannot be opened: .*uri"),
        (Wrong(properties={"type": "wrong", "uri": "x"}), "catalog 'test' cannot be opened: .*wrong"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_do(lake: IcebergLake, given: Wrong, why: str) -> None:
    properties = lake.properties if given.properties is None else given.properties

    with pytest.raises(ConfigError, match=why):
        IcebergSink(
            given.table, catalog=given.catalog, properties=properties, create=given.create, value=given.value
        ).check(JOB)


def test_a_source_of_the_tables_own_files_is_found_at_the_start_where_the_catalog_says_where_they_are(
    lake: IcebergLake,
) -> None:
    made: IcebergSink[Any] = sink(lake, "shop.made", value=Basket, create=True)
    other: IcebergSink[Any] = sink(lake, value=Basket)
    assert made.find_location(JOB) is None
    made.check(JOB)
    data = Path(lake.catalog().load_table("shop.made").location().removeprefix("file://")) / "data"
    source = FileSource(str(data))

    assert made.find_location(JOB) == str(data)
    assert made.find_location(None) is None
    assert "they would circulate forever" in str(source.find_feedback(made, refused=False, ctx=JOB))
    assert source.find_feedback(other, refused=False, ctx=JOB) is None


def test_a_catalog_that_is_locked_is_told_without_the_statement(lake: IcebergLake) -> None:
    with sqlite3.connect(lake.properties["uri"].removeprefix("sqlite:///").partition("?")[0]) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Retryable, match=r"could not look for test:shop\.rows: database is locked$"):
            IcebergSink("shop.rows", catalog="test", properties=lake.properties).check(JOB)


def test_an_answer_of_no_catalog_may_come_later(lake: IcebergLake) -> None:
    away = {"type": "rest", "uri": "http://localhost:1"}

    with pytest.raises(Retryable, match="could not look for test:shop.rows: .*refused"):
        IcebergSink("shop.rows", catalog="test", properties=away).check(JOB)


@pytest.mark.parametrize("mark", "/?#")
def test_a_catalog_whose_password_cannot_be_told_from_its_path_is_refused(mark: str) -> None:
    with pytest.raises(ConfigError, match="percent-encode") as refused:
        IcebergSink("shop.rows", properties={"type": "sql", "uri": f"postgresql://me:top{mark}secret@host:5432/db"})
    assert "top" not in str(refused.value)


def test_secrets_of_a_catalog_are_shown_nowhere() -> None:
    properties = {
        "type": "sql",
        "uri": "postgresql://me:topsecret@host:5432/db?password=topsecret",
        "token": "topsecret",
    }
    made: IcebergSink[Any] = IcebergSink("shop.rows", catalog="prod", properties=properties)

    shown = f"{made!r} {made.describe()} {made.scope(JOB)}"

    assert made.scope(JOB) == "iceberg:prod:host:5432/db:shop.rows"
    assert "topsecret" not in shown
