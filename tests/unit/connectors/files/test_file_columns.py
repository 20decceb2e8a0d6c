"""Formats with columns give back what was written, or refuse it: no value is changed to make it fit."""

from __future__ import annotations

import datetime
import enum
import io
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel, ConfigDict, computed_field

from kafka_eos.abc.committer import CommitPermit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.files import Avro, Csv, FileSink, JsonLines, Parquet
from kafka_eos.connectors.files.formats import Format
from kafka_eos.connectors.files.formats.arrow_layout import _EACH_TABLE, ArrowLayout
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

FIRST = EpochId(Epoch(1), Term(1))
NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=datetime.UTC)
NAIVE = NOON.replace(tzinfo=None)


class Kind(enum.Enum):
    PEN = "pen"


class Row(msgspec.Struct):
    x: Any


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Base(BaseModel):
    x: int


class Below(Base):
    more: int


def written(sink: FileSink, *values: Any) -> tuple[list[Path], list[str]]:
    """The committed files, and why rows were refused."""
    refused: list[str] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append(str(error))

    job = JobContext("orders", Term(1), {})
    writer = sink.writer(TaskContext(job, 0, 1, "out", Services(reject_row=reject)))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("in", "events", 0, 0, list(values))))
    committables = writer.seal(FIRST)()
    for each in committables:
        sink.committer(job).commit(CommitPermit(FIRST), each)
    return sorted(sink.directory.rglob("part-*")), refused


EARLY = datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
"""In UTC it is before the year 1."""


def of(tp: Any) -> type[Any]:
    """A record with one field."""
    return msgspec.defstruct("One", [("x", tp)])


def expect_refused(sink: FileSink, value: Any, why: str) -> None:
    parts, refused = written(sink, value)
    assert parts == []
    assert len(refused) == 1 and why in refused[0]


# ---------------------------------------------------------------- Parquet


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (int, 1.5), (int, True), (int, "1"), (int, NOON), (float, "1.5"), (float, 2**53 + 1), (bool, 1), (bool, "no"),
        (datetime.datetime, EARLY),
        (str, 5), (str, b"x"), (bytes, "x"), (datetime.date, NOON), (datetime.datetime, NOON.date()),
        (datetime.datetime, 5), (datetime.datetime, NAIVE), (datetime.time, NOON.timetz()), (datetime.time, 5),
        (datetime.timedelta, 5), (list[int], [1, 2.5]), (list[int], "12"), (dict[str, int], {"a": 1.5}),
        (dict[str, int], {1: 1}), (uuid.UUID, 5), (Base, {"x": 1, "more": 2}), (Base, {"x": 1.5}),
        (Base, Below(x=1, more=2)), (Base, 5),
        # a null where none may be
        (list[int], [1, None]), (dict[str, int], {"a": None}), (Base, {"x": None}), (Base, {}), (list[Base], [None]),
        (Open, Open(x=1, more=2)),  # type: ignore[call-arg]
    ],
    ids=repr,
)  # fmt: skip
def test_what_parquet_would_change_is_refused_with_its_column(tp: Any, value: Any, tmp_path: Path) -> None:
    record = of(tp)
    expect_refused(FileSink(tmp_path, value=record, format="parquet"), record(value), "column 'x'")


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (pa.timestamp("s"), NAIVE), (pa.timestamp("ms"), NAIVE), (pa.timestamp("us"), NOON), (pa.timestamp("us"), 5),
        (pa.timestamp("us", "UTC"), NAIVE), (pa.time32("s"), NOON.time()), (pa.time32("ms"), NOON.time()),
        (pa.date32(), NOON), (pa.date64(), NOON), (pa.duration("ms"), datetime.timedelta(microseconds=1)),
        (pa.float32(), 1e300), (pa.float16(), 1e5), (pa.list_(pa.float32()), [1e300]), (pa.int8(), 300),
        (pa.decimal128(5, 2), Decimal("1.234")), (pa.decimal128(5, 2), 1.5), (pa.binary(3), b"ab"),
        (pa.list_(pa.int8(), 2), [1]), (pa.map_(pa.string(), pa.int8()), {None: 1}),
        (pa.dictionary(pa.int32(), pa.string()), 5), (pa.struct({"a": pa.int64()}), {"b": 1}),
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_schema_would_change_is_refused(tp: pa.DataType, value: Any, tmp_path: Path) -> None:
    expect_refused(FileSink(tmp_path, format=Parquet(pa.schema({"x": tp}))), {"x": value}, "column 'x'")


