"""What comes in goes out equal, or is rejected: values of any type through each carrier.

Rule: a value comes back equal in value and type, or its row is rejected when it is written. To add a carrier, write it
in ``carriers.py``, and add it to ``CARRIERS``. Carriers that need a server have a test of their own.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_eos.codecs import AvroCodec, JsonCodec, protobuf, state_codec
from kafka_eos.connectors.files import Avro, Parquet
from kafka_eos.connectors.postgres.columns import columns_of
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import Provenance
from kafka_eos.core.records import Record
from tests.contract.carriers import (
    ExchangeCodec,
    ProvenanceText,
    ValidatedJson,
    by_codec,
    by_dead_letters,
    by_delta,
    by_file,
    by_iceberg,
    by_ledger,
    by_postgres,
    by_request,
    by_schema,
    by_sqlite,
    by_table,
    is_same,
)
from tests.examples import examples
from tests.protobuf_witness import classes, proto3

INDIA: Final = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


class Scalars(msgspec.Struct):
    """What a cell of CSV can be read as."""

    text: str | None
    number: int
    share: float
    on: bool
    exact: decimal.Decimal
    day: datetime.date
    at: datetime.datetime
    whose: uuid.UUID


class Cells(msgspec.Struct):
    """What a cell of SQLite can be."""

    text: str | None
    number: int | None
    share: float | None
    raw: bytes | None


class Nested(msgspec.Struct):
    raw: bytes
    shares: list[float | None]
    pairs: list[tuple[int, str]]
    by_number: dict[int, str]
    by_either: dict[str | int, float]
    more: Any


class Lists(msgspec.Struct):
    """What a cell of CSV can be read as, with JSON in some."""

    shares: list[float | None]
    pairs: list[tuple[int, str]] | None
    by_name: dict[str, list[bytes]]
    within: Cells | None
    either: int | str | None
    more: Any


class Holder(msgspec.Struct):
    """A declared class with a field of type Any."""

    more: Any


class Kind(enum.StrEnum):
    PAID = "paid"


Message: Final = classes(
    proto3(
        "message Thing { string text = 1; int64 number = 2; double share = 3; bytes raw = 4; optional bool on = 5;"
        " repeated sint32 many = 6; map<string, float> by_name = 7; Thing within = 8; }"
    )
)["Thing"]

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.decimals()
    | st.sampled_from(Kind)
    | st.sets(st.integers()),
    lambda inner: (
        st.lists(inner)
        | st.builds(Holder, inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.floats() | st.booleans() | st.none(), inner)
    ),
    max_leaves=8,
)
scalars = st.builds(
    Scalars,
    st.none() | st.text(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.sampled_from([datetime.UTC, INDIA])),
    st.uuids(),
)
nested = st.builds(
    Nested,
    st.binary(),
    st.lists(st.none() | st.floats()),
    st.lists(st.tuples(st.integers(), st.text())),
    st.dictionaries(st.integers(), st.text()),
    st.dictionaries(st.text("123") | st.integers(1, 3), st.floats()),
    anything,
)
cells = st.builds(
    Cells, st.none() | st.text(), st.none() | st.integers(), st.none() | st.floats(), st.none() | st.binary()
)
of_lists = st.builds(
    Lists,
    st.lists(st.none() | st.floats()),
    st.none() | st.lists(st.tuples(st.integers(), st.text())),
    st.dictionaries(st.text(), st.lists(st.binary())),
    st.none() | cells,
    st.none() | st.integers() | st.text() | st.integers().map(str),
    anything,
)
messages: st.SearchStrategy[Any] = st.deferred(
    lambda: st.builds(
        Message,
        text=st.text(),
        number=st.integers(-(2**63), 2**63 - 1),
        share=st.floats(),
        raw=st.binary(),
        on=st.none() | st.booleans(),
        many=st.lists(st.integers(-(2**31), 2**31 - 1)),
        by_name=st.dictionaries(st.text(), st.floats(width=32)),
        within=st.none() | messages,
    )
)
VALUES: Final = {
    # JSON takes a record as a value of its class, though no type is declared.
    Any: anything.filter(lambda value: not isinstance(value, Holder)),
    Scalars: scalars,
    Nested: nested,
    Cells: cells,
    Lists: of_lists,
    Holder: st.builds(Holder, anything),
    Message: messages,
    Provenance: st.builds(
        Provenance,
        st.just("job"),
        st.just(Term(1)),
        st.just(Epoch(1)),
        st.sampled_from(["in", "a-b_c"]),
        st.text(min_size=1),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 9),
        st.lists(st.integers(0, 9), min_size=1, max_size=4).map(lambda parts: "-".join(map(str, parts))),
        st.none() | st.integers(1, 2**63 - 1),
    ),
}

HARD: Final = {
    Scalars: Scalars(
        "", 2**53 + 1, 0.1, True, decimal.Decimal("sNaN"), datetime.date.min, datetime.datetime.min, uuid.UUID(int=0)
    ),
    Cells: Cells("", 2**53 + 1, math.nan, b""),
    Lists: Lists([0.5, None], [(1, 'a "b", c\n')], {"": [b"x"]}, Cells("", 1, 0.5, b""), "5", None),
    Holder: Holder({"a": [(1, 2)]}),
}
"""Values that are tried in each run."""

CARRIERS: Final = {
    "JSON": (by_codec(JsonCodec), (Any, Scalars, Nested)),
    "JSON Schema": (by_codec(ValidatedJson), (Scalars,)),
    "Avro": (by_codec(AvroCodec), (Cells,)),
    "Protobuf": (by_codec(protobuf), (Message,)),
    "state": (by_codec(state_codec), (Any, Scalars, Cells, Holder, Message)),
    "exchange": (by_codec(ExchangeCodec), (Any, Scalars, Nested, Holder, Message)),
    "provenance": (by_codec(ProvenanceText), (Provenance,)),
    "ledger": (by_ledger, (Provenance,)),
    "JSON lines": (by_file("jsonl"), (Any, Scalars, Nested)),
    "CSV": (by_file("csv"), (Scalars, Lists)),
    "Avro files": (by_file("avro"), (Cells,)),
    "Parquet": (by_file("parquet"), (Cells,)),
    "HTTP": (by_request, (Any, Nested)),
    "SQLite": (by_sqlite({"text": "TEXT", "number": "INTEGER", "share": "REAL", "raw": "BLOB"}), (Cells,)),
    "Delta": (by_delta, (Cells,)),
    "Iceberg": (by_iceberg, (Cells,)),
}
"""Each with the types that it can hold. A type that a carrier refuses with the plan is not among them."""


@pytest.mark.parametrize(
    ("carrier", "tp"), [(name, tp) for name, (_, types) in CARRIERS.items() for tp in types], ids=str
)
def test_a_value_comes_back_equal_or_is_rejected(carrier: str, tp: Any) -> None:
    carry, _ = CARRIERS[carrier]

    @given(st.lists(VALUES[tp], min_size=1, max_size=4))
    @example([HARD[tp]] if tp in HARD else [])
    @examples(3 if carrier in ("Delta", "Iceberg") else 15)
    def carried(values: list[Any]) -> None:
        back, rejected = carry(tp, values)

        kept = [value for index, value in enumerate(values) if index not in rejected]
        assert len(back) == len(kept), (kept, back)
        for value, found in zip(kept, back, strict=True):
            assert is_same(found, value), (value, found)

    carried()


class Part(msgspec.Struct):
    amount: int


class PartModel(pydantic.BaseModel):
    amount: int


class Mixed(msgspec.Struct, kw_only=True):
    """A row of fields that each hold a value of any class."""

    id: int
    text: str | None = None
    number: int | None = None
    share: float | None = None
    paid: bool | None = None
    raw: bytes | None = None
    day: datetime.date | None = None
    at: datetime.datetime | None = None
    whose: uuid.UUID | None = None
    kind: Kind | None = None
    many: list[int] | None = None
    kinds: list[Kind] | None = None
    by_name: dict[str, int] | None = None
    within: Part | None = None


class MixedLine(msgspec.Struct, kw_only=True):
    """What has a cell in CSV."""

    id: int
    text: str | None = None
    number: int | None = None
    share: float | None = None
    paid: bool | None = None
    at: datetime.datetime | None = None
    whose: uuid.UUID | None = None
    kind: Kind | None = None
    many: list[int] | None = None
    by_name: dict[str, int] | None = None
    within: Part | None = None


class MixedModel(pydantic.BaseModel):
    id: int
    text: str | None = None
    number: int | None = None
    paid: bool | None = None
    at: datetime.datetime | None = None
    whose: uuid.UUID | None = None
    many: list[int] | None = None
    by_name: dict[str, int] | None = None
    within: PartModel | None = None


class Tone(enum.Enum):
    """Its members equal none of their values."""

    LOW = "a"
    HIGH = 1


JUNE: Final = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
OF_ALL_CLASSES: Final = (
    "a", "1", "paid", "2026-06-01", str(uuid.UUID(int=5)), 1, True, 1.0, 1.5, decimal.Decimal(1), b"a", bytearray(b"a"),
    JUNE, JUNE.replace(tzinfo=None), JUNE.date(), JUNE.time(), datetime.timedelta(1), uuid.UUID(int=5), Kind.PAID,
    Tone.LOW, Tone.HIGH, [1], (1,), {1}, frozenset({1}), [True], [1.0], ["1"], [[1]], ["paid"], [Kind.PAID],
    {"a": 1}, {1: 1}, {"a": "1"}, [("a", 1)], {"amount": 1}, Part(1), PartModel(amount=1),
)  # fmt: skip
IN_COLUMNS: Final = Parquet(
    schema=pa.schema([
        ("id", pa.int64()), ("text", pa.string()), ("number", pa.int64()), ("share", pa.float64()),
        ("paid", pa.bool_()), ("raw", pa.binary()), ("price", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC")),
        ("many", pa.list_(pa.int64())), ("by_name", pa.map_(pa.string(), pa.int64())),
        ("within", pa.struct([("amount", pa.int64())])),
    ])
)  # fmt: skip
IN_AVRO: Final = Avro(
    schema={
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "id", "type": "long"},
            *(
                {"name": name, "type": ["null", tp], "default": None}
                for name, tp in {
                    "text": "string", "number": "long", "share": "double", "paid": "boolean", "raw": "bytes",
                    "many": {"type": "array", "items": "long"}, "by_name": {"type": "map", "values": "long"},
                    "within": {"type": "record", "name": "Part", "fields": [{"name": "amount", "type": "long"}]},
                }.items()
            ),
        ],
    }
)  # fmt: skip
MIXED: Final[Mapping[str, tuple[Any, Sequence[Any]]]] = {
    "JSON": (by_codec(JsonCodec), (Mixed, MixedModel)),
    "JSON Schema": (by_codec(ValidatedJson), (Mixed, MixedModel)),
    "Avro": (by_codec(AvroCodec), (Mixed, MixedModel)),
    "state": (by_codec(state_codec), (Mixed, MixedModel)),
    "exchange": (by_codec(ExchangeCodec), (Mixed, MixedModel)),
    "JSON lines": (by_file("jsonl"), (Mixed,)),
    "CSV": (by_file("csv"), (MixedLine,)),
    "Avro files": (by_file("avro"), (Mixed, MixedModel)),
    "Parquet": (by_file("parquet"), (Mixed, MixedModel)),
    "HTTP": (by_request, (Mixed,)),
    "Delta": (by_delta, (Mixed,)),
    "Iceberg": (by_iceberg, (Mixed,)),
    "dicts in Parquet": (by_schema(IN_COLUMNS), (IN_COLUMNS,)),
    "dicts in Avro": (by_schema(IN_AVRO), (IN_AVRO,)),
    "PostgreSQL": (None, (Mixed,)),
}
"""Carriers, with the types of their rows, or the format that declares the columns of dicts."""


@pytest.mark.parametrize(
    ("carrier", "tp"), [(name, tp) for name, (_, types) in MIXED.items() for tp in types],
    ids=lambda given: given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__),
)  # fmt: skip
def test_a_value_of_another_class_than_its_field_is_rejected_unless_it_equals_one(
    carrier: str, tp: Any, request: pytest.FixtureRequest
) -> None:
    carry, _ = MIXED[carrier]
    if carrier == "PostgreSQL":
        columns = {column.name: column.type for column in columns_of(Mixed, None)}
        carry = by_postgres(request.getfixturevalue("database")(), columns)
    names, make = _fields_and_maker(tp)
    cells = [(name, value) for name in names for value in OF_ALL_CLASSES]

    back, rejected = carry(tp, [make(id=number, **{name: value}) for number, (name, value) in enumerate(cells)])

    kept = [cell for number, cell in enumerate(cells) if number not in rejected]
    assert {name for name, _ in kept} == {*names}
    for row, (name, value) in zip(back, kept, strict=True):
        found = row[name] if isinstance(row, dict) else getattr(row, name)
        assert found == value, (name, value, found)


def _fields_and_maker(tp: Any) -> tuple[list[str], Callable[..., Any]]:
    if isinstance(tp, Parquet):
        return [name for name in tp.schema.names if name != "id"], dict
    if isinstance(tp, Avro):
        assert tp.schema is not None
        return [field["name"] for field in tp.schema["fields"][1:]], dict
    if issubclass(tp, msgspec.Struct):
        return [*tp.__struct_fields__[1:]], tp
    names = [*tp.model_fields][1:]
    return names, partial(tp.model_construct, **dict.fromkeys(names))


class Purchase(msgspec.Struct):
    id: int
    price: decimal.Decimal
    weight: float
    day: datetime.date
    at: datetime.datetime
    took: datetime.timedelta
    text: str
    raw: bytes
    doc: dict[str, float]


COLUMNS: Final = {
    "id": "bigint", "price": "numeric(10,2)", "weight": "real", "day": "date", "at": "timestamptz(3)",
    "took": "interval(3)", "text": "varchar(5)", "raw": "bytea", "doc": "jsonb",
}  # fmt: skip
IN_MILLIS: Final = st.integers(-3_000_000, 3_000_000).map(lambda n: datetime.timedelta(microseconds=n * 500))
purchases = st.builds(
    Purchase,
    st.just(0),
    st.decimals(-1000, 1000, places=3) | st.decimals() | st.integers(-9, 9) | st.floats(),
    st.floats(width=32) | st.floats() | st.integers(-9, 9),
    st.dates() | st.datetimes(),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)).map(
        lambda at: at.replace(microsecond=at.microsecond // 500 * 500)
    ),
    IN_MILLIS,
    st.text(max_size=6),
    st.binary(),
    st.dictionaries(st.text(max_size=2), st.floats()),
)


def test_a_row_of_postgres_comes_back_equal_or_is_rejected(database: Callable[[], str]) -> None:
    """Into columns that are narrower than their fields."""
    carry = by_postgres(database(), COLUMNS)

    @given(st.lists(purchases, min_size=4, max_size=12))
    @examples(5)
    def carried(drawn: list[Purchase]) -> None:
        values = [msgspec.structs.replace(each, id=number) for number, each in enumerate(drawn)]
        back, rejected = carry(Purchase, values)

        kept = [msgspec.structs.astuple(value) for value in values if value.id not in rejected]
        assert len(back) == len(kept)
        for row, value in zip(map(msgspec.structs.astuple, back), kept, strict=True):
            assert all(map(is_equal, row, value)), (row, value)

    carried()


def is_equal(a: Any, b: Any) -> bool:
    """Is a cell another one? The number of decimals is the column's."""
    return type(a) is type(b) and (a == b or (a != a and b != b))


