"""FileSource keeps the contract of a source in every format, finds files that come, and refuses those that change."""

from __future__ import annotations

import datetime
import decimal
import enum
import gzip
import os
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pydantic
import pytest
from pydantic import BaseModel, Field

from kafka_eos.abc.committer import CommitPermit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors._shared.plain_rows import build_converter
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, EnvironmentFailed, InputLost, PoisonRecord
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.testing import SourceUnderTest, check_source
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import seeds
from tests.unit.codecs.test_hostile import Memory

CTX = JobContext("job", Term(1), {})


class Order(msgspec.Struct, frozen=True):
    id: int
    text: str


MANY = [Order(n, f"row {n} ✓") for n in range(14)]
ORDERS = MANY[:7]


def lines(path: Path, orders: Sequence[Order | Bad]) -> None:
    data = b"".join(msgspec.json.encode(order) + b"\n" for order in orders)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


class Bad(msgspec.Struct, frozen=True):
    """A row that is no ``Order``."""

    id: int
    text: str | None = None


def avro(path: Path, orders: Sequence[Order | Bad]) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]}]
    with path.open("wb") as file:
        schema = {"type": "record", "name": "Order", "fields": fields}
        fastavro.writer(file, schema, map(msgspec.to_builtins, orders), sync_interval=30)  # three rows a block


def parquet(path: Path, orders: Sequence[Order | Bad]) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist([*map(msgspec.to_builtins, orders)]), path, row_group_size=5)


def as_csv(path: Path, orders: Sequence[Order | Bad]) -> None:
    text = "id,text\n" + "".join(
        f"{order.id}," + ("\n" if order.text is None else f'"{order.text}"\n') for order in orders
    )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


WRITERS: dict[str, Callable[[Path, Sequence[Order | Bad]], None]] = {
    "jsonl": lines,
    "jsonl.gz": lines,
    "csv": as_csv,
    "csv.gz": as_csv,
    "avro": avro,
    "parquet": parquet,
}


@pytest.mark.limits(rows_per_file_read=2, csv_block_bytes=64)
@pytest.mark.parametrize("ending", WRITERS)
def test_files_keep_the_contract(ending: str, tmp_path: Path) -> None:
    """Of several reads each, in several row groups, blocks and slices, none of which ends where another one does."""

    def fresh() -> SourceUnderTest:
        directory, write = tmp_path / uuid.uuid4().hex, WRITERS[ending]
        directory.mkdir()
        for name, some in {"a": MANY[:3], "b": MANY[3:], "c": []}.items():
            write(directory / f"{name}.{ending}", some)
        (directory / "_SUCCESS").touch()
        for hidden in (".staged", "_staged"):
            (directory / f"{hidden}.{ending}").write_bytes(b"half")
        (directory / f"below.{ending}").mkdir()
        write(directory / f"below.{ending}" / f"a.{ending}", MANY[:1])

        def grow() -> Sequence[Order]:
            added = [Order(97, "seven"), Order(98, "eight")]
            write(directory / f".new.{ending}", added)
            (directory / f".new.{ending}").rename(directory / f"0.{ending}")
            return added

        def spoil() -> Sequence[Order]:
            good = [Order(n, "good") for n in (51, 53, 56)]
            write(directory / f"d.{ending}", [Bad(50), good[0], Bad(52), good[1], Bad(54), Bad(55), good[2], Bad(57)])
            return good

        form = ending.split(".")[0]
        largest = 64 if form in ("jsonl", "csv") else None
        source = lambda: FileSource(directory, value=Order, format=form, largest_part=largest)  # noqa: E731
        return SourceUnderTest(source, MANY, grow, (directory / f"b.{ending}").unlink, spoil)

    check_source(fresh, seeds=seeds(2))


@pytest.mark.limits("usual")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_file_larger_than_one_read_is_read_on_at_each_edge(ending: str, tmp_path: Path) -> None:
    """A read takes 4,096 rows of a row group of Parquet, and of a block of CSV. Here they are not made smaller."""
    orders = [Order(n, "") for n in range(10_000)]
    if ending == "csv":
        as_csv(tmp_path / "a.csv", orders)
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist([*map(msgspec.to_builtins, orders)]), tmp_path / "a.parquet")
    source = FileSource(tmp_path, value=Order, format=ending)
    for edge in (1, 4095, 4096, 4097, 8191, 8192, 8193, 9999):
        reader = opened(source)
        assert read(reader, edge) == orders[:edge]
        assert read(opened(source, reader.positions()), 10_000) == orders[edge:]


# ---------------------------------------------------------------- files that change


@pytest.fixture
def source(tmp_path: Path) -> FileSource[Order]:
    lines(tmp_path / "a.jsonl", ORDERS[:3])
    lines(tmp_path / "b.jsonl", ORDERS[3:])
    return FileSource(tmp_path, value=Order)