GIVEN_BACK: Mapping[Any, list[Any]] = {
    pa.bool_(): [True, None],
    pa.int8(): [-128, None],
    pa.uint64(): [2**64 - 1],
    pa.float64(): [0.1, 3, -math.inf, None],
    pa.float32(): [0.5, 1, math.inf],
    pa.string(): ["✓", None],
    pa.large_string(): ["x"],
    pa.binary(): [b"\xff"],
    pa.binary(2): [b"ab"],
    pa.timestamp("s"): [NAIVE.replace(microsecond=0)],
    pa.timestamp("ms", "UTC"): [NOON.replace(microsecond=123000)],
    pa.timestamp("us", "UTC"): [NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=5)))],
    pa.time32("s"): [datetime.time(1, 2, 3)],
    pa.time64("us"): [NOON.time()],
    pa.date32(): [NOON.date()],
    pa.date64(): [NOON.date()],
    pa.duration("us"): [datetime.timedelta(days=-1, microseconds=1)],
    pa.decimal128(5, 2): [Decimal("1.25")],
    pa.list_(pa.int64()): [[1, None], [], None],
    pa.struct([pa.field("a", pa.list_(pa.int64())), pa.field("b", pa.string())]): [{"a": [1], "b": None}],
    pa.map_(pa.string(), pa.int64()): [{"a": 1, "b": None}],
    pa.dictionary(pa.int32(), pa.string()): ["a", "b", "a"],
}


@pytest.mark.parametrize("tp", GIVEN_BACK, ids=str)
def test_what_parquet_takes_comes_back_and_the_audit_reads_it(tp: pa.DataType, tmp_path: Path) -> None:
    sink, rows = FileSink(tmp_path, format=Parquet(pa.schema({"x": tp}))), [{"x": value} for value in GIVEN_BACK[tp]]
    (part,), refused = written(sink, *rows)

    assert refused == []
    assert pq.read_table(part).to_pylist(maps_as_pydicts="strict") == rows
    assert [said for said, _ in sink.audit_read(part.name)] == sink.layout.encode_for_audit(
        sink.layout.block(rows, None)
    )


def test_values_that_parquet_has_otherwise_are_its_counterparts(tmp_path: Path) -> None:
    record = msgspec.defstruct("Record", [("kind", Kind), ("whose", uuid.UUID), ("counts", dict[str, Base])])
    sink = FileSink(tmp_path, value=record, format="parquet")
    (part,), refused = written(sink, record(Kind.PEN, uuid.UUID(int=5), {"a": Base(x=1)}))

    assert refused == []
    assert pq.read_table(part).to_pylist() == [
        {"kind": "pen", "whose": str(uuid.UUID(int=5)), "counts": [("a", {"x": 1})]}
    ]