records = st.builds(
    Record[bytes, bytes],
    st.none() | st.binary(),
    st.none() | st.binary(),
    st.lists(
        st.tuples(st.text() | st.sampled_from(["dead_letter.topic", "dead_letter.offset"]), st.none() | st.binary()),
        max_size=3,
    ).map(tuple),
    st.integers(1, 1_700_000_000_000),  # brokers refuse timestamps of the future
)


def test_a_dead_letter_that_is_replayed_is_the_rejected_record(bootstrap: str, topic: Callable[[], str]) -> None:
    carry = by_dead_letters(bootstrap, topic)

    @given(st.lists(records, min_size=3, max_size=12))
    @examples(2)
    def carried(values: list[Any]) -> None:
        back, rejected = carry(Record, values)

        assert (back, rejected) == (values, set())

    carried()


class Narrow(msgspec.Struct):
    """A row of columns that are narrower than their cells, which may also be of another type."""

    paid: Any = None
    small: Any = None
    share: Any = None
    price: Any = None
    day: Any = None
    at: Any = None
    code: Any = None
    name: Any = None
    raw: Any = None


NARROW: Final = {
    "paid": "BOOLEAN", "small": "SMALLINT", "share": "FLOAT", "price": "DECIMAL(10,2)", "day": "DATE", "at": "DATETIME",
    "code": "CHAR(3)", "name": "VARCHAR(5)", "raw": "BLOB",
}  # fmt: skip
of_any_column = (
    st.none() | st.booleans() | st.integers(-3, 70_000) | st.integers() | st.floats() | st.floats(width=32)
    | st.decimals(-1000, 1000, places=3) | st.dates() | st.datetimes() | st.text("ab ü", max_size=7) | st.text()
    | st.binary() | st.times() | st.timedeltas() | st.uuids() | st.lists(st.integers(), max_size=2)
)  # fmt: skip
in_its_column = st.fixed_dictionaries(
    {},
    optional={
        "paid": st.booleans(),
        "small": st.integers(-40_000, 40_000),
        "share": st.floats(width=32),
        "price": st.decimals(-1000, 1000, places=3),
        "day": st.dates(),
        "at": st.datetimes().map(lambda at: at.replace(microsecond=at.microsecond // 500_000 * 500_000)),
        "code": st.text("ab ", max_size=4),
        "name": st.text("ab ü", max_size=7),
        "raw": st.binary(),
    },
)
in_any_column = st.tuples(st.sampled_from([*NARROW]), of_any_column).map(lambda cell: dict([cell]))
narrow = (in_its_column | in_any_column).map(lambda fields: Narrow(**fields))


def expect_equal_or_rejected_in_narrow_columns(server: str) -> None:
    carry = by_table(server, NARROW)

    @given(st.lists(narrow, min_size=4, max_size=12))
    @example(
        [Narrow(paid=True), Narrow(paid=1), Narrow(small=True), Narrow(share=1), Narrow(code="a "), Narrow(name=b"a")]
    )
    @examples(15)
    def carried(values: list[Any]) -> None:
        back, rejected = carry(Narrow, values)

        kept = [value for index, value in enumerate(values) if index not in rejected]
        assert len(back) == len(kept)
        for found, value in zip(map(msgspec.structs.astuple, back), map(msgspec.structs.astuple, kept), strict=True):
            assert all(map(is_equal, found, value)), (found, value)

    carried()


def test_a_row_of_narrow_columns_comes_back_equal_or_is_rejected(tmp_path: Path) -> None:
    expect_equal_or_rejected_in_narrow_columns(f"sqlite:///{tmp_path}/rows.db")


@pytest.mark.campaign
def test_a_row_of_narrow_columns_of_mariadb_comes_back_equal_or_is_rejected() -> None:
    expect_equal_or_rejected_in_narrow_columns(mariadb())


def mariadb() -> str:
    """Return the server that ``MARIADB_URL`` names, with a database that tests may write to."""
    if (server := os.environ.get("MARIADB_URL")) is None:
        pytest.skip("MARIADB_URL does not name a server, such as mariadb+pymysql://root@localhost/test")
    return server


@pytest.mark.campaign
def test_a_row_of_mariadb_comes_back_equal_or_is_rejected() -> None:
    carry = by_table(mariadb(), {"text": "TEXT", "number": "BIGINT", "share": "DOUBLE", "raw": "LONGBLOB"})

    @given(st.lists(cells, min_size=4, max_size=12))
    @example([HARD[Cells]])
    @examples(15)
    def carried(values: list[Any]) -> None:
        back, rejected = carry(Cells, values)

        kept = [value for index, value in enumerate(values) if index not in rejected]
        assert len(back) == len(kept)
        for found, value in zip(back, kept, strict=True):
            assert is_same(found, value), (value, found)

    carried()