def opened(source: FileSource[Any], positions: Any = None, services: Services | None = None) -> Any:
    positions = source.discover(CTX, None) if positions is None else positions
    return source.reader(TaskContext(CTX, 0, 1, "files", services or Services()), positions)


def read(reader: Any, most: int = 100) -> list[Any]:
    found: list[Any] = []
    while len(found) < most and (batch := reader.poll(most - len(found), 0)) is not None:
        found += batch.values
    return found


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("same", ["size", "time"])
def test_a_file_that_has_changed_is_refused_however_far_it_was_read(
    source: FileSource[Order], tmp_path: Path, same: str, rows: int
) -> None:
    """Also when all of it was read."""
    reader = opened(source)
    assert read(reader, rows) == ORDERS[:rows]
    if rows == 3:
        read(reader)
    at = reader.positions()
    text = (tmp_path / "a.jsonl").read_bytes()
    changed, then = (tmp_path / "a.jsonl").stat(), b"ROW 0" if same == "size" else b"longer"
    (tmp_path / "a.jsonl").write_bytes(text.replace(b"row 0", then))
    if same == "time":
        os.utime(tmp_path / "a.jsonl", ns=(changed.st_atime_ns, changed.st_mtime_ns))

    with pytest.raises(InputLost, match=r"a\.jsonl has changed since it was found"):
        source.discover(CTX, at)


def test_a_file_of_which_nothing_was_read_may_be_mended_between_two_starts(
    source: FileSource[Order], tmp_path: Path
) -> None:
    """A running job still refuses it: it was found otherwise."""
    old = opened(source).positions()
    lines(tmp_path / "a.jsonl", ORDERS[:1])

    with pytest.raises(InputLost, match="has changed"):
        opened(source, old).poll(1, 0)
    assert read(opened(source, source.discover(CTX, old))) == [*ORDERS[:1], *ORDERS[3:]]


def test_a_file_that_grows_while_it_is_read_is_refused_before_it_is_done(
    source: FileSource[Order], tmp_path: Path
) -> None:
    reader = opened(source)
    read(reader, 1)
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"id":9,"text":""}\n')

    with pytest.raises(InputLost, match="has changed"):
        read(reader)
    assert reader.list_splits_at_end() == []


@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_the_half_row_at_the_end_of_a_file_that_changes_while_it_is_read_is_no_bad_record(
    change: str, source: FileSource[Order], tmp_path: Path
) -> None:
    lines(tmp_path / "a.jsonl", [Order(n, "x" * 1000) for n in range(100)])
    refused: list[RawRecord] = []
    reader = opened(source, services=Services(lambda operator, raw, error: refused.append(raw)))
    read(reader, 1)
    with (tmp_path / "a.jsonl").open("r+b") as file:
        if change == "shorter":
            file.truncate(50_500)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b'{"id":9,"te')

    with pytest.raises(InputLost, match="has changed"):
        [*iter(lambda: reader.poll(1, 0), None)]
    assert refused == []


def test_a_file_that_was_read_may_go_and_one_that_was_not_may_not(source: FileSource[Order], tmp_path: Path) -> None:
    reader = opened(source)
    read(reader, 4)
    at = reader.positions()
    (tmp_path / "a.jsonl").unlink()
    assert source.discover(CTX, at) == at, "its position stays: it does not begin anew when it comes back"
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(InputLost, match=r"b\.jsonl does not exist any more.* only up to row 1"):
        source.discover(CTX, at)


@pytest.mark.parametrize("ending", ["jsonl.gz", "csv", "avro", "parquet"])
def test_a_damaged_file_is_left_out_as_its_error_says(ending: str, tmp_path: Path) -> None:
    """A checkpoint knows it since it was found, so it may not be moved away."""
    source, file = FileSource(tmp_path, value=Order, format=ending.split(".")[0]), tmp_path / f"a.{ending}"
    file.write_bytes(b"\xff")
    at = source.discover(CTX, None)
    with pytest.raises(ConfigError, match="put a file without rows in its place, and restart"):
        read(opened(source, at))
    file.unlink()
    with pytest.raises(InputLost, match="does not exist any more"):
        source.discover(CTX, at)
    WRITERS[ending](file, [])

    reader = opened(source, source.discover(CTX, at))
    assert read(reader) == []
    assert len(reader.list_splits_at_end()) == 1


