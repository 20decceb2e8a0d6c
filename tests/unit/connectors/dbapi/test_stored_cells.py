"""Cells that a database stores otherwise than they were written, and stages with other columns than the table."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Connection, Float, Integer, MetaData, Numeric, Table, Text, create_engine, text
from sqlalchemy.types import NullType

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi.statements import ORDER
from kafka_eos.connectors.dbapi.stored_cells import find_changed, find_difference, read_column_types

TARGET = TargetTable("", "t", ("a", "b", "d"), ("a",))
STAGE = Table("stage", MetaData(), Column(ORDER, Integer), Column("a", Integer), Column("b", Text), Column("d", Float))
ROWS = [(number, number * 10, f"text {number}", Decimal(number) / 2) for number in range(1, 7)]


@pytest.fixture
def connection() -> Iterator[Connection]:
    with create_engine("sqlite://").connect() as connection:
        STAGE.create(connection)
        for number, a, b, d in ROWS:
            connection.execute(STAGE.insert().values({ORDER: number, "a": a, "b": b, "d": float(d)}))
        yield connection


def changed(connection: Connection, rows: list[tuple[Any, ...]]) -> dict[int, str]:
    types = {"a": Integer(), "b": Text(), "d": Numeric(10, 2)}
    return {at: str(error) for at, error in find_changed(connection, STAGE, types, TARGET, rows).items()}


def test_rows_that_come_back_as_they_were_are_not_changed(connection: Connection) -> None:
    """Whichever of the staged rows they are; a number may have other zeros at its end."""
    assert changed(connection, []) == {}
    for first in range(len(ROWS)):
        for end in range(first + 1, len(ROWS) + 1):
            assert changed(connection, ROWS[first:end]) == {}


@pytest.mark.parametrize("column", [1, 2, 3])
@pytest.mark.parametrize("rows", [{1}, {3}, {1, 2}, {1, 2, 3}])
def test_each_row_with_a_cell_that_comes_back_as_another_is_named_with_it(
    connection: Connection, rows: set[int], column: int
) -> None:
    others = {1: -1, 2: "another", 3: Decimal("7.5")}
    other = lambda row: (*row[:column], others[column], *row[column + 1 :])  # noqa: E731
    given = [other(row) if at in rows else row for at, row in enumerate(ROWS[1:5])]
    found = changed(connection, given)

    assert {*found} == rows
    for said in found.values():
        assert said.startswith(f"t, column {TARGET.columns[column - 1]!r} of type ")
        assert f": {others[column]!r} would come back as " in said


def test_a_cell_of_another_class_is_another_though_it_is_equal(connection: Connection) -> None:
    number, a, b, d = ROWS[0]

    assert {*changed(connection, [(number, float(a), b, d)])} == {0}
    assert {*changed(connection, [(number, a, b, float(d))])} == {0}
    assert {*changed(connection, [(number, a, None, d)])} == {0}


def test_columns_are_decoded_as_readers_of_the_table_do(connection: Connection) -> None:
    connection.execute(text('CREATE TABLE t (a INTEGER, "B" FLOAT, c BOOLEAN, "d" TEXT, "D2" TEXT)'))
    types = read_column_types(connection, TargetTable("", "t", ("d", "A", "b", "c", "more"), ()))

    kinds = {"d": Text, "A": Integer, "b": Float, "c": Boolean, "more": NullType}
    assert [*types] == [*kinds]
    assert all(isinstance(types[name], kind) for name, kind in kinds.items())
    attached = read_column_types(connection, TargetTable("", "main.t", ("d",), ()))
    assert isinstance(attached["d"], Text)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("a INTEGER NOT NULL, b TEXT NOT NULL, c VARCHAR(3)", None),
        ("a INTEGER, b TEXT NOT NULL, c VARCHAR(3) NOT NULL", None),
        ("A INTEGER, b TEXT NOT NULL", None),
        ("a INTEGER, b TEXT, c VARCHAR(3)", "the column 'b' is TEXT() NOT NULL, but is declared as TEXT()"),
        ("a TEXT, b TEXT NOT NULL, c VARCHAR(3)", "the column 'a' is INTEGER() NOT NULL, but is declared as TEXT()"),
        ("a INTEGER, b TEXT NOT NULL, c VARCHAR(4)",
         "the column 'c' is VARCHAR(length=3), but is declared as VARCHAR(length=4)"),
    ],
)  # fmt: skip
def test_a_stage_that_would_take_what_the_table_does_not_is_told(
    connection: Connection, stage: str, said: str | None
) -> None:
    connection.execute(text("CREATE TABLE t (a INTEGER NOT NULL, z DATE NOT NULL, b TEXT NOT NULL, c VARCHAR(3))"))
    connection.execute(text(f"CREATE TABLE s ({stage})"))

    assert find_difference(connection, TargetTable("", "t", ("a", "b", "c"), ("A",)), "s") == said
    assert find_difference(connection, TargetTable("", "main.t", ("a", "b", "c"), ("A",)), "main.s") == said
