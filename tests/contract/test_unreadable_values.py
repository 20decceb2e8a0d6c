"""A value that Python cannot represent rejects its row only, and nothing if the type does not take its column."""

from __future__ import annotations

import datetime
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pydantic
import pytest

from kafka_eos.abc.services import Services
from kafka_eos.connectors.files import FileSource
from kafka_eos.core.errors import ConfigError, PoisonRecord
from kafka_eos.core.records import RawRecord
from tests.contract.test_file_source import opened, read

MICROSECONDS = {"year 0": -62_167_219_200_000_000, "year 10000": 253_402_300_800_000_000, "Long.MAX": (1 << 63) - 1}
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
AT_NOON = int(NOON.timestamp() * 1_000_000)


class Timed(msgspec.Struct, frozen=True):
    id: int
    at: datetime.datetime


class Untimed(msgspec.Struct, frozen=True):
    id: int


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: int


class StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: int


class Tagged(msgspec.Struct, frozen=True, tag="timed", tag_field="kind"):
    id: int


class Rejected(NamedTuple):
    offset: int
    value: dict[str, Any]
    error: str


def read_all(source: FileSource[Any]) -> tuple[list[Any], list[Rejected]]:
    rejected: list[Rejected] = []

    def reject(operator: str, raw: RawRecord, error: Exception) -> None:
        assert raw.value is not None
        rejected.append(Rejected(raw.offset, msgspec.json.decode(raw.value), str(error)))

    return read(opened(source, services=Services(reject))), rejected


def times(path: Path, microseconds: Sequence[int]) -> None:
    """A file of rows with a number and a time."""
    rows = [{"id": number, "at": at} for number, at in enumerate(microseconds)]
    if path.suffix == ".avro":
        kind = {"type": "long", "logicalType": "timestamp-micros"}
        schema = {
            "type": "record",
            "name": "T",
            "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": kind}],
        }
        with path.open("wb") as file:  # fastavro writes numbers as they are
            fastavro.writer(file, schema, rows, sync_interval=1)
    else:
        ids = pa.array([row["id"] for row in rows])
        at = pa.array([row["at"] for row in rows]).cast(pa.timestamp("us", "UTC"))
        pyarrow.parquet.write_table(pa.table({"id": ids, "at": at}), path)


@pytest.mark.parametrize("bad", MICROSECONDS)
@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_a_time_that_python_does_not_have_rejects_its_row_and_no_other(form: str, bad: str, tmp_path: Path) -> None:
    times(tmp_path / f"a.{form}", [AT_NOON, MICROSECONDS[bad], AT_NOON])

    for tp, kept in ((Timed, [Timed(0, NOON), Timed(2, NOON)]), (None, [{"id": 0, "at": NOON}, {"id": 2, "at": NOON}])):
        values, rejected = read_all(FileSource(tmp_path, value=tp, format=form))
        assert values == kept
        assert [(each.offset, each.value) for each in rejected] == [(1, {"id": 1, "at": MICROSECONDS[bad]})]
    with pytest.raises(PoisonRecord, match=rf"a\.{form}/0/1"):
        read(opened(FileSource(tmp_path, value=Timed, format=form)))


@pytest.mark.parametrize("bad", MICROSECONDS)
@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_a_column_that_the_type_does_not_have_is_not_decoded(form: str, bad: str, tmp_path: Path) -> None:
    times(tmp_path / f"a.{form}", [AT_NOON, MICROSECONDS[bad]])

    assert read(opened(FileSource(tmp_path, value=Untimed, format=form))) == [Untimed(0), Untimed(1)]


@pytest.mark.parametrize("tp", [Strict, StrictModel])
@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_a_type_that_forbids_other_columns_still_sees_them(form: str, tp: Any, tmp_path: Path) -> None:
    times(tmp_path / f"a.{form}", [AT_NOON])

    values, rejected = read_all(FileSource(tmp_path, value=tp, format=form))

    assert (values, [each.offset for each in rejected]) == ([], [0])


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_the_column_of_a_tag_is_read(form: str, tmp_path: Path) -> None:
    rows = [{"id": 1, "kind": "timed"}, {"id": 2, "kind": "other"}]
    if form == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    else:
        fields = [{"name": "id", "type": "long"}, {"name": "kind", "type": "string"}]
        with (tmp_path / "a.avro").open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "T", "fields": fields}, rows)

    values, rejected = read_all(FileSource(tmp_path, value=Tagged, format=form))

    assert (values, [each.offset for each in rejected]) == ([Tagged(1)], [1])


def test_columns_of_directories_alone_make_a_row(tmp_path: Path) -> None:
    day = msgspec.defstruct("Day", [("day", str)], frozen=True)
    (tmp_path / "day=1").mkdir()
    times(tmp_path / "day=1" / "a.parquet", [AT_NOON, MICROSECONDS["Long.MAX"]])

    assert read(opened(FileSource(tmp_path, value=day, format="parquet", partitions=("day",)))) == [day("1")] * 2


