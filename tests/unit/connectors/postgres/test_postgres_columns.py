"""What a PostgresSink makes of a model, a payload and a look at its ledger. No server."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import ipaddress
import math
import sys
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic
import pytest

from kafka_eos._util.extras import ensure_extra
from kafka_eos.abc.committer import CommitStatus
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, Strategy, TableCommittable, TargetTable
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.connectors.postgres.columns import ModelColumn, columns_of
from kafka_eos.connectors.postgres.sink.column_losses import ColumnLosses
from kafka_eos.connectors.postgres.sink.row_encoder import RowEncoder
from kafka_eos.connectors.postgres.sink.staging_catalog import derive_status
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.plan.explain import explain
from kafka_eos.testing import ListSource


class Nested(pydantic.BaseModel):
    x: int


class Color(enum.Enum):
    RED, BLUE = "red", "blue"


class Mixed(enum.Enum):
    RED, SECOND = "red", 2


class Model(pydantic.BaseModel):
    number: int
    price: Annotated[Decimal, "euro"]
    at: datetime.datetime | None
    kind: Literal["a", "b"]
    nested: Nested
    parts: list[int] = []
    color: Color = Color.RED
    mixed: Mixed = Mixed.RED
    either: int | str = 0
    anything: Any = None


@dataclasses.dataclass
class Plain:
    flag: bool
    text: str | None


def test_the_columns_of_a_model_have_types_where_one_surely_fits() -> None:
    assert columns_of(Model, None) == (
        ModelColumn("number", "bigint", False),
        ModelColumn("price", "numeric", False),
        ModelColumn("at", "timestamp with time zone", True),
        ModelColumn("kind", "text", False),
        ModelColumn("nested", "jsonb", False),
        ModelColumn("parts", "jsonb", False),
        ModelColumn("color", "text", False),
        ModelColumn("mixed", "", False),
        ModelColumn("either", "", False),
        ModelColumn("anything", "", True),
    )
    assert columns_of(Plain, ["text"]) == (ModelColumn("text", "text", True),)
    assert columns_of(None, ["a"]) == (ModelColumn("a", "", True),)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (None, None, "the columns are unknown"),
        (int, None, "value=int"),
        (Plain, ["flag", "more"], "more is not a field of Plain"),
        (None, ["a", "a"], "occurs twice"),
        (None, ["kafka_eos_n"], "cannot be a column"),
        (None, ["x" * 64], "cannot be a column"),
    ],
)
def test_columns_that_cannot_be_are_refused(model: Any, given: list[str] | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        columns_of(model, given)


def test_a_row_says_whether_it_deletes_and_then_holds_its_key_alone() -> None:
    rows = RowEncoder(columns_of(None, ["id", "doc"]), None, ["id"], lambda value: value["gone"], {"doc": "jsonb"})

    assert rows.encode({"id": 1, "doc": Nested(x=1), "gone": False}) == (False, 1, '{"x":1}')
    assert rows.encode({"id": 1, "doc": {}, "gone": True}) == (True, 1, None)
    assert rows.encode({"gone": False}) == (False, None, None)


def test_what_is_no_json_and_a_document_in_a_plain_column_are_refused() -> None:
    rows = RowEncoder(columns_of(None, ["id", "doc"]), None, (), None, {"id": "bigint", "doc": "jsonb"})

    with pytest.raises(ValueError, match="'doc' cannot hold this as JSON"):
        rows.encode({"doc": object()})
    for value in (math.nan, [math.inf], {"a": {"b": -math.inf}}, {1: "a", "1": "b"}, [b"x"], {"a": Nested(x=1)}):
        with pytest.raises(ValueError, match="'doc' cannot hold this as JSON"):
            rows.encode({"doc": value})
    assert rows.encode({"doc": [None, 1.5]}) == (False, None, "[null,1.5]")
    with pytest.raises(ValueError, match="'id' is not of type json"):
        rows.encode({"id": {}})


def test_a_time_whose_zone_the_column_would_drop_is_refused() -> None:
    rows = RowEncoder(columns_of(None, ["at"]), None, (), None, {"at": "timestamp without time zone"})
    naive = datetime.datetime(2024, 1, 1, 12)
    east = datetime.timezone(datetime.timedelta(hours=2))

    assert rows.encode({"at": naive}) == (False, naive)
    for zone in (datetime.UTC, east):
        with pytest.raises(ValueError, match="'at' has no time zone"):
            rows.encode({"at": naive.replace(tzinfo=zone)})


def test_a_key_of_a_dict_that_is_no_column_is_refused() -> None:
    rows = RowEncoder(columns_of(None, ["id", "amount"]), None, (), None, {})

    with pytest.raises(ValueError, match="no column for amuont"):
        rows.encode({"id": 1, "amuont": 5})


SECOND = datetime.timedelta(seconds=1)
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone(2 * 3600 * SECOND))
MICROS = NOON.replace(microsecond=1)
LOCAL = MICROS.replace(tzinfo=None)
UTC = NOON.replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("tp", "kept", "lost"),
    [
        ("date", [NOON.date()], [NOON, NOON.replace(tzinfo=None)]),
        ("double precision", [0.1, -0.0, math.nan], [1, 2**53 + 1, True, Decimal("0.5")]),
        ("real", [0.1, 1.5, math.inf, math.nan], [1, 1e300, 0.123456789, Decimal("0.5")]),
        ("numeric(10,2)", [Decimal("10.00"), Decimal("10.5"), Decimal("NaN")], [10, 10.25, True, Decimal("10.001")]),
        ("numeric(10,0)", [Decimal(10)], [10, Decimal("0.5")]),
        ("numeric(3,-2)", [Decimal(100)], [100, Decimal(101)]),
        ("numeric", [Decimal("10.005")], [10, 10.005]),
        ("numeric(10,2)[]", [[Decimal("1.25")], [None, [Decimal(2)]]], [[Decimal("1.255")], [[None, 2]]]),
        ("timestamp(0) with time zone", [NOON], [MICROS, NOON.date(), "2026-01-01"]),
        ("timestamp with time zone", [MICROS], [LOCAL, datetime.datetime.min.replace(tzinfo=NOON.tzinfo)]),
        ("timestamp(3) without time zone", [LOCAL.replace(microsecond=1000)], [LOCAL, NOON, UTC]),
        ("time(0) without time zone", [NOON.time()], [MICROS.time(), NOON.timetz(), UTC.timetz(), NOON]),
        ("time with time zone", [NOON.timetz()], [NOON.time()]),
        ("interval(2)", [SECOND / 100], [SECOND / 1000]),
        ("interval day to hour", [SECOND * 3600], [SECOND * 60]),
        ("interval month", [None, SECOND * 0], [SECOND, datetime.timedelta(30)]),
        ("interval day to second(3)", [SECOND / 1000], [SECOND / 10_000, 5]),
        ("text", ["a", None], [1, True, NOON, uuid.UUID(int=5), ["a"], b"a", bytearray(b"a"), memoryview(b"a")]),
        ("character(3)", ["abc", "ab "], ["ab", "", "abcd", 123]),
        ("name", ["x" * 63], ["x" * 64, "ä" * 32]),
        ("integer[]", [[1, None], [[2]]], ["{1}", [True], ["1"], (1,), {1}, [(1,)]]),
        ("boolean", [True], [1, "t"]),
        ("uuid", [uuid.UUID(int=5)], ["00000000-0000-0000-0000-000000000005"]),
        ("inet", [ipaddress.ip_address("10.0.0.1")], ["10.0.0.1", 1]),
        ('"char"', [], ["ab", bytearray(b"a")]),
        ('character varying(2) COLLATE pg_catalog."C"', ["ab", "a "], ["ab ", b"a"]),
        ("bytea", [b"a"], ["a", bytearray(b"a")]),
        ("bigint", [1], ["1", True, uuid.UUID(int=5), Decimal(1)]),
        ("", ["a", 1, [1]], []),
    ],
)
def test_a_value_that_a_column_would_change_is_refused(tp: str, kept: list[Any], lost: list[Any]) -> None:
    rows = RowEncoder(columns_of(None, ["a"]), None, (), None, {"a": tp})

    assert all(rows.encode({"a": each})[1] is each for each in kept)
    for each in lost:
        with pytest.raises(ValueError, match="column 'a' "):
            rows.encode({"a": each})


@pytest.mark.parametrize(
    ("tp", "value", "said"),
    [
        ("numeric(10,2)", Decimal("1.005"), "keeps 2 decimals, and would round 1.005: round it first"),
        ("numeric(5)", Decimal("1.5"), "keeps 0 decimals, and would round 1.5: round it first"),
        ("numeric(9,3)[]", [Decimal(1), [None, Decimal("1.0005")], Decimal("2.0001")],
         "keeps 3 decimals, and would round 1.0005: round it first"),
        *(("real", value, f"is a real number, and would store {value} as {stored}: change it to double precision")
          for value, stored in ((0.123456789, "0.12345679"), (109.48862729435938, "109.488625"),
                                (8500000001.0, "8500000300.0"))),
        ("text", b"a", "would store the hex digits of these bytes: decode them, or change the column to bytea"),
        ("character varying(2)", "abc", "holds 2 characters, but this text has 3"),
        ("character(3)", "ab", "would pad this text to 3 characters: change the column to varchar(3)"),
        ("character(3)", "abcd", "holds 3 characters, but this text has 4"),
        ("name", "ä" * 32, "holds 63 bytes, and would cut this text"),
        ("name", b"a", "would store the hex digits of these bytes: decode them, or change the column to bytea"),
        ("date", LOCAL, f"is a date, and would drop the time of {LOCAL}: write its .date()"),
        ("time without time zone", LOCAL, f"is a time, and would drop the date of {LOCAL}: write its .timetz() or "
                                          ".time()"),
        ("time(5) without time zone", LOCAL.time(), f"keeps 5 digits of a second, and would round {LOCAL.time()}: round"
                                                    " it first"),
        ("time(5) with time zone", MICROS.timetz(), f"keeps 5 digits of a second, and would round {MICROS.timetz()}: "
                                                    "round it first"),
        ("timestamp(5) with time zone", MICROS, f"keeps 5 digits of a second, and would round {MICROS}: round it "
                                                "first"),
        ("timestamp(5) without time zone", LOCAL, f"keeps 5 digits of a second, and would round {LOCAL}: round it "
                                                  "first"),
        ("timestamp without time zone", MICROS, f"has no time zone, and would lose that of {MICROS}: write it without "
                                                "one, or change the column"),
        ("time without time zone", NOON.timetz(), f"has no time zone, and would lose that of {NOON.timetz()}: write it "
                                                  "without one, or change the column"),
        ("time with time zone", LOCAL.time(), f"has a time zone, and {LOCAL.time()} has none: write it with its zone, "
                                              "such as datetime.UTC"),
        ("timestamp with time zone", LOCAL, f"has a time zone, and {LOCAL} has none: write it with its zone, such as "
                                            "datetime.UTC"),
        ("interval day to hour", 60 * SECOND, "keeps no part of an interval below its hours, and would round 0:01:00"),
        ("interval day to minute", SECOND, "keeps no part of an interval below its minutes, and would round 0:00:01"),
        ("interval year to month", SECOND, "keeps no part of an interval below its months, and would round 0:00:01"),
        ("interval(2)", SECOND / 1000, "keeps 2 digits of a second, and would round 0:00:00.001000: round it first"),
        ("bigint", "1", "of type bigint returns an int, not a str: convert the value"),
        ("smallint", True, "of type smallint returns an int, not a bool: convert the value"),
        ("boolean", 1, "of type boolean returns a bool, not a int: convert the value"),
        ("uuid", "x", "of type uuid returns a UUID, not a str: convert the value"),
        ("bytea", "x", "of type bytea returns a bytes, not a str: convert the value"),
        ("time with time zone", "x", "of type time with time zone returns a time with a zone, not a str: convert the "
                                     "value"),
        ("integer[]", 1, "of type integer[] returns a list, not a int: convert the value"),
        ("inet", "10.0.0.1", "of type inet would not return a str: convert the value"),
    ],
)  # fmt: skip
def test_what_a_column_would_change_is_said(tp: str, value: Any, said: str) -> None:
    assert ColumnLosses(tp).describe(value) == said
    assert ColumnLosses(tp).describe(None) == ""


@pytest.mark.parametrize(
    ("tp", "kept"),
    [
        ("name", ["x" * 63, "ä" * 31, "x" * 15, "x" * 16]),
        ("character", ["a"]),
        ("character varying(2)", ["ab", "a", ""]),
        ("character(3)", ["abc"]),
        ("interval day to minute", [60 * SECOND, 0 * SECOND]),
        ("interval(6)", [SECOND / 1_000_000]),
        ("timestamp(6) without time zone", [LOCAL]),
        ("timestamp(5) without time zone", [LOCAL.replace(microsecond=10)]),
        ("numeric(10,2)", [Decimal("1.10"), Decimal("Infinity")]),
        ("real", [0.1, 109.488625, 8500000300.0]),
    ],
)
def test_what_a_column_returns_as_it_is_loses_nothing(tp: str, kept: list[Any]) -> None:
    assert [ColumnLosses(tp).describe(value) for value in kept] == [""] * len(kept)


@pytest.mark.parametrize(
    ("tp", "taken", "examined"),
    [
        ("bigint", int, False),
        ("text", str, False),
        ("character varying", str, True),
        ("name", str, True),
        ("numeric", Decimal, True),
        ("real", float, True),
        ("double precision", float, False),
        ("date", datetime.date, False),
        ("timestamp with time zone", datetime.datetime, True),
        ("interval", datetime.timedelta, True),
        ("bytea", bytes, False),
    ],
)
def test_a_class_that_a_column_never_changes_needs_no_look_at_each_value(tp: str, taken: type, examined: bool) -> None:
    column, array = ColumnLosses(tp), ColumnLosses(f"{tp}[]")
    dates = datetime.date, datetime.datetime, datetime.timedelta

    assert column.unchanged == ({type(None)} if examined else {taken, type(None)})
    assert [cls for cls in (int, str, bool, Decimal, float, bytes, *dates) if column.takes(cls)] == [taken]
    assert array.unchanged == frozenset() and not array.takes(taken)


def test_jsonb_that_would_return_a_float_as_an_integer_is_refused() -> None:
    """It stores the number 1e16, and writes it without an exponent."""
    rows = RowEncoder(columns_of(None, ["a", "b"]), None, (), None, {"a": "jsonb", "b": "json"})

    assert rows.encode({"a": [1.5, "1e16", 5e-324], "b": 1e16})[1:] == ('[1.5,"1e16",5e-324]', "1e16")
    with pytest.raises(ValueError, match="column 'a' cannot hold this as JSON: .*would come back"):
        rows.encode({"a": {"b": [1e16]}, "b": None})


@pytest.mark.parametrize(
    ("prepared", "staged", "committed", "standing"),
    [
        (True, True, None, CommitStatus.PREPARED),
        (True, False, None, CommitStatus.LOST),
        (False, True, None, CommitStatus.LOST),
        (None, False, None, CommitStatus.UNKNOWN),
        (None, True, None, CommitStatus.UNKNOWN),
        (None, False, True, CommitStatus.COMMITTED),
        (None, False, False, CommitStatus.LOST),
    ],
)
def test_only_the_ledger_shows_how_a_stage_ended(
    prepared: bool | None, staged: bool, committed: bool | None, standing: CommitStatus
) -> None:
    assert derive_status(prepared, staged, committed) is standing


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("identity", [None, JobIdentity("a" * 12)])
def test_a_committable_is_read_from_its_payload(identity: JobIdentity | None, strategy: Strategy) -> None:
    epoch = EpochId(Epoch(3), Term(2))
    target = TargetTable("public", "t", ("a", "b"), ("a",))
    committable = TableCommittable(
        uuid.uuid4(), Incarnation("job", identity), epoch, target, (uuid.uuid4(), uuid.uuid4()), strategy
    )

    assert TableCommittable.from_payload(committable.to_payload()) == committable


@pytest.mark.parametrize(
    "change", [{"version": 4}, {"strategy": "hope"}, {"id": "x"}, {"after": ["x"]}, {"columns": [1]}, {"table": None}]
)
def test_a_payload_of_another_make_is_refused(change: dict[str, Any]) -> None:
    committable = TableCommittable(
        uuid.uuid4(), Incarnation("job", None), EpochId(Epoch(3), Term(2)), TargetTable("s", "t", ("a",), ())
    )

    with pytest.raises(CorruptCheckpoint):
        TableCommittable.from_payload({**committable.to_payload(), **change})


def scope(conninfo: str) -> str:
    return PostgresSink(conninfo, "t", columns=["a"]).scope(JobContext("job", Term(1), {}))  # type: ignore[var-annotated]


def test_a_scope_is_the_database_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    wanted = "postgres:a:5432,b:6/shop/kafka_eos"

    assert scope("host=b,a port=6,5432 dbname=shop user=x password=secret connect_timeout=3") == wanted
    assert scope("postgresql://y@a:5432,b:6/shop?sslmode=require") == wanted
    monkeypatch.setenv("PGHOST", "h")
    assert scope("dbname=shop") == "postgres:h:5432/shop/kafka_eos"


def test_explain_names_the_table_the_way_of_the_commit_and_no_password() -> None:
    from kafka_eos import Pipeline

    sink = PostgresSink("host=db dbname=shop password=hunter2", "s.totals", value=Plain, key="text", delete=bool)
    pipeline = Pipeline("job")
    pipeline.source(ListSource([Plain(True, "a")]), name="in").sink(sink, name="out")

    said = explain(pipeline.plan())

    assert "table=s.totals" in said and "mode=upsert and delete" in said and "one transaction" in said
    assert "hunter2" not in said + repr(sink)


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("a.b.c", {}, "is not a table name"),
        ("", {}, "is not a table name"),
        ("t", {"key": "x"}, "x is not a column"),
        ("t", {"key": ("a", "a")}, "key: a column is named twice in a, a"),
        ("t", {"delete": bool}, "needs key="),
    ],
)
def test_a_sink_that_cannot_be_is_refused(table: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PostgresSink("dbname=x", table, columns=["a"], **options)


@pytest.mark.parametrize(
    "given",
    [
        "password=hunter2 nonsense",
        "password=my hunter2",
        "password=my hunter2=2",
        "password='hunter2",
        "postgresql://app:50%hunter2@db/shop",
        "postgresql://app:hunter2@[db/shop",
        "postgresql://app:p@ss:hunter2@db/shop",
        "postgresql://app:5/hunter2@db/shop",
    ],
)
def test_a_connection_string_that_cannot_be_read_is_refused_without_showing_it(given: str) -> None:
    """libpq shows what it could not read, which may be a part of the password."""
    with pytest.raises(ConfigError, match="connection string") as caught:
        PostgresSink(given, "t", columns=["a"])
    assert "hunter2" not in str(caught.value)


def test_the_audit_knows_the_table_before_it_asks_the_server() -> None:
    from kafka_eos import Pipeline
    from kafka_eos.audit.facts.audit_subject import DatabaseTable, subject

    pipeline = Pipeline("job")
    sink = PostgresSink("dbname=x host=db", "s.t", value=Plain)
    pipeline.source(ListSource([Plain(True, "a")]), name="in").sink(sink, name="rows")

    found = subject(pipeline.plan(), JobContext("job", Term(1), {}), {})
    assert found.sinks == (DatabaseTable("rows", "s.t in db:5432/x", keyed=False),)
    assert found.unmarked == ("rows",) and not found.not_audited


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(ConfigError, match=r"PostgresSink needs psycopg: pip install 'kafka-eos\[postgres\]'"):
        ensure_extra("postgres", "PostgresSink")
