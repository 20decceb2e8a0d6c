"""What comes in goes out equal, or is rejected: values of any type through each carrier.

A carrier writes values and reads them again, by the type that both sides declare. Rule: a value comes back equal in
value and type, or its row is rejected when it is written. To add a carrier, add it to ``CARRIERS``.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import msgspec
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.committer import CommitOutcome, CommitPermit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import SupportsRegistration
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Sink
from kafka_eos.codecs import AvroCodec, JsonCodec, protobuf, state_codec
from kafka_eos.codecs.json_schema.registry_language import json_schema
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.provenance import parse_provenance, prefix
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.protobuf_witness import classes, proto3
from tests.receiver import receiving

JOB = JobContext("job", Term(1), {}, JobIdentity("a" * 12))
FIRST = EpochId(Epoch(1), Term(1))


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


Message: Final = classes(
    proto3(
        "message Thing { string text = 1; int64 number = 2; double share = 3; bytes raw = 4; optional bool on = 5;"
        " repeated sint32 many = 6; map<string, float> by_name = 7; Thing within = 8; }"
    )
)["Thing"]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.decimals(),
    lambda inner: (
        st.lists(inner)
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
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
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
    Any: anything,
    Scalars: scalars,
    Nested: nested,
    Cells: cells,
    Lists: of_lists,
    Holder: st.builds(Holder, anything),
    Message: messages,
    str: st.text(min_size=1),
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

Carrier = Callable[[Any, Sequence[Any]], tuple[list[Any], set[int]]]
"""Carries values of a type: returns those that came back, in order, and the indices of those that were rejected."""


def by_codec(codec_of: Callable[[Any], Codec[Any]]) -> Carrier:
    """As in a topic or in state: each value alone."""

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        codec, back, rejected = codec_of(tp), list[Any](), set[int]()
        for index, value in enumerate(values):
            try:
                data = codec.encode(value)
            except ValueError:
                rejected.add(index)
            else:
                back.append(codec.decode(data))
        return back, rejected

    return carry


class ValidatedJson(Codec[Any]):
    """JSON as a schema registry has it, without the registry."""

    name, schema = "json", None

    def __init__(self, tp: Any) -> None:
        self._encode = json_schema(tp, registry=cast("Any", None)).language.encoder(b"")
        self._decode = JsonCodec[Any](tp).decode

    def encode(self, value: Any) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> Any:
        return self._decode(data)


class ProvenanceNames(Codec[str]):
    """Names of files and tables in provenance."""

    name, schema = "provenance", None

    def __init__(self, tp: Any) -> None: ...

    def encode(self, value: str) -> bytes:
        return f"{prefix(Term(1), Epoch(1), 'in', value, 0)}17/0.0".encode("ascii")

    def decode(self, data: bytes) -> str:
        return parse_provenance(data.decode()).topic


def written(sink: Sink[Any], values: Sequence[Any]) -> set[int]:
    """Write the values in one epoch and commit it. Returns the indices of those that were rejected."""
    rejected = set[int]()

    def reject(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        rejected.add(batch.origin.offsets[batch.origin_rows[index]])

    sink.check(JOB)
    with closing(sink.committer(JOB)) as committer:
        if isinstance(committer, SupportsRegistration):
            committer.register(JOB)
        writer = sink.writer(TaskContext(JOB, 0, 1, "out", Services(reject_row=reject), Epoch(1)))
        writer.write(Batch([*values], range(len(values)), ListOrigin("in", "values", 0, 0, values)))
        if committables := writer.seal(FIRST)():
            assert {*committer.commit_all(CommitPermit(FIRST), committables)} == {CommitOutcome.COMMITTED}
        writer.discard()
    return rejected


def by_file(form: str) -> Carrier:
    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with TemporaryDirectory() as directory:
            rejected = written(FileSink(Path(directory), value=tp, format=form), values)
            source = FileSource[Any](Path(directory), value=None if tp is Any else tp, format=form)
            reader = source.reader(TaskContext(JOB, 0, 1, "in", Services()), source.discover(JOB, None))
            back = list[Any]()
            while (batch := reader.poll(100, 0)) is not None:
                back += batch.values
            reader.close()
        return back, rejected

    return carry


def by_sqlite(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
    with TemporaryDirectory() as directory:
        path = f"{directory}/rows.db"
        columns = {"text": "TEXT", "number": "INTEGER", "share": "REAL", "raw": "BLOB"}
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE rows ({', '.join(map(' '.join, columns.items()))})")
            rejected = written(DbApiSink[Any](f"sqlite:///{path}", "rows", columns), values)
            back = connection.execute("SELECT text, number, share, raw FROM rows ORDER BY rowid").fetchall()
    return [tp(*row) for row in back], rejected


def by_request(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
    with receiving() as receiver, TemporaryDirectory() as directory:
        rejected = written(HttpSink(receiver.url, outbox=directory, value=tp, batch=3), values)
        return [JsonCodec[Any](tp).decode(json.dumps(each).encode()) for each in receiver.values()], rejected


def by_lake(sink_of: Callable[[Path], Any], rows_of: Callable[[Path], pa.Table]) -> Carrier:
    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with TemporaryDirectory() as directory:
            rejected = written(sink_of(Path(directory)).for_stream_type(tp), values)
            return [msgspec.convert(row, tp) for row in rows_of(Path(directory)).to_pylist()], rejected

    return carry


def catalog(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/iceberg"}


def iceberg(directory: Path) -> IcebergSink[Any]:
    load_catalog(**catalog(directory)).create_namespace("shop")
    return IcebergSink("shop.rows", properties=catalog(directory), create=True)


CARRIERS: Final = {
    "JSON": (by_codec(JsonCodec), (Any, Scalars, Nested)),
    "JSON Schema": (by_codec(ValidatedJson), (Scalars,)),
    "Avro": (by_codec(AvroCodec), (Cells,)),
    "Protobuf": (by_codec(protobuf), (Message,)),
    "state": (by_codec(state_codec), (Any, Scalars, Cells, Holder, Message)),
    "provenance": (by_codec(ProvenanceNames), (str,)),
    "JSON lines": (by_file("jsonl"), (Any, Scalars, Nested)),
    "CSV": (by_file("csv"), (Scalars, Lists)),
    "Avro files": (by_file("avro"), (Cells,)),
    "Parquet": (by_file("parquet"), (Cells,)),
    "HTTP": (by_request, (Any, Nested)),
    "SQLite": (by_sqlite, (Cells,)),
    "Delta": (
        by_lake(
            lambda home: DeltaSink(home / "rows", create=True),
            lambda home: pa.table(DeltaTable(home / "rows").to_pyarrow_table()),
        ),
        (Cells,),
    ),
    "Iceberg": (
        by_lake(iceberg, lambda home: load_catalog(**catalog(home)).load_table("shop.rows").scan().to_arrow()),
        (Cells,),
    ),
}
"""Each with the types that it can hold. A type that a carrier refuses with the plan is not among them."""


def is_same(a: Any, b: Any) -> bool:
    """Is a value another one in value and type? An int is the same as an equal float where a float is declared."""
    match a, b:
        case msgspec.Struct(), msgspec.Struct():
            return type(a) is type(b) and all(is_same(getattr(a, n), getattr(b, n)) for n in a.__struct_fields__)
        case Message(), Message():
            return a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)  # type: ignore[no-any-return]
        case (list(), list()) | (tuple(), tuple()):
            return len(a) == len(b) and all(map(is_same, a, b))
        case dict(), dict():
            return len(a) == len(b) and all(is_same([*p], [*q]) for p, q in zip(a.items(), b.items(), strict=True))
        case float(), float() if math.isnan(a):
            return math.isnan(b)
        case decimal.Decimal(), decimal.Decimal():
            return a.as_tuple() == b.as_tuple()
    return type(a) is type(b) and bool(a == b)


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


TABLE: Final = (
    "CREATE TABLE purchases (id bigint PRIMARY KEY, price numeric(10,2), weight real, day date,"
    " at timestamptz(3), took interval(3), text varchar(5), raw bytea, doc jsonb)"
)
IN_MILLIS: Final = st.integers(-3_000_000, 3_000_000).map(lambda n: datetime.timedelta(microseconds=n * 500))
purchases = st.builds(
    Purchase,
    st.just(0),
    st.decimals(-1000, 1000, places=3) | st.decimals(),
    st.floats(width=32) | st.floats(),
    st.dates() | st.datetimes(),
    st.datetimes(timezones=st.just(datetime.UTC)).map(lambda at: at.replace(microsecond=at.microsecond // 500 * 500)),
    IN_MILLIS,
    st.text(max_size=6),
    st.binary(),
    st.dictionaries(st.text(max_size=2), st.floats()),
)


def test_a_row_of_postgres_comes_back_equal_or_is_rejected(database: Callable[[], str]) -> None:
    """Into columns that are narrower than their fields."""
    conninfo = database()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(TABLE)

    @given(st.lists(purchases, min_size=4, max_size=12))
    @examples(5)
    def carried(drawn: list[Purchase]) -> None:
        values = [msgspec.structs.replace(each, id=number) for number, each in enumerate(drawn)]
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("TRUNCATE purchases")
            rejected = written(PostgresSink[Any](conninfo, "purchases", value=Purchase, key="id"), values)
            rows = connection.execute("SELECT * FROM purchases ORDER BY id").fetchall()

        kept = [msgspec.structs.astuple(value) for value in values if value.id not in rejected]
        assert len(kept) == len(rows)
        for row, value in zip(rows, kept, strict=True):
            assert all(map(is_equal, row, value)), (row, value)

    carried()


def is_equal(a: Any, b: Any) -> bool:
    """Is a cell another one? The number of decimals is the column's."""
    return type(a) is type(b) and (a == b or (a != a and b != b))