def test_bytes_that_are_no_text_reject_their_row(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    pyarrow.parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", write_statistics=False)
    schema = {"type": "record", "name": "T", "fields": [{"name": "text", "type": "bytes"}]}
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"text": each} for each in (b"a", b"\xff", b"c")])
    data = (tmp_path / "a.avro").read_bytes()
    as_text = data.replace(b'"type": "bytes"', b'"type":"string"')
    assert as_text != data and len(as_text) == len(data)
    (tmp_path / "a.avro").write_bytes(as_text)

    for form in ("avro", "parquet"):
        values, rejected = read_all(FileSource(tmp_path, format=form))
        assert values == [{"text": "a"}, {"text": "c"}]
        assert [(each.offset, each.value) for each in rejected] == [(1, {"text": "b'\\xff'"})]


NANOSECONDS: dict[str, tuple[pa.DataType, Any]] = {
    "timestamp": (pa.timestamp("ns"), datetime.datetime(1970, 1, 1, 0, 0, 0, 2)),
    "timestamp with a zone": (pa.timestamp("ns", "UTC"), datetime.datetime(1970, 1, 1, 0, 0, 0, 2, datetime.UTC)),
    "time": (pa.time64("ns"), datetime.time(0, 0, 0, 2)),
    "duration": (pa.duration("ns"), datetime.timedelta(microseconds=2)),
}


def nested(column: pa.Array, how: str) -> pa.Array:
    match how:
        case "list":
            return pa.ListArray.from_arrays(range(len(column) + 1), column)
        case "map":
            return pa.MapArray.from_arrays(range(len(column) + 1), ["k"] * len(column), column)
        case "struct":
            return pa.StructArray.from_arrays([column], ["x"])
        case "dictionary":
            return column.dictionary_encode()
    return column


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *itertools.product(NANOSECONDS, ["column", "list", "map", "struct"]),
        ("timestamp", "dictionary"),  # a dictionary of durations comes back as numbers
        ("time", "dictionary"),
    ],
)
def test_nanoseconds_become_microseconds_exactly_or_reject_their_row(kind: str, how: str, tmp_path: Path) -> None:
    tp, expected = NANOSECONDS[kind]
    column = nested(pa.array([2_000, 2_004, None], pa.int64()).cast(tp), how)
    pyarrow.parquet.write_table(pa.table({"at": column}), tmp_path / "a.parquet")

    values, rejected = read_all(FileSource(tmp_path, format="parquet"))

    inside: Any = {"list": lambda x: [x], "map": lambda x: {"k": x}, "struct": lambda x: {"x": x}}.get(how, lambda x: x)
    assert values == [{"at": inside(expected)}, {"at": inside(None)}]
    assert {type(row["at"]) for row in values[:1]} == {type(inside(expected))}
    assert [each.offset for each in rejected] == [1]
    assert "2004" in str(rejected[0].value)


@pytest.mark.parametrize("how", ["column", "list", "struct"])
def test_nanoseconds_of_96_bits_become_microseconds_exactly_or_reject_their_row(how: str, tmp_path: Path) -> None:
    column = nested(pa.array([2_000, 2_004], pa.int64()).cast(pa.timestamp("ns")), how)
    pyarrow.parquet.write_table(
        pa.table({"n": [1, 2], "at": column}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True
    )

    values, rejected = read_all(FileSource(tmp_path, format="parquet"))

    assert [row["n"] for row in values] == [1]
    assert [each.offset for each in rejected] == [1]


class Nanoseconds(msgspec.Struct):
    at: datetime.datetime


@pytest.mark.parametrize("pandas", ["installed", "missing"])
def test_the_same_rows_are_read_with_and_without_pandas(pandas: str, tmp_path: Path) -> None:
    column = pa.array([2_000, 2_004], pa.int64()).cast(pa.timestamp("ns"))
    pyarrow.parquet.write_table(pa.table({"at": column}), tmp_path / "a.parquet")
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
if {pandas == "missing"}:
    sys.meta_path.insert(0, Missing())
from tests.contract.test_unreadable_values import FileSource, Nanoseconds, read_all
values, rejected = read_all(FileSource(sys.argv[1], value=Nanoseconds, format="parquet"))
print(values, [each.offset for each in rejected])
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    root = str(Path(__file__).parents[2])

    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "[Nanoseconds(at=datetime.datetime(1970, 1, 1, 0, 0, 0, 2))] [1]\n"


def test_a_time_zone_that_this_machine_does_not_know_stops_the_job_and_rejects_no_rows(tmp_path: Path) -> None:
    at = pa.array([0]).cast(pa.timestamp("us", "Nowhere/City"))
    pyarrow.parquet.write_table(pa.table({"at": at}), tmp_path / "a.parquet")

    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read after row 0: .*'Nowhere/City'"):
        read_all(FileSource(tmp_path, format="parquet"))


def test_two_columns_of_one_name_stop_the_job(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read after row 0: .*have the same name: a, a"):
        read_all(FileSource(tmp_path, format="parquet"))
