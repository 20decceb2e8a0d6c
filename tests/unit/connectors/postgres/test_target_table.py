"""What a sink says about a table of which the catalog tells everything. No server."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.postgres.sink.target_table import TableColumn, TableInfo, problems

PLAIN = TableColumn(
    name="a",
    type="text",
    type_name="text",
    not_null=False,
    default=False,
    generated=False,
    length="octets",
    never_null=False,
    built_in=True,
    stored="text",
    expression=None,
    inputs=(),
)


def column(name: str, **changes: Any) -> TableColumn:
    return replace(PLAIN, name=name, **changes)


TABLE = TableInfo(
    schema="public",
    name="t",
    kind="r",
    persistence="p",
    may_insert=True,
    may_change=True,
    constrained=False,
    columns=tuple(map(column, "abcd")),
    checks=(),
    unique=frozenset([frozenset("ab"), frozenset("c")]),
    indexes=(),
    partitions=(("p1", "r", "p"), ("p2", "p", "p"), ("p3", "r", "p")),
    lock_hazards=(),
)
KEYED, UNKEYED = TargetTable("public", "t", tuple("abcd"), tuple("ab")), TargetTable("public", "t", tuple("abcd"), ())


def with_columns(**changes: dict[str, Any]) -> TableInfo:
    return replace(TABLE, columns=tuple(replace(each, **changes.get(each.name, {})) for each in TABLE.columns))


UNLOGGED = "so a crash of the server empties it: ALTER TABLE … SET LOGGED"


@pytest.mark.parametrize(
    ("table", "target", "deletes", "wrong"),
    [
        (TABLE, KEYED, True, []),
        (TABLE, UNKEYED, False, []),
        *((replace(TABLE, kind=kind, columns=(), persistence="u"), KEYED, True, [f"it is {name}: write to a table"])
          for kind, name in (("v", "a view"), ("m", "a materialized view"), ("S", "a sequence"),
                             ("f", "a foreign table, whose server takes no part in the transaction"))),
        (replace(TABLE, persistence="u"), UNKEYED, False, [f"it is unlogged, {UNLOGGED}"]),
        (replace(TABLE, partitions=(("p1", "r", "u"), ("p2", "f", "p"), ("p3", "r", "p"), ("p4", "r", "u"))), UNKEYED,
         False, [f"its partition p1 is unlogged, {UNLOGGED}",
                 "its partition p2 is a foreign table, whose server takes no part in the transaction: detach it",
                 f"its partition p4 is unlogged, {UNLOGGED}"]),
        (TABLE, replace(UNKEYED, columns=("x", "a", "y")), False, ["it has no column x, y (it has a, b, c, d)"]),
        (with_columns(b={"generated": True}, d={"generated": True, "not_null": True}), UNKEYED, False,
         ["the server itself computes b, d: leave such columns out with columns=(…)"]),
        (with_columns(b={"generated": True}), replace(UNKEYED, columns=("a", "c")), False, []),
        (with_columns(a={"not_null": True}, b={"not_null": True, "default": True},
                      c={"not_null": True, "generated": True}, d={"not_null": True}),
         replace(UNKEYED, columns=()), False,
         ["a, d must not be null, has no default, and the sink does not write it"]),
        (with_columns(a={"not_null": True}), replace(UNKEYED, columns=("a",)), False, []),
        (with_columns(a={"never_null": True}, c={"never_null": True}, d={"never_null": True}), KEYED, True,
         ["the domain of c, d is NOT NULL, but a deletion contains only its key: declare the column NOT NULL instead "
          "of the domain"]),
        (with_columns(a={"never_null": True}, c={"never_null": True}), KEYED, False, []),
        *((TABLE, replace(KEYED, key=key), True,
           [f"no primary key or unique index has exactly the columns ({', '.join(key)}): create one that is neither "
            "partial nor deferrable"])
          for key in (("a",), ("a", "b", "c"), ("d",))),
        (TABLE, replace(KEYED, key=("b", "a")), True, []),
        (replace(TABLE, may_insert=False), KEYED, False,
         ["the user lacks rights: GRANT SELECT, INSERT, UPDATE, DELETE"]),
        (replace(TABLE, may_change=False), KEYED, False,
         ["the user lacks rights: GRANT SELECT, INSERT, UPDATE, DELETE"]),
        (replace(TABLE, may_insert=False), UNKEYED, False, ["the user lacks rights: GRANT INSERT"]),
        (replace(TABLE, may_change=False), UNKEYED, False, []),
    ],
)  # fmt: skip
def test_whatever_prevents_the_guarantee_is_named_and_nothing_else(
    table: TableInfo, target: TargetTable, deletes: bool, wrong: list[str]
) -> None:
    assert [*problems(table, target, deletes)] == wrong


def test_a_missing_column_that_a_deletion_would_leave_empty_is_only_missing() -> None:
    found = [*problems(TABLE, replace(KEYED, columns=(*"abx",)), deletes=True)]

    assert found == ["it has no column x (it has a, b, c, d)"]


def test_only_rules_about_written_columns_are_demanded_of_a_row() -> None:
    table = replace(
        TABLE,
        columns=(*(column(name, not_null=name != "c") for name in "abcd"), column('e"' + "x" * 70, not_null=True)),
        checks=(
            ("first", "(a > 0)", frozenset("a")),
            ("both", "(a > b)", frozenset("ab")),
            ("other", "(a > d)", frozenset("ad")),
        ),
    )

    assert [*table.demands(("a", "b", "c"))] == [
        ("a is NOT NULL", '"a" IS NOT NULL'),
        ("b is NOT NULL", '"b" IS NOT NULL'),
        ("first", "(a > 0)"),
        ("both", "(a > b)"),
    ]
    assert [*table.demands(("d", 'e"' + "x" * 70))] == [
        ("d is NOT NULL", '"d" IS NOT NULL'),
        ('e"' + "x" * 61, f'"e""{"x" * 70}" IS NOT NULL'),
    ]
    assert [name for name, _ in table.demands(("a", "d"))] == ["a is NOT NULL", "d is NOT NULL", "first", "other"]


def test_a_column_is_computed_if_all_that_it_is_made_of_is_written() -> None:
    made = [column("one", expression="a + b", inputs=("a", "b")), column("two", expression="now()")]
    table = replace(TABLE, columns=(*TABLE.columns, *made, column("three", expression="d", inputs=("d",))))

    assert [each.name for each, _ in table.computed_from(("a", "b"))] == ["one", "two"]
    assert [text for _, text in table.computed_from(("a", "b", "d"))] == ["a + b", "now()", "d"]
    assert [each.name for each, _ in table.computed_from(())] == ["two"]


def test_columns_without_a_built_in_type_have_none() -> None:
    table = with_columns(a={"stored": "bigint", "type": "d1"}, b={"stored": None, "type": "hstore"})

    assert table.types == {"a": "bigint", "c": "text", "d": "text"}