def test_a_bad_row_is_named_and_nothing_has_moved(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id":1,"text":"x"}\n\nno order\n{"id":2,"text":"y"}\n')
    source = FileSource(tmp_path, value=Order)
    reader = opened(source)
    with pytest.raises(PoisonRecord, match=r"a\.jsonl/0/1"):
        reader.poll(10, 0)
    assert reader.positions() == source.discover(CTX, None)

    refused: list[tuple[int, bytes | None]] = []

    def refuse(operator: str, raw: RawRecord, error: Exception) -> None:
        refused.append((raw.offset, raw.value))

    assert read(opened(source, services=Services(refuse))) == [Order(1, "x"), Order(2, "y")]
    assert refused == [(1, b"no order")]


@pytest.mark.parametrize("ending", ["jsonl.gz", "csv.gz", "avro", "parquet"])
def test_a_damaged_file_stops_the_job_and_skips_nothing(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    WRITERS[ending](path, ORDERS)
    path.write_bytes(path.read_bytes()[:-9])
    reader = opened(FileSource(tmp_path, value=Order, format=ending.split(".")[0]))

    with pytest.raises(ConfigError, match=r"cannot be read after row \d.*[^.]\. .*Nothing was skipped"):
        read(reader)
    assert reader.list_splits_at_end() == []


@pytest.mark.parametrize(
    ("ending", "begin"),
    [("jsonl.gz", b""), ("csv.gz", b"id,text\n1,x\n2,"), ("csv.gz", b""), ("csv.gz", b'id,text\n1,x\n2,"')],
    ids=["a line", "a row of CSV", "names of CSV", "a cell of CSV that is not closed"],
)
def test_a_bomb_of_one_row_takes_no_memory_and_is_named(ending: str, begin: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(begin)
        for _ in range(256):
            file.write(bytes(1 << 20))
    reader = opened(FileSource(tmp_path, value=Order, format=ending.split(".")[0], largest_part=1 << 20))

    memory = Memory.watched()
    with pytest.raises(ConfigError, match=rf"a\.{ending} cannot be read after row 0: .*Nothing was skipped"):
        read(reader)
    assert memory.most < 64 << 20
    assert reader.list_splits_at_end() == []


def test_a_row_may_be_as_long_as_the_user_says(tmp_path: Path) -> None:
    line = b'{"id":1,"text":"%b"}\n' % (b"x" * 100)
    (tmp_path / "a.jsonl").write_bytes(line * 2)

    assert len(read(opened(FileSource(tmp_path, value=Order, largest_part=len(line))))) == 2
    with pytest.raises(ConfigError, match=rf"more than {len(line) - 1} bytes.*largest_part"):
        read(opened(FileSource(tmp_path, value=Order, largest_part=len(line) - 1)))


# ---------------------------------------------------------------- values


class Kind(enum.Enum):
    A = "a"


class Struct(msgspec.Struct):
    day: datetime.date
    at: datetime.datetime
    price: Annotated[decimal.Decimal, Field(max_digits=9, decimal_places=2)]
    raw: bytes
    names: list[str]
    kind: Kind
    nothing: int | None


class Model(BaseModel):
    day: datetime.date
    at: datetime.datetime
    price: Annotated[decimal.Decimal, Field(max_digits=9, decimal_places=2)]
    raw: bytes
    names: list[str]
    kind: Kind
    nothing: int | None


PARTS: dict[str, Any] = {
    "day": datetime.date(2026, 1, 31),
    "at": datetime.datetime(2026, 1, 31, 12, 0, 0, 123456, datetime.UTC),
    "price": decimal.Decimal("10.50"),
    "raw": b"\x00\xff",
    "names": ["x", "", "✓"],
    "kind": Kind.A,
    "nothing": None,
}


@pytest.mark.parametrize("model", [Struct, Model])
@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_what_a_sink_writes_a_source_reads(model: Any, form: str, tmp_path: Path) -> None:
    if form == "parquet":
        columns = pa.schema(
            [("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2)),
             ("raw", pa.binary()), ("names", pa.list_(pa.string())), ("kind", pa.string()), ("nothing", pa.int64())]
        )  # fmt: skip
        row = {**PARTS, "kind": "a"}
        pyarrow.parquet.write_table(pa.Table.from_pylist([row], schema=columns), tmp_path / "part-1.parquet")
    else:
        sink = FileSink(tmp_path, value=model, format=form)
        writer = sink.writer(TaskContext(CTX, 0, 1, "out", Services(), Epoch(1)))
        writer.write(Batch([model(**PARTS)], range(1), ListOrigin("in", "list", 0, 0, [1])))
        (committable,) = writer.seal(EpochId(Epoch(1), Term(1)))()
        staged = next(tmp_path.glob(".staged*"))
        staged.rename(tmp_path / str(committable.payload["final"]))

    (value,) = read(opened(FileSource(tmp_path, value=model, format=form)))

    assert value == model(**PARTS)


def test_times_that_spark_has_written_in_its_old_way_are_what_they_were(tmp_path: Path) -> None:
    """With 96 bits, of which pyarrow makes nanoseconds since 1970 in 64: those end in 2262, and begin again in 1677."""
    times = [datetime.datetime(9999, 12, 31), datetime.datetime(2026, 1, 31, 12, 0, 0, 1)]
    pyarrow.parquet.write_table(pa.table({"at": times}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)

    found = read(opened(FileSource(tmp_path, format="parquet")))

    assert found == [{"at": time} for time in times]
    assert {type(row["at"]) for row in found} == {datetime.datetime}


class Cells(msgspec.Struct):
    n: int
    price: decimal.Decimal | None
    at: datetime.datetime | None
    text: str | None
    ok: bool


def test_cells_of_csv_are_what_their_fields_say_and_a_nothing_is_no_empty_text(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    rows = [Cells(1, decimal.Decimal("1.50"), at, "a,\n\"b\"", True), Cells(-2, None, None, None, False),
            Cells(3, None, None, "", True)]  # fmt: skip
    sink = FileSink(tmp_path, value=Cells, format="csv")
    writer = sink.writer(TaskContext(CTX, 0, 1, "out", Services(), Epoch(1)))
    writer.write(Batch(rows, range(3), ListOrigin("in", "list", 0, 0, [1, 2, 3])))
    (committable,) = writer.seal(EpochId(Epoch(1), Term(1)))()
    next(tmp_path.glob(".staged*")).rename(tmp_path / str(committable.payload["final"]))

    assert read(opened(FileSource(tmp_path, value=Cells, format="csv"))) == rows
    plain = read(opened(FileSource(tmp_path, format="csv")))
    assert [row["text"] for row in plain] == ['a,\n"b"', None, ""]


class Aliased(BaseModel):
    tags: list[int] = Field(alias="Tags")
    within: dict[str, int] | None = None


class Camel(msgspec.Struct, rename="camel"):
    my_tags: list[bytes]


@pytest.mark.parametrize(
    ("tp", "cells", "value"),
    [
        (Aliased, {"Tags": "[1,2]", "within": None}, Aliased(Tags=[1, 2])),
        (Camel, {"myTags": '["eA=="]'}, Camel([b"x"])),
    ],
    ids=str,
)
def test_a_field_of_a_list_is_read_from_a_cell_of_json(tp: Any, cells: dict[str, Any], value: Any) -> None:
    (name, *_) = cells
    decode = build_converter("CSV", tp, of_texts=True)

    assert decode(cells) == value
    with pytest.raises(ValueError, match="field (tags|my_tags): not a valid list.*truncated"):
        decode({**cells, name: "["})


@pytest.mark.parametrize("before", ["\n", "\r\n\n", "\xef\xbb\xbf", "\xef\xbb\xbf\r\n"])
@pytest.mark.parametrize("end", ["\n", "", "\n\n"])
def test_csv_with_something_before_its_names_has_all_its_rows_as_texts(before: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(f'{before}id,b\n007,"x\ny"\n8,{end}'.encode("latin-1"))
    assert read(opened(FileSource(tmp_path, format="csv"))) == [{"id": "007", "b": "x\ny"}, {"id": "8", "b": None}]


@pytest.mark.parametrize("end", ["\n", ""])
def test_csv_with_names_alone_has_no_rows(end: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,b{end}")
    assert read(opened(FileSource(tmp_path, format="csv"))) == []


@pytest.mark.parametrize("behind", [*range(-30, 3)])
def test_csv_that_ends_near_the_end_of_what_is_read_at_once_has_all_its_rows(behind: int, tmp_path: Path) -> None:
    head, last = "id,b\n1,", "2,cell"
    filler = "x" * ((1 << 20) + behind - len(head) - len(last) - 1)
    (tmp_path / "a.csv").write_text(f"{head}{filler}\n{last}")
    assert [row["id"] for row in read(opened(FileSource(tmp_path, format="csv")))] == ["1", "2"]


@pytest.mark.parametrize("text", ['a,b\n1,x\n2,"y\n3,z\n', 'a,b\n1,x\n"2,y\n3,z\n', 'a\n1\n"2\n3\n4'])
def test_csv_with_a_quote_that_is_not_closed_stops_the_job_and_takes_no_rows_into_its_cell(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    reader = opened(FileSource(tmp_path, format="csv"))
    with pytest.raises(ConfigError, match="cannot be read after row"):
        read(reader)


@pytest.mark.parametrize("text", ['a,b\n1,"y"z\n', 'a,b\n1,"y" \n', 'a,b\n"1"x"y",2\n', 'a\n"1""\n'])
def test_csv_with_text_behind_a_quote_stops_the_job_and_is_not_mended(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read after row 0"):
        read(opened(FileSource(tmp_path, format="csv")))


def test_a_quote_within_a_cell_that_has_none_at_its_beginning_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,6" pipe\n2,"say ""hi"""\n')
    assert [row["b"] for row in read(opened(FileSource(tmp_path, format="csv")))] == ['6" pipe', 'say "hi"']


@pytest.mark.parametrize("text", ["a,a\n1,2\n", "a,b\n1\n", "a\n\xff\n"])
def test_csv_that_has_no_rows_of_its_columns_stops_the_job(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="cannot be read after row 0"):
        read(opened(FileSource(tmp_path, format="csv")))


def test_a_link_of_another_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead to a file that this user cannot read, and the job can."""
    source = tmp_path / "drop"
    source.mkdir()
    lines(tmp_path / "secret.jsonl", ORDERS)
    (source / "a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    assert read(opened(FileSource(source, value=Order))) == ORDERS

    ask = os.stat

    def stat_of_other(path: Any, **options: Any) -> os.stat_result:
        """The link and the directory belong to the one who drops files."""
        found = [*ask(path, **options)]
        if path == source or (not options.get("follow_symlinks", True) and path == source / "a.jsonl"):
            found[stat.ST_UID] = 12_345
        return os.stat_result(found)

    monkeypatch.setattr("os.stat", stat_of_other)
    monkeypatch.setattr("os.lstat", lambda path: stat_of_other(path, follow_symlinks=False))
    with pytest.raises(ConfigError, match=r"a\.jsonl is a link of user 12345 to a file of user"):
        read(opened(FileSource(source, value=Order)))


@pytest.mark.parametrize("name", ["a.jsonl", "day=1/a.jsonl"])
def test_a_link_that_takes_the_place_of_a_found_file_is_not_followed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads to a file with the size and the time of the one that was found."""
    source = tmp_path / "drop"
    (source / name).parent.mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    lines(tmp_path / "secret/a.jsonl", ORDERS)
    lines(source / name, ORDERS)
    secret = (tmp_path / "secret/a.jsonl").stat()
    os.utime(source / name, ns=(secret.st_atime_ns, secret.st_mtime_ns))
    reader = opened(FileSource(source, partitions=["day"] if "/" in name else []))
    (found,) = source.iterdir()
    found.rename(tmp_path / "taken")
    found.symlink_to(tmp_path / "secret" / (found.name if name == found.name else ""))

    def fstat(descriptor: int) -> os.stat_result:
        found = [*os.stat(descriptor)]
        found[stat.ST_UID] = 12_345 if stat.S_ISLNK(found[stat.ST_MODE]) else found[stat.ST_UID]
        return os.stat_result(found)

    monkeypatch.setattr("os.fstat", fstat)
    with pytest.raises(ConfigError, match="is a link of user 12345 to a file of user"):
        read(reader)


@pytest.mark.parametrize("by", ["path", "relative", "directory"])
def test_a_link_of_another_user_behind_one_of_the_job_is_not_followed(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns the linked file may put a link to another one in its place, or in that of its directory."""
    for name in ("drop", "partner", "secret"):
        (tmp_path / name).mkdir()
    lines(tmp_path / "secret/a.jsonl", ORDERS)
    outbox = tmp_path / "partner/outbox"
    if by == "directory":
        outbox.symlink_to(tmp_path / "secret")
    else:
        outbox.mkdir()
        (outbox / "a.jsonl").symlink_to(tmp_path / "secret/a.jsonl" if by == "path" else "../../secret/a.jsonl")
    (tmp_path / "drop/a.jsonl").symlink_to(outbox / "a.jsonl")
    source = FileSource(tmp_path / "drop", value=Order)
    assert read(opened(source)) == ORDERS

    def fstat(descriptor: int) -> os.stat_result:
        found = [*os.stat(descriptor)]
        if stat.S_ISLNK(found[stat.ST_MODE]) and "secret" in os.readlink("", dir_fd=descriptor):
            found[stat.ST_UID] = 12_345
        return os.stat_result(found)

    monkeypatch.setattr("os.fstat", fstat)
    with pytest.raises(ConfigError, match=r"partner/outbox.* is a link of user 12345 to a file of user"):
        read(opened(source))


def test_links_that_became_a_loop_are_an_error_of_the_system(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", ORDERS)
    (tmp_path / "a.txt").symlink_to("b.jsonl")
    reader = opened(FileSource(tmp_path, value=Order))
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.jsonl").symlink_to("a.txt")

    with pytest.raises(EnvironmentFailed, match="Too many levels of symbolic links"):
        read(reader)


def test_a_pipe_that_takes_the_place_of_a_found_file_is_refused_at_once(tmp_path: Path) -> None:
    """It never has a byte, nor an end."""
    file = tmp_path / "a.jsonl"
    file.touch()
    found = file.stat()
    reader = opened(FileSource(tmp_path, value=Order))
    file.unlink()
    os.mkfifo(file)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))

    with pytest.raises(ConfigError, match=r"a\.jsonl is not a file any more: put the file back"):
        read(reader)


@pytest.mark.parametrize(
    "target", ["gone", "{name}", "a.jsonl/below", "x" * 300], ids=["gone", "loop", "below", "long"]
)
def test_a_link_to_nothing_is_told_if_it_may_be_a_file_of_the_source(tmp_path: Path, target: str) -> None:
    """Others hide no file: everybody who may write to the directory can make one."""
    lines(tmp_path / "a.jsonl", ORDERS)
    (tmp_path / "note.txt").symlink_to(target.format(name="note.txt"))
    assert read(opened(FileSource(tmp_path, value=Order))) == ORDERS

    (tmp_path / "b.jsonl").symlink_to(target.format(name="b.jsonl"))
    with pytest.raises(ConfigError, match=r"b\.jsonl is a broken link: repair it, or remove it"):
        FileSource(tmp_path, value=Order).discover(CTX, None)


class Loose(pydantic.BaseModel):
    """A type that makes something of any row."""

    id: int = 0
    text: str = pydantic.Field("", validation_alias=pydantic.AliasChoices("text", "said"))


class Defaults(pydantic.BaseModel):
    id: int = 0
    note: str = pydantic.Field("", alias="text")


@pytest.mark.parametrize("ending", ["csv", "avro", "parquet"])
def test_a_file_with_none_of_the_columns_of_a_type_stops_the_job_and_gives_no_defaults(
    ending: str, tmp_path: Path
) -> None:
    WRITERS[ending](tmp_path / f"a.{ending}", ORDERS)
    other = msgspec.defstruct("Other", [("name", str, ""), ("amount", int, 0)])

    assert len(read(opened(FileSource(tmp_path, value=Defaults, format=ending)))) == 7
    assert len(read(opened(FileSource(tmp_path, value=Loose, format=ending)))) == 7
    with pytest.raises(
        ConfigError, match=r"the columns 'id', 'text', but none of them is a field of Other.*and restart"
    ):
        read(opened(FileSource(tmp_path, value=other, format=ending)))


def test_csv_without_a_line_of_names_stops_the_job(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,row 1\n2,row 2\n")
    with pytest.raises(ConfigError, match="the columns '1', 'row 1', but none of them is a field of Defaults"):
        read(opened(FileSource(tmp_path, value=Defaults, format="csv")))


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_text_begins_with_a_byte_order_mark_of_utf_8_or_is_refused_with_what_to_do(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    WRITERS[ending](path, ORDERS)
    text = path.read_text("utf-8")
    path.write_text(text, "utf-8-sig")
    assert read(opened(FileSource(tmp_path, value=Order, format=ending))) == ORDERS

    path.write_text(text, "utf-16")
    with pytest.raises(ConfigError, match=r"It is not in UTF-8: repair it"):
        read(opened(FileSource(tmp_path, value=Order, format=ending)))


# ---------------------------------------------------------------- directories of partitions


class Sale(msgspec.Struct):
    shop: str
    day: datetime.date
    hour: int | None = None


class Dated(msgspec.Struct, frozen=True):
    id: int
    day: str


def placed(directory: Path, name: str, rows: Sequence[Any], form: str) -> None:
    path = directory / f"{name}.{form}"
    path.parent.mkdir(parents=True, exist_ok=True)
    match form:
        case "parquet":
            pyarrow.parquet.write_table(pa.Table.from_pylist([*rows]), path)
        case "csv":
            path.write_text("shop\n" + "".join(f"{row['shop']}\n" for row in rows))
        case "avro":
            fields = [{"name": "shop", "type": "string"}]
            with path.open("wb") as file:
                fastavro.writer(file, {"type": "record", "name": "Sale", "fields": fields}, rows)
        case _:
            path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


@pytest.mark.parametrize("form", ["jsonl", "csv", "avro", "parquet"])
def test_directories_of_partitions_are_columns_of_their_rows(form: str, tmp_path: Path) -> None:
    placed(tmp_path, "day=2026-01-31/hour=5/a", [{"shop": "x"}, {"shop": "y"}], form)
    placed(tmp_path, "day=2026-02-01/hour=__HIVE_DEFAULT_PARTITION__/b", [{"shop": "z"}], form)
    placed(tmp_path, "day=2026-02-01/_temporary/hour=1/c", [{"shop": "not there yet"}], form)
    (tmp_path / "_SUCCESS").touch()
    source = FileSource(tmp_path, value=Sale, format=form, partitions=("day", "hour"))

    found = read(opened(source))

    days = datetime.date(2026, 1, 31), datetime.date(2026, 2, 1)
    assert found == [Sale("x", days[0], 5), Sale("y", days[0], 5), Sale("z", days[1], None)]
    plain = read(opened(FileSource(tmp_path, format=form, partitions=("day", "hour"))))
    assert plain[0] == {"day": "2026-01-31", "hour": "5", "shop": "x"}
    assert plain[2]["hour"] is None


def test_a_message_names_a_file_in_a_directory_of_a_partition_as_it_is(tmp_path: Path) -> None:
    placed(tmp_path, "day=2026-06-01/июнь 100%2F", [{"shop": 1}], "jsonl")
    source = FileSource(tmp_path, value=Sale, partitions=("day",))

    assert [*source.discover(CTX, None)] == ["day=2026-06-01/июнь 100%2F.jsonl/0"]
    with pytest.raises(PoisonRecord, match=r"day=2026-06-01/июнь 100%2F\.jsonl/0/0"):
        opened(source).poll(10, 0)


def test_a_row_that_has_the_column_itself_is_believed(tmp_path: Path) -> None:
    placed(tmp_path, "day=2026-01-31/a", [{"shop": "x", "day": "2020-01-01"}], "jsonl")
    assert read(opened(FileSource(tmp_path, partitions=("day",)))) == [{"shop": "x", "day": "2020-01-01"}]


def test_what_a_sink_writes_in_partitions_a_source_reads(tmp_path: Path) -> None:
    sink: FileSink[Order] = FileSink(
        tmp_path, value=Order, format="parquet", partition_by=lambda order: {"even": order.id % 2 == 0, "a": "b:/c"}
    )
    writer = sink.writer(TaskContext(CTX, 0, 1, "out", Services(), Epoch(1)))
    writer.write(Batch(ORDERS, range(len(ORDERS)), ListOrigin("in", "list", 0, 0, range(len(ORDERS)))))
    at = EpochId(Epoch(1), Term(1))
    committer = sink.committer(CTX)
    for committable in writer.seal(at)():
        committer.commit(CommitPermit(at), committable)

    rows = read(opened(FileSource(tmp_path, format="parquet", partitions=("even", "a"))))

    assert {row["id"]: (row["even"], row["a"]) for row in rows} == {
        order.id: ("true" if order.id % 2 == 0 else "false", "b:/c") for order in ORDERS
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a", "a.jsonl is not in a directory such as day=…"),
        ("shop=1/a", "shop=1/a.jsonl is not in a directory such as day=…"),
        ("day=/a", "is not in a directory such as day=…"),
    ],
)
def test_a_file_beside_the_partitions_is_neither_read_nor_left_out(name: str, said: str, tmp_path: Path) -> None:
    placed(tmp_path, name, [{"shop": "x"}], "jsonl")
    with pytest.raises(ConfigError, match=said):
        FileSource(tmp_path, partitions=("day",)).discover(CTX, None)


def test_a_partition_that_is_not_of_the_type_stops_the_job(tmp_path: Path) -> None:
    placed(tmp_path, "day=tomorrow/a", [{"shop": "x"}], "jsonl")
    reader = opened(FileSource(tmp_path, value=Sale, partitions=("day",)))
    with pytest.raises(ConfigError, match=r"day=tomorrow/a\.jsonl cannot be read: .*day=tomorrow: .*date"):
        read(reader)


def test_partitions_keep_the_contract(tmp_path: Path) -> None:
    def fresh() -> SourceUnderTest:
        directory = tmp_path / uuid.uuid4().hex
        rows = [Dated(n, f"2026-01-0{day}") for n, day in enumerate([1, 1, 2, 2, 2])]
        for day in {row.day for row in rows}:
            placed(directory, f"day={day}/a", [{"id": row.id} for row in rows if row.day == day], "jsonl")
        placed(directory, "day=2026-01-01/below/a", [{"id": 9}], "jsonl")

        def grow() -> Sequence[Any]:
            placed(directory, "day=2026-01-03/.a", [{"id": 9}], "jsonl")
            (directory / "day=2026-01-03/.a.jsonl").rename(directory / "day=2026-01-03/a.jsonl")
            return [Dated(9, "2026-01-03")]

        source = lambda: FileSource(directory, value=Dated, partitions=("day",), in_order=True)  # noqa: E731
        return SourceUnderTest(source, rows, append=grow, expire=(directory / "day=2026-01-02/a.jsonl").unlink)

    check_source(fresh)


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FileSource("gs://bucket/x"), "not in gs://"),
        (lambda: FileSource("x", partitions="day"), "list the directory levels"),
        (lambda: FileSource("x", partitions=("day", "day")), "contains a level twice"),
        (lambda: FileSource(""), "does not name a directory"),
        (lambda: FileSource("x", format="xml"), "FileSource reads jsonl, csv, avro and parquet"),
        (lambda: FileSource("x", files="a/*.jsonl"), "must not contain a slash"),
    ],
)
def test_what_makes_no_source_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_a_directory_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist: create the directory first"):
        FileSource(tmp_path / "none").discover(CTX, None)


def test_a_name_that_nobody_can_print_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a\n.jsonl").touch()
    with pytest.raises(ConfigError, match="contains unprintable characters"):
        FileSource(tmp_path).discover(CTX, None)


def test_positions_of_something_else_are_refused(source: FileSource[Order]) -> None:
    with pytest.raises(CorruptCheckpoint, match="not a position in a file"):
        source.discover(CTX, {SplitId("a.jsonl/0"): {"offset": 1}})


def test_only_names_that_match_are_read(tmp_path: Path) -> None:
    for name in ("part-1.txt", "other.txt"):
        (tmp_path / name).write_bytes(b"1\n")
    os.mkfifo(tmp_path / "part-pipe.txt")

    source = FileSource(tmp_path, value=int, files="part-*")
    assert [*source.discover(CTX, None)] == ["part-1.txt/0"]

    known = FileSource(tmp_path, value=int, files="*.txt").discover(CTX, None)
    assert source.discover(CTX, known) == known, "what the job has begun to read it reads to its end"


def test_with_an_end_only_files_that_are_there_at_the_first_start_are_read(tmp_path: Path) -> None:
    source = FileSource(tmp_path, value=Order, until="latest")
    with pytest.raises(ConfigError, match="no file that matches"):
        source.discover(CTX, None)
    assert FileSource(tmp_path, value=Order).discover(CTX, None) == {}, "without an end, files may come later"
    lines(tmp_path / "a.jsonl", ORDERS[:3])
    known = source.discover(CTX, None)
    lines(tmp_path / "b.jsonl", ORDERS[3:])

    assert source.discover(CTX, known) == known
    reader = opened(source, known)
    assert read(reader) == ORDERS[:3] and reader.has_reached(source.bounds(known) or {})
    assert source.bounds(reader.positions()) == source.bounds(known) == reader.positions()
    assert FileSource(tmp_path, value=Order).bounds(known) is None
    shutil.rmtree(tmp_path)
    assert source.discover(CTX, reader.positions()) == reader.positions(), "what was read may go"
    with pytest.raises(ConfigError, match="create the directory first"):
        source.discover(CTX, known)


@pytest.mark.parametrize("in_order", [True, False])
def test_files_are_read_in_the_order_of_their_names_and_only_with_an_order_one_that_waits_holds_back_the_others(
    tmp_path: Path, in_order: bool
) -> None:
    for number, name in enumerate(("a.jsonl", "a.jsonl-1.jsonl", "b.jsonl")):
        lines(tmp_path / name, ORDERS[number : number + 1])
    source = FileSource(tmp_path, value=Order, in_order=in_order)
    reader = opened(source)
    assert read(opened(source)) == ORDERS[:3]

    reader.pause([SplitId("a.jsonl/0")])
    before = read(reader)
    reader.pause([])

    assert (before, read(reader)) == (([], ORDERS[:3]) if in_order else (ORDERS[1:3], ORDERS[:1]))


@pytest.mark.parametrize(
    ("in_order", "waited_for"),
    [(True, ["a-1", "a-1", "a", "b"]), (False, ["a a-1 b", "a a-1 b", "a b", "b"])],
)
def test_event_time_waits_for_the_file_at_hand_and_without_an_order_for_all_that_are_left(
    tmp_path: Path, in_order: bool, waited_for: list[str]
) -> None:
    """A file is over when its end has been seen, which is at the next read."""
    for number, name in enumerate(("a-1", "a", "b")):
        lines(tmp_path / f"{name}.jsonl", ORDERS[number : number + 1])
    source = FileSource(tmp_path, value=Order, in_order=in_order)
    reader = opened(source)
    waits: list[str] = []
    for _ in waited_for:
        at = reader.positions()
        waits.append(
            " ".join(sorted(name.removesuffix(".jsonl/0") for name in at.keys() - source.list_excluded_splits(at)))
        )
        reader.poll(1, 0)

    assert waits == waited_for


# ---------------------------------------------------------------- a whole job

APP = """
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink, FileSource

pipeline = Pipeline("files", checkpoint_dir="checkpoints", state_dir="state", parallelism=2, batch_size=20)
(
    pipeline.source(FileSource("in", value=dict[str, int]), name="in")
    .key_by(lambda row: row["id"] % 3)
    .fold(name="count", init=lambda: 0, step=lambda count, row: count + 1, emit=lambda key, count: {"n": [key, count]})
    .sink(FileSink("out"), name="out")
)
"""


def test_a_job_reads_each_row_once_also_when_its_worker_and_its_supervisor_die(tmp_path: Path) -> None:
    """And a file that comes between two runs; a third run has nothing to do."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "in").mkdir()
    rows = [msgspec.json.encode({"id": n}) + b"\n" for n in range(300)]
    for number in range(5):
        (tmp_path / "in" / f"{number}.jsonl").write_bytes(b"".join(rows[50 * number : 50 * number + 50]))
    run_app(tmp_path, "worker.ack.before=kill;commit.before=kill", -signal.SIGKILL)
    (tmp_path / "in" / "5.jsonl").write_bytes(b"".join(rows[250:]))
    run_app(tmp_path, "worker.ack.before=kill")
    run_app(tmp_path)

    lines_ = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_bytes().splitlines()]
    assert sorted(msgspec.json.decode(line)["n"] for line in lines_) == sorted(
        [key, count] for key in range(3) for count in range(1, 101)
    )


def run_app(directory: Path, failpoints: str = "", code: int = 0, **environment: str) -> None:
    """``runtime/program.py`` of the directory, until it has read all."""
    log = directory / f"hits-{uuid.uuid4().hex}"
    told = {"KAFKA_EOS_FAILPOINTS": failpoints, "KAFKA_EOS_FAILPOINT_LOG": str(log)} if failpoints else {}
    command = [sys.executable, "-m", "kafka_eos", "run", "app.py", "--until-caught-up"]
    environ = os.environ | told | environment
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    assert len(log.read_text().splitlines() if failpoints else []) == failpoints.count("=")
