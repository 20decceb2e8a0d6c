"""Delta tables with partitions: a file has rows of one, and what a partition cannot hold is refused."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from kafka_eos.abc.committer import CommitOutcome, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._lake.file_names import LakeCommittable, partition
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.delta.delta_log import live_files
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.lakes import at, commit

JOB = JobContext("orders", Term(1), {})


class Sale(msgspec.Struct):
    day: datetime.date
    shop: str | None
    paid: bool
    n: int
    id: int


BY = ("day", "shop", "paid", "n")
FIRST = datetime.date(2024, 5, 1)
SALES = [
    Sale(FIRST, "a/b=c%20 d", True, 1, 0),
    Sale(FIRST, "ü ;,'\"", True, -1, 1),
    Sale(FIRST, None, False, 1, 2),
    Sale(datetime.date(1, 1, 1), "x", False, 2**62, 3),
    Sale(FIRST, "a/b=c%20 d", True, 1, 4),
]


def prepared(sink: DeltaSink[Any], rows: Sequence[Any]) -> Sequence[Committable]:
    writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    writer.write(Batch(rows, range(len(rows)), ListOrigin("in", "list", 0, 0, rows)))
    return writer.seal(at(1, 1))()


def made(where: Path, **options: Any) -> DeltaSink[Any]:
    sink = DeltaSink(where, value=Sale, create=True, partition_by=BY, **options)
    assert sink.check(JOB) == []
    return sink


def test_each_partition_has_files_of_its_own_and_readers_find_its_values(tmp_path: Path) -> None:
    sink = made(tmp_path / "sales")
    committables = prepared(sink, SALES)

    assert commit(sink.committer(JOB), at(1, 1), committables) == {CommitOutcome.COMMITTED}  # type: ignore[arg-type]

    table = DeltaTable(tmp_path / "sales")
    assert table.metadata().partition_columns == [*BY]
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: int(row["id"]))
    assert rows == [msgspec.structs.asdict(sale) for sale in SALES]
    assert len(table.file_uris()) == len(committables) == 4
    assert table.to_pyarrow_table(filters=[("day", "=", datetime.date(1, 1, 1))]).column("id").to_pylist() == [3]
    assert {name for uri in table.file_uris() for name in pq.read_schema(uri).names} == {"id"}
    assert len([*sink.audit_table_rows()]) == len(SALES)


def test_optimize_finds_each_file(tmp_path: Path) -> None:
    """It looks for them by names that it has spelled as addresses."""
    DeltaTable.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("day", pa.date32())]), partition_by="day")
    sink = DeltaSink[Any](tmp_path / "t")
    rows = [{"id": n, "day": FIRST + datetime.timedelta(n % 3)} for n in range(6)]
    for epoch in (1, 2):
        writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(epoch)))
        writer.write(Batch(rows, range(len(rows)), ListOrigin("in", "list", 0, 0, rows)))
        commit(sink.committer(JOB), at(epoch, 1), writer.seal(at(epoch, 1))())  # type: ignore[arg-type]

    assert DeltaTable(tmp_path / "t").optimize.compact()["numFilesRemoved"] == 6

    assert len(DeltaTable(tmp_path / "t").to_pyarrow_table()) == 12


def test_rows_of_a_table_that_others_have_made_go_into_its_partitions(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.date32(), nullable=False)])
    DeltaTable.create(tmp_path / "t", columns, partition_by="day")
    sink = DeltaSink[Any](tmp_path / "t")
    rows = [{"id": n, "day": FIRST + datetime.timedelta(n % 2)} for n in range(4)]
    committables = prepared(sink, rows)
    DeltaTable(tmp_path / "t").alter.set_table_properties({"delta.appendOnly": "true"})  # so the fit is looked at

    commit(sink.committer(JOB), at(1, 1), committables)  # type: ignore[arg-type]

    assert sorted(DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist(), key=lambda row: int(row["id"])) == rows


@pytest.mark.parametrize("shop", ["", "__HIVE_DEFAULT_PARTITION__", "x" * 300])
def test_a_text_that_would_come_back_as_null_or_not_at_all_is_refused_with_its_row(tmp_path: Path, shop: str) -> None:
    sink = made(tmp_path / "sales")

    with pytest.raises(PoisonRecord, match="cannot be|not a valid partition directory"):
        prepared(sink, [SALES[0], replace_shop(shop)])


def replace_shop(shop: str) -> Sale:
    return replace(SALES[0], shop=shop)


def test_a_row_that_a_partition_refuses_is_one_that_the_audit_leaves_out(tmp_path: Path) -> None:
    sink, refused = made(tmp_path / "sales"), list[int]()
    rows = [SALES[0], replace_shop(""), replace_shop("x" * 300), SALES[1]]

    kept, said = sink.audit_rows(
        Batch(rows, range(4), ListOrigin("in", "list", 0, 0, rows)),
        "out",
        lambda batch, index, operator, error: refused.append(index),
    )

    assert refused == [1, 2]
    assert len(kept) == len(said) == 2


def test_a_table_that_was_partitioned_anew_stops_the_commit(tmp_path: Path) -> None:
    sink = made(tmp_path / "sales")
    committables = prepared(sink, SALES)
    table = DeltaTable(tmp_path / "sales")
    empty = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(table, empty, mode="overwrite", schema_mode="overwrite", partition_by=["shop"])
    assert DeltaTable(tmp_path / "sales").metadata().partition_columns == ["shop"]

    with pytest.raises(
        ConfigError, match="it is partitioned by shop now, and was by day, shop, paid, n. The output stays staged"
    ):
        commit(sink.committer(JOB), at(1, 1), committables)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["../x", "day=1/..", "day", "day=1//n=2", "/day=1"])
def test_a_partition_that_no_writer_has_named_is_refused(tmp_path: Path, place: str) -> None:
    (committable, *_) = prepared(made(tmp_path / "sales"), SALES)
    forged = {**committable.payload, "partition": place}

    assert LakeCommittable.read(committable.payload).payload() == committable.payload
    with pytest.raises(CorruptCheckpoint, match="not a committable of a lake table"):
        made(tmp_path / "sales").committer(JOB).probe(replace(committable, payload=forged))


def test_values_of_a_partition_are_read_as_they_were_written() -> None:
    assert partition("day=2024-05-01/shop=a%2Fb%3Dc%2520 d/x=__HIVE_DEFAULT_PARTITION__") == {
        "day": "2024-05-01",
        "shop": "a/b=c%20 d",
        "x": None,
    }
    assert partition("") == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition_by": "day"}, r"give a list, \['day'\]"),
        ({"partition_by": ["dya"], "create": True, "value": Sale}, "Sale has no field dya"),
        ({"partition_by": ["day"]}, "partition_by needs create=True"),
    ],
)
def test_what_cannot_be_partitioned_is_said_with_the_sink(tmp_path: Path, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        DeltaSink(tmp_path, **options)


@pytest.mark.parametrize(
    ("columns", "by", "why"),
    [
        ({"id": pa.int64(), "share": pa.float64()}, ["share"], r"partitioned by share, double: .* texts, integers"),
        ({"id": pa.int64(), "at": pa.timestamp("us", "UTC")}, ["at"], "partitioned by at, timestamp"),
        ({"id": pa.int64(), "more": pa.string()}, ["more"], "partitioned by more, and Id has no such field"),
        ({"id": pa.int64(), "a-b": pa.string()}, ["a-b"], "by columns of letters, digits and _"),
        ({"id": pa.int64()}, ["id"], "by all its columns, so data files would have no columns"),
    ],
)
def test_a_table_with_partitions_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, columns: dict[str, pa.DataType], by: list[str], why: str
) -> None:
    DeltaTable.create(tmp_path / "t", pa.schema([*columns.items()]), partition_by=by)

    with pytest.raises(ConfigError, match=why):
        DeltaSink(tmp_path / "t", value=Id).check(JOB)


class Id(msgspec.Struct):
    id: int


@pytest.mark.parametrize(
    ("statistics", "bounds"),
    [
        ({"minValues": {"id": 1}, "maxValues": {"id": 3}}, {"id": (1, 3)}),
        ({"minValues": {"id": 1}}, {}),
        ({"maxValues": {"id": 3}}, {}),
        ({}, {}),
    ],
)
def test_a_file_of_which_another_writer_told_one_bound_or_none_may_have_any_value(
    statistics: dict[str, Any], bounds: dict[str, Any], tmp_path: Path
) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 3]}))
    (entry,) = (tmp_path / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = json.dumps({"numRecords": 2, **statistics})
    entry.write_text("\n".join(map(json.dumps, lines)))

    (file,) = live_files(DeltaTable(tmp_path))

    assert file.bounds == bounds
