"""Files that the audit reads with the sink's own reader: damage is a torn row, whatever the reader raises at it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.audit.tables.file_formats import _rows
from kafka_eos.connectors.files import Avro, Csv, FileSink, JsonLines, Parquet
from kafka_eos.connectors.files.formats import Format
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

FIRST = EpochId(Epoch(1), Term(1))
FORMATS = [
    JsonLines(compression="gzip"),
    Csv(),
    Csv(compression="gzip"),
    Avro(),
    *(Parquet(compression=each) for each in ("snappy", "zstd", "gzip")),
]
DAMAGED = 150


class Line(msgspec.Struct):
    id: int
    text: str


def written(directory: Path, form: Format) -> tuple[FileSink, Path]:
    sink = FileSink(directory, value=Line, format=form, envelope=True)
    values = [Line(n, f'"{n}", and\nthen {n * n}') for n in range(200)]
    writer = sink.writer(TaskContext(JobContext("orders", Term(1), {}), 0, 1, "out"))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values))))
    (committable,) = writer.seal(FIRST)()
    staged = directory / str(committable.payload["staged"])
    return sink, staged.rename(directory / str(committable.payload["final"]))


def damaged(whole: bytes, luck: random.Random) -> bytes:
    """Cut, filled with zeros, or with some other bytes in its midst."""
    at = luck.randrange(len(whole))
    match luck.randrange(3):
        case 0:
            return whole[:at]
        case 1:
            return whole[:at] + bytes(len(whole) - at)
    return whole[:at] + luck.randbytes(luck.randrange(1, 9)) + whole[at:][8:]


def read(sink: FileSink, path: Path) -> Iterator[dict[str, Any]]:
    file = {"node": "out", "name": path.name, "subtask": 0, "epoch": 1, "marked": True}
    return (row for batch in _rows(sink, file) for row in batch.to_pylist())


@pytest.mark.parametrize("form", FORMATS, ids=repr)
def test_no_damage_breaks_the_audit_off(tmp_path: Path, form: Format) -> None:
    sink, path = written(tmp_path, form)
    rows, whole, luck = list(read(sink, path)), path.read_bytes(), random.Random(7)
    assert (len(rows), sum(row["torn"] for row in rows)) == (200, 0)

    torn = 0
    for _ in range(DAMAGED):
        path.write_bytes(damaged(whole, luck))
        torn += any(row["torn"] for row in read(sink, path))

    assert torn > DAMAGED // 3


def test_a_file_that_is_gone_or_not_readable_breaks_it_off(tmp_path: Path) -> None:
    sink, path = written(tmp_path, Csv())
    os.rename(path, path.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError):
        list(read(sink, path))

    path.mkdir()
    with pytest.raises(IsADirectoryError):
        list(read(sink, path))