@pytest.mark.parametrize("tp", [pa.struct([]), pa.month_day_nano_interval()], ids=str)
def test_a_schema_that_parquet_cannot_hold_is_refused_with_the_sink(tp: pa.DataType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written as Parquet"):
        FileSink(tmp_path, format=Parquet(pa.schema({"x": tp})))


# ---------------------------------------------------------------- fields that the type does not declare


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(("tp", "value"), [(Open, Open(x=1, more=2)), (Base, Below(x=1, more=2))])  # type: ignore[call-arg]
def test_a_field_that_is_no_column_is_refused_and_not_left_out(tp: Any, value: Any, kind: str, tmp_path: Path) -> None:
    expect_refused(FileSink(tmp_path, value=tp, format=kind), value, "no column for more")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_value_with_its_declared_fields_alone_is_written(kind: str, tmp_path: Path) -> None:
    assert written(FileSink(tmp_path, value=Open, format=kind), Open(x=1))[1] == []


# ---------------------------------------------------------------- Avro


@pytest.mark.parametrize(
    ("tp", "value", "why"),
    [
        (int, 1.5, "a float is not a valid long"), (int, True, "a bool is not a valid long"),
        (bool, "no", "a str is not a valid boolean"),
        (float, "1.5", "a valid double"), (str, 5, "a valid string"), (bytes, "x", "a valid bytes"),
        (datetime.date, NOON, "a valid date"), (datetime.datetime, 5, "a valid timestamp-micros"),
        (uuid.UUID, "x", "a valid uuid"), (list[int], [1, 2.5], "a valid long"),
        (dict[str, int], {"a": 1.5}, "a valid long"), (int | None, 1.5, "a valid long"),
        (int | str, 1.5, "a valid union of long, string"), (str, datetime.timedelta(1), "a valid string"),
        (Kind, 5, "a valid enum"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_avro_would_change_is_refused_with_its_field(tp: Any, value: Any, why: str, tmp_path: Path) -> None:
    record = of(tp)
    parts, refused = written(FileSink(tmp_path, value=record, format="avro"), record(value))
    assert parts == []
    assert "x: " in refused[0] and why in refused[0]


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        ("int", 2**40), ("float", 1e300), ("boolean", "no"), ("string", b"x"), ("long", 1.5),
        ({"type": "long", "logicalType": "timestamp-micros"}, NAIVE),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, NOON),
        ({"type": "int", "logicalType": "time-millis"}, NOON.time()), ({"type": "int", "logicalType": "date"}, NOON),
        ({"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}]}, {"a": 1, "b": 2}),
    ],
    ids=repr,
)  # fmt: skip
def test_what_an_avro_schema_would_change_is_refused(tp: Any, value: Any, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": tp}]}
    expect_refused(FileSink(tmp_path, format=Avro(schema)), {"x": value}, "x: ")


@pytest.mark.parametrize(("tp", "value"), [(Open, Open(x=1, more=2)), (Base, Below(x=1, more=2))])  # type: ignore[call-arg]
def test_avro_refuses_a_field_that_the_model_does_not_declare(tp: Any, value: Any, tmp_path: Path) -> None:
    expect_refused(FileSink(tmp_path, value=tp, format="avro"), value, "no field for more")


def test_avro_takes_what_it_gives_back(tmp_path: Path) -> None:
    """Values of unions in the arm that has their type; what is no field is computed, or a tag."""
    tagged = msgspec.defstruct("Tagged", [("a", int | float | str | None), ("b", list[int | str])], tag=True)
    values = [tagged(1, [1, "x"]), tagged(1.0, []), tagged("x", []), tagged(None, [])]
    (part,), refused = written(FileSink(tmp_path, value=tagged, format="avro"), *values)

    assert refused == []
    with part.open("rb") as file:
        assert repr([*fastavro.reader(file)]) == repr([{"a": each.a, "b": each.b} for each in values])


class Computed(BaseModel):
    x: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.x


def test_what_pydantic_computes_is_no_field(tmp_path: Path) -> None:
    (part,), _ = written(FileSink(tmp_path, value=Computed, format="avro"), Computed(x=1))
    with part.open("rb") as file:
        assert [*fastavro.reader(file)] == [{"x": 1}]


# ---------------------------------------------------------------- what the audit reads


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (JsonLines(), JsonLines("gzip")), (JsonLines("gzip"), JsonLines()), (Csv(("x",)), Csv(("x",), "gzip")),
        (Csv(("x",), "gzip"), Csv(("x",))),
    ],
    ids=repr,
)  # fmt: skip
def test_files_from_before_a_change_of_compression_are_read(before: Format, after: Format, tmp_path: Path) -> None:
    (part,), _ = written(FileSink(tmp_path, format=before), {"x": 1})

    sink = FileSink(tmp_path, format=after)
    assert [said for said, _ in sink.audit_read(part.name)] == sink.layout.encode_for_audit(
        sink.layout.block([{"x": 1}], None)
    )


def test_without_an_envelope_a_value_that_looks_like_one_is_the_value(tmp_path: Path) -> None:
    value = {"provenance": "a", "value": 1}
    sink = FileSink(tmp_path, format=JsonLines("gzip"))
    (part,), _ = written(sink, value)

    assert [*sink.audit_read(part.name)] == [(b'{"provenance":"a","value":1}', None)]


@pytest.mark.parametrize(
    ("groups", "held"),
    [
        pytest.param(
            [5, 5], [(8, 1), (16, 1), (24, 2), (32, 2), (0, 0)] * 2, marks=pytest.mark.limits(tables_per_row_group=2)
        ),
        pytest.param(
            [3, 3, 3, 1],
            [*[(8, 1), (16, 1), (0, 0)] * 3, (8, 1)],
            marks=pytest.mark.limits(row_group_bytes=24, tables_per_row_group=2),
        ),
    ],
    ids=["rows", "bytes"],
)
def test_a_row_group_ends_at_so_many_rows_or_bytes(groups: list[int], held: list[tuple[int, int]]) -> None:
    """Meanwhile its bytes are in few tables, because each table takes memory."""
    layout, out, found = ArrowLayout(None, pa.schema({"x": pa.int64()}), False, None, 5), io.BytesIO(), list[Any]()
    body = layout.body(out)
    for number in range(10):
        body.write(layout.block([{"x": number}], None))
        found.append((body.buffered_bytes, (body.memory - body.buffered_bytes) // _EACH_TABLE))
    body.close()

    assert found == held
    assert body.memory == body.buffered_bytes == 0
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == groups
    assert file.read().column("x").to_pylist() == list(range(10))
