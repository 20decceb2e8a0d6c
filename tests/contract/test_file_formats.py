"""The formats of FileSink, partitions and rolling: what other programs read, and what is refused.

Files are read here by pyarrow's data sets, by fastavro, and by the csv of the library, never by what wrote them.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import enum
import gzip
import json
import math
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import sink_factories
from pydantic import BaseModel

from kafka_eos.abc.committer import CommitPermit, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.files import Avro, Csv, FileSink, JsonLines, Parquet, Roll
from kafka_eos.connectors.files.file_names import FileCommittable
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.provenance import parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.check_sink import TWO_PROCESSES
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import other_seeds
from tests.marks import campaign

FIRST = EpochId(Epoch(1), Term(1))
JOB = JobContext("orders", Term(1), {})


class Kind(enum.Enum):
    BOOK = "book"
    PEN = "pen"


class Item(msgspec.Struct):
    id: int
    text: str | None = None


class Everything(msgspec.Struct):
    id: int
    text: str
    share: float
    on: bool
    raw: bytes
    at: datetime.datetime
    day: datetime.date
    whose: uuid.UUID
    kind: Kind
    items: list[Item]
    counts: dict[str, int]
    maybe: int | None = None


class Model(BaseModel):
    id: int
    text: str


THING = Everything(
    7, 'a "b", c\nd', 0.1, True, b"\x00\xff", datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 31), uuid.UUID(int=5), Kind.PEN, [Item(1, "x"), Item(2)], {"a": 1},
)  # fmt: skip


def batch(values: Sequence[Any]) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("in", "events", 3, 0, list(values)))


def staged(sink: FileSink, *batches: Sequence[Any], services: Services | None = None) -> list[Committable]:
    writer = sink.writer(TaskContext(JOB, 0, 1, "out", services or Services()))
    for values in batches:
        writer.write(batch(values))
    return list(writer.seal(FIRST)())


def commit(sink: FileSink, committables: Sequence[Committable]) -> None:
    committer = sink.committer(JOB)
    for each in committables:
        committer.commit(CommitPermit(FIRST), each)
    committer.announce(CommitPermit(FIRST), committables)


def written(sink: FileSink, *batches: Sequence[Any]) -> list[Path]:
    """The committed files."""
    commit(sink, staged(sink, *batches))
    return sorted(sink.directory.rglob("part-*"))


# ---------------------------------------------------------------- the contract


def read_parquet(directory: Path) -> list[Any]:
    """As a reader has it who knows nothing of this package: hidden files are skipped by their names."""
    if not directory.exists():
        return []
    table = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    return sorted(table.select(["id", "text"]).to_pylist(), key=lambda row: row["id"]) if table.num_rows else []


def read_avro(directory: Path) -> list[Any]:
    rows = []
    for part in sorted(directory.glob("part-*.avro")):
        with part.open("rb") as file:
            rows += list(fastavro.reader(file))
    return rows


def read_csv(directory: Path) -> list[Any]:
    rows = []
    for part in sorted(directory.glob("part-*.csv.gz")):
        with gzip.open(part, "rt", newline="") as file:
            rows += [{"id": int(row["id"]), "text": row["text"]} for row in csv.DictReader(file)]
    return rows


READERS = {"parquet": read_parquet, "avro": read_avro, "csv": read_csv}


def of(kind: str, tmp_path: Path) -> Callable[[], SinkUnderTest]:
    def fresh() -> SinkUnderTest:
        directory = tmp_path / uuid.uuid4().hex

        def take_away() -> None:
            for part in directory.rglob("part-*"):
                part.rename(tmp_path / part.name)

        arguments: dict[str, Json] = {"directory": str(directory), "kind": kind}
        return SinkUnderTest(
            "sink_factories:formatted_file_sink", arguments, lambda: READERS[kind](directory), remove_visible=take_away
        )

    return fresh


@pytest.mark.parametrize("check", SINK_CHECKS)
def test_parquet_in_partitions_keeps_the_contract(check: str, tmp_path: Path) -> None:
    check_sink(of("parquet", tmp_path), check, seeds=other_seeds(1))


@pytest.mark.parametrize("check", [campaign(name) if name in TWO_PROCESSES else name for name in SINK_CHECKS])
@pytest.mark.parametrize("kind", ["avro", "csv"])
def test_files_that_roll_keep_the_contract(kind: str, check: str, tmp_path: Path) -> None:
    check_sink(of(kind, tmp_path), check, seeds=other_seeds(1))


# ---------------------------------------------------------------- what is in a file


def test_parquet_has_the_types_of_the_model(tmp_path: Path) -> None:
    written(FileSink(tmp_path, value=Everything, format="parquet"), [THING])
    table = ds.dataset(tmp_path).to_table()

    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert [field.name for field in table.schema if field.nullable] == ["maybe"]
    (row,) = table.to_pylist()
    assert row == {
        "id": 7, "text": THING.text, "share": 0.1, "on": True, "raw": b"\x00\xff", "at": THING.at, "day": THING.day,
        "whose": str(THING.whose), "kind": "pen", "items": [{"id": 1, "text": "x"}, {"id": 2, "text": None}],
        "counts": [("a", 1)], "maybe": None,
    }  # fmt: skip


def test_avro_is_read_with_the_schema_of_its_file(tmp_path: Path) -> None:
    (part,) = written(FileSink(tmp_path, value=Everything, format="avro", envelope=True), [THING] * 3000)
    with part.open("rb") as file:
        rows = list(fastavro.reader(file))

    assert len(rows) == 3000
    last: Any = rows[-1]
    assert (last["at"], last["kind"], last["counts"]) == (THING.at, "pen", {"a": 1})
    assert last["kafka_eos_provenance"] == "orders.1.1/in/events/3/2999/0.0"


def test_csv_tells_nothing_from_an_empty_text(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=Item, format="csv")
    (part,) = written(sink, [Item(1), Item(2, ""), Item(3, 'a "b", c\nd'), Item(4, " x"), Item(5, "y\r")])
    (alone,) = written(FileSink(tmp_path / "one", format=Csv(("id",))), [{"id": None}, {"id": 1}])

    assert part.read_bytes() == b'id,text\n1,\n2,""\n3,"a ""b"", c\nd"\n4," x"\n5,"y\r"\n'
    assert alone.read_text() == 'id\n""\n1\n'


class Basket(msgspec.Struct):
    parts: list[int]
    item: Item
    took: datetime.timedelta


def test_csv_has_a_list_a_dict_and_a_model_as_json_in_one_cell_and_a_span_as_a_text(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=Basket, format="csv")
    assert list(sink.check(JOB)) == []
    (part,) = written(sink, [Basket([1, 2], Item(7, "x"), datetime.timedelta(seconds=3))])

    with part.open(newline="") as file:
        assert [*csv.reader(file)][1] == ["[1,2]", '{"id":7,"text":"x"}', "PT3S"]


@pytest.mark.parametrize(
    ("tp", "value", "line"),
    [
        (tuple[str, int], ("ann", 3), b'["ann",3]'),
        (bytes, b"x", b'"eA=="'),
        (str, "x", b'"x"'),
        (datetime.date, datetime.date(2026, 6, 1), b'"2026-06-01"'),
    ],
    ids=str,
)
def test_lines_without_a_type_are_json_by_the_type_of_the_stream(
    tp: Any, value: object, line: bytes, tmp_path: Path
) -> None:
    """Which says how they are read: without it, JSON would change them, and they would be refused."""
    (part,) = written(FileSink(tmp_path).for_stream_type(tp), [value])

    assert part.read_bytes() == line + b"\n"


class Measured(msgspec.Struct):
    shares: list[float | None]
    raw: list[Any]


@pytest.mark.parametrize(
    "row",
    [Measured([math.nan], []), Measured([-math.inf], []), Measured([], [math.nan]), Measured([], [b"x"]),
     Measured([], [{1: "a", "1": "b"}])],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_list_that_json_would_change_is_refused(form: str, row: Measured, tmp_path: Path) -> None:
    """With the number of its row; its neighbours are written."""
    refused: list[int] = []
    services = Services(reject_row=lambda batch, index, operator, error: refused.append(index))
    sink = FileSink(tmp_path, value=Measured, format=form)
    commit(sink, staged(sink, [Measured([1.5, None], [1, "1"]), row], services=services))

    assert refused == [1]
    (part,) = tmp_path.rglob("part-*")
    assert part.read_text().splitlines()[-1] in ('{"shares":[1.5,null],"raw":[1,"1"]}', '"[1.5,null]","[1,""1""]"')


@pytest.mark.parametrize("name", ['report "final", all.jsonl', "июнь.csv", "a\\b;c", "x\ny"])
def test_an_envelope_is_whole_whatever_its_input_is_called(name: str, tmp_path: Path) -> None:
    """A quote would end a text of JSON, and a comma a cell."""
    texts = dict[str, str]()
    for form in (JsonLines(), Csv(("id", "text"))):
        sink = FileSink(tmp_path / form.extension, format=form, envelope=True)
        writer = sink.writer(TaskContext(JOB, 0, 1, "out", Services()))
        rows = [{"id": 1, "text": "x"}]
        writer.write(Batch(rows, range(1), ListOrigin("in", name, 3, 0, rows)))
        commit(sink, list(writer.seal(FIRST)()))
        (part,) = sink.directory.rglob("part-*")
        if form.extension == "jsonl":
            (line,) = map(json.loads, part.read_text().splitlines())
            assert line.keys() == {"provenance", "value"}
            assert line["value"] == rows[0]
            texts["jsonl"] = line["provenance"]
        else:
            header, row = csv.reader(part.read_text().splitlines())
            assert (header, row[:-1]) == (["id", "text", "kafka_eos_provenance"], ["1", "x"])
            texts["csv"] = row[-1]
        assert [text for _, text in sink.audit_read(part.name)] == [texts[form.extension]]

    assert texts["jsonl"] == texts["csv"]
    assert parse_provenance(texts["csv"]).topic == name


def test_lines_can_be_compressed(tmp_path: Path) -> None:
    (part,) = written(FileSink(tmp_path, format=JsonLines(compression="gzip")), ["a", "b"], ["c"])

    assert part.name.endswith(".jsonl.gz")
    assert gzip.decompress(part.read_bytes()) == b'"a"\n"b"\n"c"\n'


@pytest.mark.parametrize("made", [JsonLines("gzip"), Csv(("id", "text")), Avro({
    "type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
}), Parquet(pa.schema({"id": pa.int64(), "text": pa.string()}))], ids=lambda each: each.extension)  # fmt: skip
@pytest.mark.parametrize("envelope", [False, True])
def test_the_audit_is_told_of_files_what_it_is_told_of_rows(envelope: bool, made: Any, tmp_path: Path) -> None:
    """The same bytes for the same row; and provenance where there is one."""
    rows = [{"id": n, "text": f"row {n},\n✓"} for n in range(3)]
    sink = FileSink(tmp_path, format=made, envelope=envelope)
    (part,) = written(sink, rows)
    _, told = sink.audit_rows(batch(rows), "out", lambda *refused: pytest.fail(f"refused: {refused}"))

    assert [value for value, _ in sink.audit_read(part.name)] == [each[1] for each in told]
    texts = [f"orders.1.1/in/events/3/{n}/0.0" if envelope else None for n in range(3)]
    assert [text for _, text in sink.audit_read(part.name)] == texts


# ---------------------------------------------------------------- rows that do not fit


@pytest.mark.parametrize(
    ("kind", "bad", "why"),
    [
        ("parquet", {"id": 1 << 70, "text": "x"}, "column 'id'"),
        ("parquet", {"id": 1, "text": 5}, "column 'text'"),
        ("parquet", {"id": None, "text": "x"}, "may not be null"),
        ("parquet", {"id": 1, "more": "x"}, "no column for more"),
        ("parquet", "text", "expected a dict"),
        ("avro", {"id": "x", "text": "x"}, "not of the schema"),
        ("avro", {"id": 1, "text": "x", "more": 1}, "not of the schema"),
        ("csv", {"id": b"x", "text": "x"}, "bytes have no standard form"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_its_neighbours_are_written(
    kind: str, bad: Any, why: str, tmp_path: Path
) -> None:
    refused: list[tuple[int, str]] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append((rows.origin.raw(rows.origin_rows[index]).offset, str(error)))

    sink = FileSink(tmp_path, format=sink_factories.FORMATS[kind])
    good = [{"id": n, "text": "ok"} for n in range(3)]
    commit(sink, staged(sink, [good[0], bad, good[1]], [good[2]], services=Services(reject_row=reject)))

    assert [offset for offset, _ in refused] == [1]
    assert why in refused[0][1]
    (part,) = tmp_path.glob("part-*")
    assert len(list(sink.audit_read(part.name))) == 3


def test_a_time_without_a_zone_is_refused_and_not_taken_for_utc(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=Everything, format="parquet")
    refused: list[str] = []
    policy = Services(reject_row=lambda rows, index, operator, error: refused.append(str(error)))
    staged(sink, [msgspec.structs.replace(THING, at=THING.at.replace(tzinfo=None))], services=policy)

    assert len(refused) == 1 and "no time zone" in refused[0]


class Awkward(msgspec.Struct):
    price: decimal.Decimal


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda at: FileSink(at, format="orc"), "FileSink writes jsonl, csv, avro, parquet"),
        (lambda at: FileSink(at, format="parquet").for_stream_type(None), "Parquet needs its columns"),
        (lambda at: FileSink(at, format="avro").for_stream_type(None), "Avro needs its schema"),
        (lambda at: FileSink(at, format="csv").for_stream_type(None), "CSV needs its columns"),
        (
            lambda at: FileSink(at, value=Everything, format="csv"),
            r"Everything\.raw: bytes have no standard form in CSV",
        ),
        (lambda at: FileSink(at, value=dict, format="parquet"), "models"),
        (lambda at: FileSink(at, value=Awkward, format="parquet"), "Awkward.price: Decimal.*format=Parquet"),
        (lambda at: FileSink(at, value=Awkward, format="avro"), "Awkward.price"),
        (lambda at: FileSink(at, format=Csv(("a", "a"))), "without duplicates"),
        (lambda at: FileSink(at, format=Csv(("a",), "zstd")), "compression='zstd'"),
        (lambda at: FileSink(at, value=Model, format=Parquet(pa.schema({"id": pa.int64()}))), "differ in.*text"),
        (lambda at: FileSink(at, roll=Roll(rows=0)), "greater than 0"),
        (lambda at: FileSink(at, roll=Roll(seconds=0)), "greater than 0"),
        (lambda at: FileSink(at, format=Avro({"type": "long"})), "must be that of a record"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(
    make: Callable[[Path], FileSink], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why):
        make(tmp_path)


# ---------------------------------------------------------------- partitions and rolling


def test_partitions_are_named_as_hive_names_them(tmp_path: Path) -> None:
    kinds: list[Any] = ["a", None, "x/y:z=1", "..", True, Kind.PEN, "é", decimal.Decimal("1.50"), uuid.UUID(int=1)]
    sink = FileSink(tmp_path, partition_by=lambda row: {"day": datetime.date(2026, 1, 31), "kind": kinds[row["n"]]})
    written(sink, [{"n": n} for n in range(len(kinds))])

    assert sorted(path.name for path in (tmp_path / "day=2026-01-31").iterdir()) == [
        "kind=..", "kind=00000000-0000-0000-0000-000000000001", "kind=1.50", "kind=__HIVE_DEFAULT_PARTITION__",
        "kind=a", "kind=pen", "kind=true", "kind=x%2Fy%3Az%3D1", "kind=é",
    ]  # fmt: skip
    table = ds.dataset(tmp_path, format="json", partitioning="hive").to_table()
    assert dict(zip(table["n"].to_pylist(), table["kind"].to_pylist(), strict=True)) == {
        0: "a", 1: None, 2: "x/y:z=1", 3: "..", 4: "true", 5: "pen", 6: "é", 7: "1.50", 8: str(uuid.UUID(int=1)),
    }  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"a b": 1}, {"a": "x" * 300}, {"a": [1]}, "day=1"])
def test_a_row_whose_partition_is_no_directory_is_refused(given: Any, tmp_path: Path) -> None:
    refused: list[int] = []
    policy = Services(reject_row=lambda rows, index, operator, error: refused.append(index))
    sink = FileSink(tmp_path, partition_by=lambda value: given if value == "bad" else {"a": value})
    commit(sink, staged(sink, ["x", "bad", "y"], services=policy))

    assert refused == [1]
    assert sorted(part.parent.name for part in tmp_path.rglob("part-*")) == ["a=x", "a=y"]


def test_a_file_ends_at_so_many_rows_and_its_numbers_sort(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, roll=Roll(rows=3))
    parts = written(sink, list(range(5)), [5], list(range(6, 31)))

    assert [len(part.read_text().splitlines()) for part in parts] == [3] * 10 + [1]
    assert [row for part in parts for row in map(json.loads, part.open())] == list(range(31))
    assert [part.name for part in parts[:2]] == [
        "part-000000000001-0000-orders.out.jsonl",
        "part-000000000001-0000-orders.out~0001.jsonl",
    ]


def test_a_file_ends_when_it_is_large(tmp_path: Path) -> None:
    parts = written(FileSink(tmp_path, roll=Roll(size=100)), *[["x" * 30]] * 10)

    assert [part.stat().st_size for part in parts] == [132, 132, 66]


@pytest.mark.limits(open_files=2)
def test_a_writer_has_few_files_open_however_many_partitions_there_are(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, partition_by=lambda value: {"n": value % 5})
    parts = written(sink, list(range(10)), list(range(10, 20)))

    assert sorted(row for part in parts for row in map(json.loads, part.open())) == list(range(20))
    assert len(parts) == 5


def test_another_epoch_begins_with_new_files(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, roll=Roll(rows=2))
    one = sink.writer(TaskContext(JOB, 0, 1, "out"))
    names = []
    for number in (1, 2):
        one.write(batch([1, 2, 3]))
        names += [each.payload["final"] for each in one.seal(EpochId(Epoch(number), Term(1)))()]

    assert names == [f"part-00000000000{n}-0000-orders.out{which}.jsonl" for n in (1, 2) for which in ("", "~0001")]


# ---------------------------------------------------------------- what readers are told, and what is lost


def test_the_file_of_an_epoch_names_its_files_and_comes_last(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, epoch_files=True, partition_by=lambda value: {"n": value})
    committables = staged(sink, [1, 2, 2])
    committer = sink.committer(JOB)
    for each in committables:
        committer.commit(CommitPermit(FIRST), each)
    assert not (tmp_path / "_epochs").exists()
    committer.announce(CommitPermit(FIRST), committables)
    told = json.loads((tmp_path / "_epochs" / "000000000001-orders.json").read_text())

    assert (told["job"], told["epoch"]) == ("orders", 1)
    assert [(each["file"], each["rows"]) for each in told["files"]] == [
        ("n=1/part-000000000001-0000-orders.out.jsonl", 1),
        ("n=2/part-000000000001-0000-orders.out~0001.jsonl", 2),
    ]
    sink.committer(JOB).announce(CommitPermit(FIRST), committables[::-1])
    assert json.loads((tmp_path / "_epochs" / "000000000001-orders.json").read_text()) == told


def test_a_file_that_is_neither_staged_nor_final_stops_the_commit(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=Model, format="parquet", partition_by=lambda row: {"id": row.id})
    first, second = staged(sink, [Model(id=1, text="a"), Model(id=2, text="b")])
    (tmp_path / str(second.payload["staged"])).unlink()
    committer = sink.committer(JOB)
    committer.commit(CommitPermit(FIRST), first)

    with pytest.raises(CommittableLost, match="does not exist either"):
        committer.commit(CommitPermit(FIRST), second)


PAYLOADS: list[dict[str, Json]] = [
    {"version": 1, "staged": ".staged.orders.aaaaaaaaaaaa.2.7.1.out",
     "final": "part-000000000007-0001-orders.aaaaaaaaaaaa.out.jsonl", "size": 4, "sha256": "79143be1",
     "announced": False},
    {"version": 1, "staged": ".staged.orders.aaaaaaaaaaaa.2.7.1.out~0012",
     "final": "day=2026-01-31/kind=a%2Fb/part-000000000007-0001-orders.aaaaaaaaaaaa.out~0012.csv.gz", "size": 4,
     "sha256": "79143be1", "announced": True},
]  # fmt: skip
"""Committables as version 1 stores them. From the first release on never change one."""


@pytest.mark.parametrize("payload", PAYLOADS)
def test_committables_are_read(payload: dict[str, Json]) -> None:
    assert FileCommittable.read(payload).payload() == payload


@pytest.mark.parametrize("name", ["part-000000000007-0001-orders.aaaaaaaaaaaa.out.jsonl", "x=1/part-1.jsonl"])
def test_a_final_name_of_another_part_is_refused(name: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        FileCommittable.read({**PAYLOADS[1], "final": name})
