"""Files that claim more than they hold, or unpack to more than memory holds, are an error with file and row."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import zlib
from collections.abc import Callable
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from kafka_eos.connectors.files import FileSource
from kafka_eos.connectors.files.formats.avro_format import _bytes as sized
from kafka_eos.connectors.files.formats.avro_format import _long as long
from kafka_eos.connectors.files.source import reader as reader_module
from kafka_eos.connectors.files.source.parquet_pages import rows_at_once
from kafka_eos.connectors.files.source.row_formats import read_format
from kafka_eos.core.errors import ConfigError
from tests.contract.test_file_source import ORDERS, WRITERS, Order, lines, opened, read
from tests.unit.codecs.test_hostile import Memory

SYNC = bytes(range(16))
MIB = 1 << 20
NEWLINE = "\n"
TEXTS = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}
NODES = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
NULLS = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
EMPTY = {"type": "record", "name": "R", "fields": []}
DEEP = '{"type":"array","items":' * 5_000 + '"int"' + "}" * 5_000


def header(schema: Any, codec: str = "null") -> bytes:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return (
        b"Obj\x01" + long(2) + sized(b"avro.schema") + sized(text.encode())
        + sized(b"avro.codec") + sized(codec.encode()) + long(0) + SYNC
    )  # fmt: skip


def block(count: int, data: bytes) -> bytes:
    return long(count) + sized(data) + SYNC


def deflated(data: bytes) -> bytes:
    return zlib.compress(data, 9, wbits=-15)


def in_snappy(data: bytes) -> bytes:
    return pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "deflate": deflated,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "snappy": in_snappy,
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "values nested a hundred thousand deep": (header(NODES) + block(1, b"\x02" * 100_000 + b"\0"), "recursion"),
    "an array of values that take no bytes": (
        header(NULLS) + block(1, long(1 << 40) + long(0)),
        "any number of values",
    ),
    "rows that take no bytes": (header(EMPTY) + block(1 << 40, b""), "any number of values"),
    "a text that says it has a terabyte": (header(TEXTS) + block(1, long(1 << 40)), "Expected 1099511627776 bytes"),
    "a text of less than nothing": (header(TEXTS) + block(1, b"\x01"), "-1"),
    "a block that says it has a terabyte": (header(TEXTS) + long(1) + long(1 << 40), "largest_part"),
    "a block of less than nothing": (header(TEXTS) + long(1) + b"\x01", "an invalid size"),
    "a name that says it has a terabyte": (b"Obj\x01" + long(1) + long(1 << 40), "largest_part"),
    "a name of less than nothing": (b"Obj\x01" + long(1) + b"\x01", "a negative size"),
    "a schema nested five thousand deep": (header(DEEP), "recursion"),
    "a block of no records with bytes": (header(TEXTS) + block(0, sized(b"a")), "more bytes than its records"),
    "more bytes than records": (header(TEXTS) + block(1, sized(b"a") * 2), "more bytes than its records"),
    "a block that ends otherwise": (
        header(TEXTS) + block(1, sized(b"a"))[:-1] + b"x",
        "does not end with the sync marker",
    ),
    "a block that is cut off": (header(TEXTS) + block(1, sized(b"a"))[:-1], "it is cut off"),
    "blocks that nobody can unpack": (header(TEXTS, "own") + block(1, sized(b"a")), "compressed with 'own'"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_of_avro_is_named_and_takes_no_memory(what: str, tmp_path: Path) -> None:
    refused(tmp_path, *HOSTILE[what])


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_of_avro_that_unpacks_to_far_too_much_takes_no_memory(codec: str, tmp_path: Path) -> None:
    refused(tmp_path, header(TEXTS, codec) + block(1, PACKED[codec](sized(bytes(64 * MIB)))), "largest_part")


def refused(directory: Path, data: bytes, wrong: str) -> None:
    """A file of Avro with that data."""
    (directory / "a.avro").write_bytes(data)
    reader = opened(FileSource(directory, format="avro", largest_part=MIB))

    memory = Memory.watched()
    with pytest.raises(ConfigError, match=rf"a\.avro cannot be read after row 0: .*{wrong}.*Nothing was skipped"):
        read(reader)
    assert memory.most < 32 * MIB
    assert reader.list_splits_at_end() == []


@pytest.mark.parametrize("codec", PACKED)
def test_blocks_of_avro_may_be_packed_in_all_of_its_ways(codec: str, tmp_path: Path) -> None:
    pack = PACKED[codec]
    rows = [block(2, pack(sized(b"a") + sized(b"b"))), block(1, pack(sized(b"c")))]
    (tmp_path / "a.avro").write_bytes(header(TEXTS, codec) + b"".join(rows))

    found = read(opened(FileSource(tmp_path, format="avro")))

    assert found == [{"text": "a"}, {"text": "b"}, {"text": "c"}]


def test_a_file_of_avro_is_read_from_any_row_on(tmp_path: Path) -> None:
    texts = ["a", "b", "c", "d", "e"]
    blocks = [block(len(some), b"".join(sized(each.encode()) for each in some)) for some in (texts[:2], [], texts[2:])]
    (tmp_path / "a.avro").write_bytes(header(TEXTS) + b"".join(blocks))
    rows = read_format("avro", None, largest=MIB).rows

    for first in range(7):
        assert [row["text"] for row in rows(tmp_path / "a.avro", first)] == texts[first:]


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


BOMBS: dict[str, Callable[[], pa.Table]] = {
    "a page of one text": lambda: table(a=pa.array(["x" * (64 * MIB)])),
    "a page of a list with one text": lambda: table(a=pa.array([["x" * (64 * MIB)]])),
    "pages of many columns": lambda: table(**{f"a{n}": pa.array(["x" * MIB]) for n in range(64)}),
    "a list of nulls": lambda: table(a=pa.ListArray.from_arrays([0, 10_000_000], pa.nulls(10_000_000, pa.int8()))),
}


def lists(*lengths: int) -> pa.Table:
    """A column of lists of so many numbers each, which do not pack well: they take many pages."""
    offsets = list(accumulate(lengths, initial=0))
    numbers = pa.array(random.Random(1).choices(range(1 << 60), k=offsets[-1]), pa.int64())
    return table(a=pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), numbers))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_one_row_of_parquet_that_goes_on_through_many_pages_is_named(
    compression: str, version: str, tmp_path: Path
) -> None:
    """Rows like those before it are read, however many there are."""
    options: Any = {"compression": compression, "data_page_version": version, "use_dictionary": False}
    pyarrow.parquet.write_table(lists(*[3] * 1000, 600_000, 3), tmp_path / "a.parquet", **options)
    pyarrow.parquet.write_table(lists(*[300] * 2000), tmp_path / "b.parquet", **options)
    a, b = (
        FileSource(tmp_path, format="parquet", files=name, largest_part=4 * MIB) for name in ("a.parquet", "b.parquet")
    )

    with pytest.raises(
        ConfigError, match=r"a\.parquet cannot be read after row 0: PartTooLarge: .*limit of largest_part="
    ):
        read(opened(a))
    assert len(read(opened(b), 2000)) == 2000


def test_no_more_rows_of_parquet_are_unpacked_at_once_than_is_allowed(tmp_path: Path) -> None:
    """Each has a page of its own, which the file holds in a few bytes."""
    pyarrow.parquet.write_table(
        table(a=["x" * (4 * MIB)] * 64), tmp_path / "a.parquet", compression="zstd", use_dictionary=False,
        data_page_size=1, write_batch_size=1,
    )  # fmt: skip
    assert (tmp_path / "a.parquet").stat().st_size < MIB
    reader = opened(FileSource(tmp_path, format="parquet", largest_part=16 * MIB))

    memory = Memory.watched()
    assert [len(row["a"]) for row in read(reader, 4)] == [4 * MIB] * 4
    assert memory.most < 96 * MIB


@pytest.mark.parametrize("what", BOMBS)
def test_a_hostile_file_of_parquet_is_named_and_takes_no_memory(what: str, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(BOMBS[what](), tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    assert (tmp_path / "a.parquet").stat().st_size < MIB
    reader = opened(FileSource(tmp_path, format="parquet", largest_part=16 * MIB))

    memory = Memory.watched()
    with pytest.raises(
        ConfigError, match=r"a\.parquet cannot be read after row 0: PartTooLarge: .*limit of largest_part="
    ):
        read(reader)
    assert memory.most < 48 * MIB


def test_a_large_value_that_a_file_of_parquet_has_once_is_not_unpacked_for_all_its_rows(tmp_path: Path) -> None:
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 8192, pa.int32()), ["x" * MIB])
    pyarrow.parquet.write_table(table(a=repeated), tmp_path / "a.parquet", compression="zstd")
    reader = opened(FileSource(tmp_path, format="parquet", largest_part=16 * MIB))

    memory = Memory.watched()
    assert [len(row["a"]) for row in read(reader, 4)] == [MIB] * 4
    assert memory.most < 96 * MIB


@pytest.mark.parametrize(("length", "rows"), [(1, 4096), (MIB // 4, 64), (MIB, 16)])
def test_of_rows_that_share_a_value_only_as_many_are_unpacked_at_once_as_fit(
    length: int, rows: int, tmp_path: Path
) -> None:
    path, repeated = (
        tmp_path / "a.parquet",
        pa.DictionaryArray.from_arrays(pa.array([0] * 10, pa.int32()), ["x" * length]),
    )
    pyarrow.parquet.write_table(table(a=repeated, b=[None] * 10), path, compression="zstd")

    with pyarrow.parquet.ParquetFile(path) as file:
        assert [rows_at_once(path, file, 0, [name], 16 * MIB, 4096) for name in ("a", "b")] == [rows, 4096]


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xff\xff\xff", b"\x15\x00\x15\x02\x15\x02\x25\x02\x00"],
    ids=["no header", "a number in place of the part about its data"],
)
def test_a_page_of_parquet_with_a_damaged_header_is_named(damage: bytes, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(table(a=[1, 2, 3]), tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4 : 4 + len(damage)] = damage
    (tmp_path / "a.parquet").write_bytes(data)

    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read after row 0: .*header of a page"):
        read(opened(FileSource(tmp_path, format="parquet")))


def test_a_row_of_csv_may_be_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,text\n1,{'x' * (3 * MIB)}\n2,y\n")

    assert [len(row["text"]) for row in read(opened(FileSource(tmp_path, format="csv")))] == [3 * MIB, 1]


@pytest.mark.parametrize("character", ["x", "✓"], ids=["of bytes", "of characters"])
def test_a_row_of_csv_that_is_too_long_says_what_to_do(character: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,text\n1,{character * (2 * MIB)}\n2,y\n")

    with pytest.raises(
        ConfigError, match=r"a\.csv cannot be read after row 0: .*limit of largest_part=.*raise the limit"
    ):
        read(opened(FileSource(tmp_path, format="csv", largest_part=MIB)))


# ---------------------------------------------------------------- how much one read takes


@pytest.mark.limits(bytes_per_file_read=4000, rows_per_file_read=2)
@pytest.mark.parametrize("ending", WRITERS)
def test_a_read_takes_a_number_of_bytes_however_many_rows_it_may_take(ending: str, tmp_path: Path) -> None:
    """Rows that are packed well would fill the memory: 5,000 of 16 MiB each are a file of 80 MB."""
    orders = [Order(number, f"{number}" * 300) for number in range(10, 40)]
    WRITERS[ending](tmp_path / f"a.{ending}", orders)
    reader = opened(FileSource(tmp_path, value=Order, format=ending.split(".")[0]))

    reads = []
    while (batch := reader.poll(1000, 0)) is not None:
        reads.append(batch.values)

    assert list(chain.from_iterable(reads)) == orders
    assert max(map(len, reads)) <= 8


@pytest.mark.limits(bytes_per_file_read=10_000)
@pytest.mark.parametrize("ending", ["jsonl.gz", "csv.gz"])
def test_empty_lines_end_a_poll_and_count_for_the_row_behind_them(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_LONGEST", 0.0)
    form = ending.split(".")[0]
    names, row = ("id,text\n", "1,x\n") if form == "csv" else ("", '{"id": 1, "text": "x"}\n')
    (tmp_path / f"a.{ending}").write_bytes(gzip.compress(f"{names}{row}{NEWLINE * 900}{row}".encode()))
    reader = opened(FileSource(tmp_path, value=Order, format=form, largest_part=1000))

    polls = [reader.poll(1000, 0) for _ in range(9)]

    assert [len(batch.values) for batch in polls if batch is not None] == [1, 1]
    assert polls.index(None) < max(at for at, batch in enumerate(polls) if batch is not None)

    (tmp_path / f"b.{ending}").write_bytes(gzip.compress(f"{names}{row}{NEWLINE * 1100}{row}".encode()))
    with pytest.raises(ConfigError, match=r"b\..*cannot be read after row 1: .*limit of largest_part="):
        read_on(opened(FileSource(tmp_path, value=Order, format=form, files=f"b.{ending}", largest_part=1000)))


def test_files_without_rows_end_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint waits for a poll, and 50,000 of them took longer than it may."""
    monkeypatch.setattr(reader_module, "_LONGEST", 0.0)
    for number in range(3):
        (tmp_path / f"{number}.jsonl").touch()
    lines(tmp_path / "9.jsonl", ORDERS[:1])
    reader = opened(FileSource(tmp_path, value=Order))

    polls = [reader.poll(1000, 0) for _ in range(4)]

    assert [batch and batch.values for batch in polls] == [None, None, None, ORDERS[:1]]


def read_on(reader: Any) -> None:
    for _ in range(100):
        reader.poll(1000, 0)
