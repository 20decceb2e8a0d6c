"""Files that anybody may drop into a directory: Avro, Parquet, CSV and JSON lines."""

from __future__ import annotations

import csv
import gzip
import lzma
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kafka_eos.connectors.files.source.bounded_reads import PartTooLarge
from kafka_eos.connectors.files.source.row_formats import read_format
from tests.bombs import Attempt
from tests.bombs.schemas import _AvroMaker, number, record
from tests.contract.test_hostile_files import PACKED, block, header, long
from tests.unit.codecs.test_hostile import changed

LARGEST = 1 << 20
ROWS = 200
"""Rows that are read of each file."""


def of_files(ending: str, make: Callable[[random.Random], bytes], chance: random.Random) -> Iterator[Attempt]:
    """Attempts to read a file that ``FileSource`` would take for that format. What a damaged file raises is wrapped
    there."""
    rows = read_format(ending.split(".")[0], None, largest=LARGEST).rows
    path = Path(tempfile.mkdtemp()) / f"a.{ending}"
    while True:
        data = make(chance)

        def attempt(data: bytes = data) -> None:
            path.write_bytes(data)
            try:
                for _ in islice(rows(path, 0), ROWS):
                    pass
            except (ValueError, OSError, EOFError, RecursionError, ArithmeticError, LookupError, TypeError) as error:
                raise ValueError(str(error)) from error
            except (pa.ArrowException, csv.Error, zlib.error, lzma.LZMAError, PartTooLarge) as error:
                raise ValueError(str(error)) from error

        yield attempt


def avro_file(chance: random.Random) -> bytes:
    packing = chance.choice(("null", *PACKED))
    pack = PACKED.get(packing, bytes)
    data = header(_AvroMaker(chance).top(), packing)
    for _ in range(chance.randrange(3)):
        body = record(chance) if chance.random() < 0.8 else bytes(8 * LARGEST)
        data += block(chance.choice((0, 1, 5, 1 << 40)), pack(body))
    return broken(data, chance)


def csv_file(chance: random.Random) -> bytes:
    columns = number(chance) * chance.choice((1, 100))
    names = ",".join(f"{n:x}" for n in range(columns + 1))
    cell = chance.choice(("", "x", '"', '""', '"\n"', "x" * 1000, "\0", "✓"))
    row = ",".join([cell] * (columns + 1))
    data = "\n".join([names, *[row] * min(number(chance), 200_000 // (len(row) + 1))]).encode()
    return broken(data, chance)


def json_lines(chance: random.Random) -> bytes:
    part = chance.choice((b"[", b'{"a":', b"9", b'"', b"\\u0000", b"[1,", b"-", b"1e", b"\xff", b"\n", b" "))
    return broken(b'{"a": 1}\n' + part * (number(chance) * chance.choice((1, 1000))) + b"\n{}", chance)


def packed_lines(chance: random.Random) -> bytes:
    data = chance.choice((json_lines(chance), bytes(4 * LARGEST), b"{}\n" * LARGEST))
    return broken(gzip.compress(data, 1), chance)


def parquet_file(chance: random.Random) -> bytes:
    count = number(chance)
    columns: Mapping[str, Callable[[], Any]] = {
        "numbers": lambda: pa.array(range(count * 10)),
        "texts": lambda: pa.array(["x" * chance.choice((1, 10_000))] * count),
        "a large text": lambda: pa.array(["x" * (2 * LARGEST)] * min(count, 5)),
        "nulls": lambda: pa.nulls(count * 30, pa.int8()),
        "a list": lambda: pa.ListArray.from_arrays([0, count * 30], pa.nulls(count * 30, pa.int8())),
        "repeated": lambda: pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * (LARGEST // 32)]),
        "nested": lambda: pa.nulls(1, nested(min(count, 120))),
        "times": lambda: pa.array([chance.randrange(1 << 62) for _ in range(count)], pa.timestamp("ns")),
    }
    column = columns[chance.choice([*columns])]()
    options: dict[str, Any] = {
        "compression": chance.choice(("none", "zstd", "snappy", "gzip")),
        "data_page_version": chance.choice(("1.0", "2.0")),
        "use_dictionary": chance.random() < 0.5,
        "write_batch_size": chance.choice((1, 1024)),
        "data_page_size": chance.choice((1, 1 << 20)),
    }
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({f"c{n}": column for n in range(chance.choice((1, 3)))}), sink, **options)
    return broken(bytes(sink.getvalue()), chance)


def nested(levels: int) -> pa.DataType:
    tp = pa.int8()
    for level in range(levels):
        tp = pa.struct([("a", tp)]) if level % 2 else pa.list_(tp)
    return tp


def broken(data: bytes, chance: random.Random) -> bytes:
    """As it is, with some bytes changed, or cut off."""
    match chance.randrange(4) if data else 0:
        case 0 | 1:
            return data
        case 2:
            return changed(data, chance)
        case _:
            return data[: chance.randrange(len(data) + 1)] + long(1 << 40) * chance.randrange(3)
