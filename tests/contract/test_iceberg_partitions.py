"""Iceberg tables with partitions: a file has rows of one, which is the one that the format says."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType, StructType, TimestamptzType

from kafka_eos.abc.committer import CommitOutcome, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._lake.lake_table import TableSpec
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.iceberg.iceberg_table import IcebergTable
from kafka_eos.connectors.iceberg.partitions import TransformPartitioning, parsed
from kafka_eos.core.errors import ConfigError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.lakes import IcebergLake, at, commit

JOB = JobContext("orders", Term(1), {})
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


class Sale(msgspec.Struct):
    user: str | None
    day: datetime.date
    at: datetime.datetime
    paid: bool
    id: int


BY = ("day", "hour(at)", "truncate[2](user)", "bucket[4](id)", "paid")
SALES = [
    Sale("ann", NOON.date(), NOON, True, 0),
    Sale("a/b=c%20 \\d 'ü\"", NOON.date(), NOON, True, 1),
    Sale(None, datetime.date(1, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC), False, -1),
    Sale("", NOON.date(), NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-9))), True, 2**62),
    Sale("__HIVE_DEFAULT_PARTITION__", NOON.date(), NOON, False, 4),
    Sale("anna", NOON.date(), NOON, True, 0),
]


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path)


def sink(lake: IcebergLake, name: str = "shop.sales", **options: Any) -> IcebergSink[Any]:
    return IcebergSink(name, catalog="test", properties=lake.properties, **options)


def made(lake: IcebergLake, **options: Any) -> IcebergSink[Any]:
    new = sink(lake, value=Sale, create=True, partition_by=BY, **options)
    assert new.check(JOB) == []
    return new


def prepared(sink: IcebergSink[Any], rows: Sequence[Any], epoch: int = 1) -> Sequence[Committable]:
    writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(epoch)))
    writer.write(Batch(rows, range(len(rows)), ListOrigin("in", "list", 0, 0, rows)))
    return writer.seal(at(epoch, 1))()


def committed(sink: IcebergSink[Any], rows: Sequence[Any], epoch: int = 1) -> None:
    committables = prepared(sink, rows, epoch)
    assert commit(sink.committer(JOB), at(epoch, 1), committables) == {CommitOutcome.COMMITTED}  # type: ignore[arg-type]


def opened(lake: IcebergLake, name: str = "shop.sales") -> Table:
    return load_catalog("test", **lake.properties).load_table(name)


def ids(table: Table, **filters: Any) -> list[int]:
    return sorted(table.scan(**filters).to_arrow().column("id").to_pylist())


def test_each_partition_has_files_of_its_own_and_readers_find_all_rows_of_each(lake: IcebergLake) -> None:
    new = made(lake)
    committed(new, SALES)

    table = opened(lake)
    assert [field.name for field in table.spec().fields] == ["day", "at_hour", "user_trunc_2", "id_bucket_4", "paid"]
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: (row["id"], row["user"]))
    wanted = [msgspec.structs.asdict(sale) for sale in SALES]
    assert rows == sorted(wanted, key=lambda row: (row["id"], row["user"]))
    partitions = [each["partition"] for each in table.inspect.files().to_pylist()]
    assert len(partitions) == 5, "ann and anna are of one"
    for sale in SALES:
        of_user = IsNull("user") if sale.user is None else EqualTo("user", sale.user)
        assert sale.id in ids(table, row_filter=of_user)
        assert sale.id in ids(table, row_filter=EqualTo("id", sale.id))
        assert sale.id in ids(table, row_filter=EqualTo("at", sale.at.astimezone(datetime.UTC).isoformat()))
        assert sale.id in ids(table, row_filter=EqualTo("day", sale.day))
        assert sale.id in ids(table, row_filter=EqualTo("paid", sale.paid))
    assert ids(table, row_filter=GreaterThanOrEqual("at", NOON.isoformat())) == [0, 0, 1, 4, 2**62]
    assert len([*new.audit_table_rows()]) == len(SALES)


@pytest.mark.parametrize(
    ("transform", "tp", "value", "hashed"),
    [
        (BucketTransform(1 << 30), LongType(), 34, 2017239379),
        (BucketTransform(1 << 30), StringType(), "iceberg", 1210000089),
        (BucketTransform(1 << 30), DateType(), datetime.date(2017, 11, 16), -653330422),
        (
            BucketTransform(1 << 30),
            TimestamptzType(),
            datetime.datetime(2017, 11, 16, 14, 31, 8, tzinfo=datetime.timezone(datetime.timedelta(hours=-8))),
            -2047944441,
        ),
    ],
)
def test_buckets_are_those_of_the_format(
    lake: IcebergLake, transform: Transform[Any, Any], tp: Any, value: Any, hashed: int
) -> None:
    """The hashes that its specification lists, so that other engines look for a row where it is."""
    columns = Schema(NestedField(1, "x", tp, required=False))
    by = PartitionSpec(PartitionField(1, 1000, transform, "x_bucket"))
    spec = TransformPartitioning(lake.catalog().create_table("shop.parts", columns, partition_spec=by))

    assert spec.of({"x": value})["x_bucket"] == str((hashed & 0x7FFFFFFF) % (1 << 30))
    assert spec.of({"x": None})["x_bucket"] is None


def test_a_row_whose_partition_cannot_be_told_is_refused_and_the_audit_leaves_it_out(lake: IcebergLake) -> None:
    new, refused = made(lake), list[int]()
    rows = [SALES[0], msgspec.structs.replace(SALES[0], at="now"), msgspec.structs.replace(SALES[0], day=NOON)]

    with pytest.raises(PoisonRecord, match="column 'at': a str is not one of its values"):
        prepared(new, rows)
    kept, said = new.audit_rows(
        Batch(rows, range(3), ListOrigin("in", "list", 0, 0, rows)),
        "out",
        lambda batch, index, operator, error: refused.append(index),
    )

    assert refused == [1, 2]
    assert len(kept) == len(said) == 1


def test_a_table_that_was_partitioned_anew_stops_the_commit_until_it_is_as_it_was(lake: IcebergLake) -> None:
    new = sink(lake, value=Sale, create=True, partition_by=["day(at)"])
    new.check(JOB)
    committables = prepared(new, SALES)
    with opened(lake).update_spec() as change:
        change.remove_field("at_day").add_field("paid", IdentityTransform())
    committer: Any = new.committer(JOB)

    with pytest.raises(ConfigError, match="it is partitioned by paid now, and was by at_day. The output stays staged"):
        commit(committer, at(1, 1), committables)
    with opened(lake).update_spec() as change:
        change.remove_field("paid").add_field("at", DayTransform(), "at_day")

    assert commit(committer, at(1, 1), committables) == {CommitOutcome.COMMITTED}
    assert len(ids(opened(lake))) == len(SALES)


def test_partitions_of_one_name_that_were_made_in_another_way_are_not_mixed_up(lake: IcebergLake) -> None:
    new = sink(lake, value=Sale, create=True, partition_by=["day(at)"])
    new.check(JOB)
    committables = prepared(new, SALES)
    with opened(lake).update_spec() as change:
        change.remove_field("at_day")
    with opened(lake).update_spec() as change:
        change.add_field("user", IdentityTransform(), "at_day")

    with pytest.raises(
        ConfigError, match="it is partitioned by at_day now, and was by at_day. The output stays staged"
    ):
        commit(new.committer(JOB), at(1, 1), committables)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_table_of_which_the_partitions_were_removed_is_one_without(lake: IcebergLake, version: str) -> None:
    """In version 1 the field stays, and is always null."""
    lake.catalog().create_table(
        "shop.sales",
        lake.table().schema(),
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "text")),
        properties={"format-version": version},
    )
    with opened(lake).update_spec() as change:
        change.remove_field("text")

    committed(sink(lake), [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])

    assert ids(opened(lake)) == [1, 2]
    assert len(opened(lake).inspect.files()) == 1


def test_a_row_whose_partition_is_another_one_now_leaves_the_old_one(lake: IcebergLake) -> None:
    new = made(lake, key=["user"])
    committed(new, [SALES[0], SALES[1], SALES[3]])
    moved = msgspec.structs.replace(SALES[0], paid=False, id=7)
    committed(new, [moved], epoch=2)

    rows = opened(lake).scan().to_arrow().to_pylist()
    assert sorted((row["user"], row["paid"], row["id"]) for row in rows) == [
        ("", True, 2**62), (SALES[1].user, True, 1), ("ann", False, 7)
    ]  # fmt: skip
    assert ids(opened(lake), row_filter=EqualTo("paid", False)) == [7]


def test_a_table_that_is_partitioned_anew_while_it_is_written_again_is_looked_at_again(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = made(lake, key=["user"])
    committed(new, [SALES[0], SALES[1]])
    committables, fit, asked = prepared(new, [SALES[0]], epoch=2), IcebergTable.read_spec, list[Table]()

    def changed(table: IcebergTable) -> TableSpec:
        if not asked:
            asked.append(opened(lake))
            with asked[0].update_spec() as change:
                change.remove_field("paid")
        return fit(table)

    monkeypatch.setattr(IcebergTable, "read_spec", changed)
    assert commit(new.committer(JOB), at(2, 1), committables) == {CommitOutcome.COMMITTED}  # type: ignore[arg-type]

    assert asked
    assert ids(opened(lake)) == [0, 1]
    specs = {file["spec_id"] for file in opened(lake).inspect.files().to_pylist()}
    assert opened(lake).spec().spec_id in specs


NESTED = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StructType(NestedField(3, "n", LongType()))))


@pytest.mark.parametrize(
    ("columns", "field", "why"),
    [
        (
            Schema(NestedField(1, "x", DoubleType())),
            PartitionField(1, 1000, IdentityTransform(), "x"),
            "by identity of x",
        ),
        (NESTED, PartitionField(3, 1000, IdentityTransform(), "n"), "by s.n, a field within a column"),
        (NESTED, PartitionField(1, 1000, IdentityTransform(), "a-b"), "its partitions are called 'a-b'"),
    ],
)
def test_a_table_with_partitions_that_cannot_be_written_is_refused_at_the_start(
    lake: IcebergLake, columns: Schema, field: PartitionField, why: str
) -> None:
    lake.catalog().create_table("shop.parts", columns, partition_spec=PartitionSpec(field))

    with pytest.raises(ConfigError, match=why):
        sink(lake, "shop.parts").check(JOB)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition_by": "day"}, r"give a list, \['day'\]"),
        ({"partition_by": ["dya"], "create": True, "value": Sale}, "Sale has no field dya"),
        ({"partition_by": ["day(dya)"], "create": True, "value": Sale}, "Sale has no field dya"),
        ({"partition_by": ["days(at)"], "create": True, "value": Sale}, r"'days\(at\)' must be a column, or year"),
        ({"partition_by": ["bucket[0](id)"], "create": True, "value": Sale}, "must be a column, or year"),
        ({"partition_by": ["day"]}, "partition_by needs create=True"),
    ],
)
def test_what_cannot_be_partitioned_is_said_with_the_sink(lake: IcebergLake, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        sink(lake, **options)


def test_a_transform_that_a_column_does_not_have_is_said_at_the_start(lake: IcebergLake) -> None:
    with pytest.raises(ConfigError, match="test:shop.sales cannot be created: .*hour"):
        sink(lake, value=Sale, create=True, partition_by=["hour(user)"]).check(JOB)
    assert not lake.catalog().table_exists("shop.sales")


@pytest.mark.parametrize(
    ("text", "column", "transform"),
    [
        ("day(at)", "at", "day"),
        ("bucket[16](user)", "user", "bucket[16]"),
        ("truncate[4](user)", "user", "truncate[4]"),
        ("user", "user", "identity"),
    ],
)
def test_transforms_are_read_as_they_are_written(text: str, column: str, transform: str) -> None:
    found, made = parsed(text)

    assert (found, str(made)) == (column, transform)
