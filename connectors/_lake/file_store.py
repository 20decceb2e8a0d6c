"""Where a lake table's files lie: what a format asks of it, and a directory.

Rule: every step that others rely on is durable when it returns. What a name means is in ``names``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.sink.staging import StagedFile


class Store(Protocol):
    """The place of one table. Raises OSError. Names are below its root."""

    def begin(self, name: str) -> StagedFile:
        """A file that is durable, its entry too, once it is finished."""

    def create(self, name: str) -> None:
        """An empty file in ``CONTROL``, which may be there."""

    def delete(self, name: str) -> None:
        """One that is not there is fine."""

    def size(self, name: str) -> int | None:
        """None if there is none."""

    def columns(self, name: str) -> pa.Schema:
        """Of a file with rows."""

    def footer(self, name: str) -> pq.FileMetaData:
        """Of a data file."""

    def rows(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Of a file with rows, those of the columns that it has, in the order of the rows."""

    def notes(self) -> Mapping[str, float]:
        """What is in ``CONTROL``, without its directory, and when each came there, in seconds since 1970."""


class LocalStore:
    """A directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def begin(self, name: str) -> StagedFile:
        path = self._root / name
        disk.create_directory(path.parent)
        return _LocalFile(path)

    def create(self, name: str) -> None:
        path = self._root / name
        disk.create_directory(path.parent)
        if disk.create_empty(path):
            disk.sync_directory(path.parent)

    def delete(self, name: str) -> None:
        path = self._root / name
        try:
            path.unlink()
        except FileNotFoundError:
            return
        disk.sync_directory(path.parent)

    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).lstat().st_size
        except FileNotFoundError:
            return None

    def columns(self, name: str) -> pa.Schema:
        return pq.read_schema(self._root / name)

    def footer(self, name: str) -> pq.FileMetaData:
        return pq.read_metadata(self._root / name)

    def rows(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from read(self._root / name, columns)

    def notes(self) -> Mapping[str, float]:
        directory = self._root / CONTROL
        if not directory.is_dir():
            return {}
        found = {}
        for entry in os.scandir(directory):
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return dict(sorted(found.items()))


def read(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """See ``Store.rows``. Times of 96 bits, as Spark writes them, may lie behind 2262, where nanoseconds end."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        has = set(file.schema_arrow.names)
        yield from file.iter_batches(columns=[name for name in columns if name in has])


class Unfinished:
    """A file of this machine that is written and counted, until it is finished or let go."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size = 0
        self._file: IO[bytes] | None = file

    def write(self, data: bytes, /) -> int:
        if self._file is not None:  # a library may write an end to what was let go
            self._file.write(data)
            self.size += len(data)
        return len(data)

    def let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class _LocalFile(Unfinished):
    """A new file of the table."""

    def __init__(self, path: Path) -> None:
        super().__init__(open(path, "xb"))  # noqa: SIM115 - lives until the file is finished
        self._path = path

    def finish(self) -> None:
        assert self._file is not None
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        self._file = None
        disk.sync_directory(self._path.parent)
