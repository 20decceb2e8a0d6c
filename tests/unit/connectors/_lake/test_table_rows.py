"""Which data files still match their table when they are committed: fields are compared however deep they are."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from kafka_eos.connectors._lake.lake_table import TableSpec
from kafka_eos.connectors._lake.partitions import ColumnPartitioning
from kafka_eos.connectors._lake.table_rows import counterpart, explain_schema_change

INT = pa.int64()
NUMBER = pa.struct([("n", INT)])
TEXT = pa.struct([("n", pa.string())])
OTHER = pa.struct([("m", INT)])


def identified(name: str, number: str, tp: pa.DataType = INT) -> pa.Field:
    return pa.field(name, tp, metadata={"PARQUET:field_id": number})


def why(now: pa.Schema, then: pa.Schema) -> str | None:
    return explain_schema_change(TableSpec(now, ColumnPartitioning(), "t", "f"), then, {})


@pytest.mark.parametrize(
    ("inside", "at"),
    [
        (lambda tp: tp, "a.n"),
        (pa.list_, "a[].n"),
        (pa.large_list, "a[].n"),
        (lambda tp: pa.map_(tp, INT), "a{key}.n"),
        (lambda tp: pa.map_(pa.string(), tp), "a{}.n"),
        (lambda tp: pa.list_(pa.struct([("b", pa.list_(tp))])), "a[].b[].n"),
    ],
)
def test_a_field_that_was_replaced_or_has_another_type_is_found_in_any_column(inside: object, at: str) -> None:
    then, other, retyped = (pa.schema([("a", inside(tp))]) for tp in (NUMBER, OTHER, TEXT))  # type: ignore[operator]

    assert why(then, then) is None
    assert why(other, then) == f"its column {at} was dropped or replaced"
    assert why(retyped, then) == f"its column {at} is string now, and was int64"


def test_a_column_with_an_id_may_have_another_name_and_one_of_that_name_is_another_column() -> None:
    then = pa.schema([identified("a", "1"), identified("b", "2")])

    assert why(pa.schema([identified("c", "1"), identified("b", "2")]), then) is None
    assert why(pa.schema([identified("a", "3"), identified("b", "2")]), then) == "its column a was dropped or replaced"


def test_a_new_column_that_needs_a_value_has_none_in_older_files() -> None:
    then = pa.schema([("a", INT)])
    needed, free = (pa.schema([*then, pa.field("b", INT, nullable=null)]) for null in (False, True))

    assert why(needed, then) == "its new column b may not be null"
    assert why(free, then) is None
    assert why(needed, needed) is None


def test_a_column_by_which_a_table_is_partitioned_is_in_no_file() -> None:
    columns, there = pa.schema([("a", INT), pa.field("day", pa.string(), nullable=False)]), {"day": "monday"}
    spec = TableSpec(columns, ColumnPartitioning(["day"]), "t", "f")
    files = pa.schema([("a", INT)])

    def of(partition: Mapping[str, str | None]) -> str | None:
        return explain_schema_change(spec, files, partition)

    assert of(there) is None
    assert of({}) == "it is partitioned by day now, and was by nothing"


def test_the_same_column_of_another_schema_is_found_by_its_id_or_without_one_by_its_name() -> None:
    columns = pa.schema([identified("a", "1"), identified("b", "2"), ("c", INT)])

    assert [
        found and found.name
        for found in (
            counterpart(identified("b", "1"), columns),
            counterpart(identified("a", "9"), columns),
            counterpart(pa.field("b", INT), columns),
            counterpart(identified("c", "7"), columns),
            counterpart(pa.field("d", INT), columns),
        )
    ] == ["a", None, "b", "c", None]
