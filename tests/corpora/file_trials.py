"""Trials of binary files: Avro and Parquet, each read in a process of its own kind, which may die of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pandas
import pyarrow.parquet

from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.connectors.files import FileSource
from kafka_eos.core.errors import KafkaEosError
from tests.contract.carriers import JOB, is_same
from tests.corpora.outcomes import AT_ODDS, Outcome


def try_avro(home: Path) -> Iterator[Outcome]:
    """Containers by several implementations, and schemas."""
    files = sorted((home / "share/test").rglob("*.avro*"))
    containers = [path for path in files if path.read_bytes().startswith(b"Obj\1") and path.suffix != ".avsc"]
    yield from _try_files("containers", "avro", [(path, False) for path in containers])
    for path in sorted((home / "share/test/schemas").glob("*.avsc")):
        try:
            parse_schema(json.loads(path.read_bytes()))
        except ValueError as error:
            yield Outcome("schemas", "refused", f"{path.name}: {error}", wrong=True)
        else:
            yield Outcome("schemas", "parsed", path.name)


def try_parquet(home: Path) -> Iterator[Outcome]:
    """Files of all encodings and types, and damaged files, which must be refused by their name."""
    files = sorted(home.rglob("*.parquet"))
    damaged = [path for path in files if "bad_data" in path.parts or "corrupt" in path.name or path.name in AT_ODDS]
    yield from _try_files("files", "parquet", [(path, False) for path in files if path not in damaged])
    yield from _try_files("damaged files", "parquet", [(path, True) for path in damaged])


def _try_files(group: str, form: str, paths: list[tuple[Path, bool]]) -> Iterator[Outcome]:
    pool = ProcessPoolExecutor(1, get_context("spawn"))
    for path, damaged in paths:
        try:
            what, wrong = pool.submit(read_file, path, form, damaged).result()
        except BrokenProcessPool:
            what, wrong, pool = "killed the process", True, ProcessPoolExecutor(1, get_context("spawn"))
        yield Outcome(group, what, path.name, wrong)
    pool.shutdown()


def read_file(path: Path, form: str, damaged: bool) -> tuple[str, bool]:
    """Return what becomes of a file, and whether that is wrong."""
    rejected = list[int]()
    with TemporaryDirectory() as directory:
        copy = Path(directory) / f"file.{form}"
        shutil.copy(path, copy)
        try:
            rows = _read(FileSource[Any](Path(directory), format=form), rejected)
        except KafkaEosError as error:
            may_be = damaged or _expected(copy, form) is None
            return f"refused: {type(error).__name__}", not may_be or copy.name not in str(error)
        expected = _expected(copy, form)
    if expected is None:
        return "read, though its library refuses it", False
    if len(rows) + len(rejected) != len(expected):
        return f"{len(rows)} rows and {len(rejected)} rejected of {len(expected)}", True
    kept = [row for number, row in enumerate(expected) if number not in set(rejected)]
    if not all(map(is_same, rows, kept)):
        return "read as other values", True
    return "read, some rows rejected" if rejected else "read", False


def _read(source: FileSource[Any], rejected: list[int]) -> list[Any]:
    services = Services(reject_record=lambda operator, raw, error: rejected.append(raw.offset))
    positions, ends, rows = source.discover(JOB, None), source.get_end_positions(JOB), list[Any]()
    reader = source.reader(TaskContext(JOB, 0, 1, "in", services), positions)
    while not reader.has_reached(ends):
        batch = reader.poll(1000, 0.1)
        rows += [] if batch is None else batch.values
    reader.close()
    return rows


def _expected(path: Path, form: str) -> list[Any] | None:
    try:
        if form == "avro":
            with path.open("rb") as file:
                return [*fastavro.reader(file)]
        rows = (
            pyarrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
            .read()
            .to_pylist(maps_as_pydicts="strict")
        )
        return [{name: _without_pandas(cell) for name, cell in row.items()} for row in rows]
    except Exception:  # noqa: BLE001 - a library raises what it likes for a file that it cannot read
        return None


def _without_pandas(cell: Any) -> Any:
    return cell.to_pydatetime() if isinstance(cell, pandas.Timestamp) else cell
