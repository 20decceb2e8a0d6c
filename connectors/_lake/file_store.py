"""The storage of a lake table's files: the interface, and a local directory.

Rule: every step that others rely on is durable when it returns. ``file_names`` defines the names.
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
from kafka_eos.connectors._shared.parquet_files import OpenFile, open_parquet, read_batches, read_footer
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.sink.file_staging import StagedFile
from kafka_eos.core.errors import ConfigError


class TableStore(Protocol):
    """The files of one lake table. Raises OSError; names are relative to its root."""

    def begin(self, name: str) -> StagedFile:
        """Create a file that is durable, with its directory entry, once it is finished."""

    def create(self, name: str) -> None:
        """Create an empty file in ``CONTROL`` unless it exists."""

    def delete(self, name: str) -> None:
        """Delete a file. An absent file is ignored."""

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""

    def columns(self, name: str) -> pa.Schema:
        """Return the schema of a file with rows."""

    def footer(self, name: str) -> pq.FileMetaData:
        """Return the Parquet metadata of a data file."""

    def rows(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in order, with those of the columns that it has.

        Raises ConfigError if the file contradicts itself.
        """

    def notes(self) -> Mapping[str, float]:
        """Return the names in ``CONTROL``, without its directory, with their times in seconds since 1970."""


class LocalStore:
    """The files of a lake table in a local directory."""

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
        return read_footer(self._root / name)

    def rows(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from read(self._root / name, str(self._root / name), columns)

    def notes(self) -> Mapping[str, float]:
        directory = self._root / CONTROL
        if not directory.is_dir():
            return {}
        found = {}
        for entry in os.scandir(directory):
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return dict(sorted(found.items()))


def read(source: Path | OpenFile, name: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, see ``TableStore.rows``; without ``columns`` all of its columns.

    ``name``: its name, for messages.
    """
    try:
        with open_parquet(source) as file:
            has = file.schema_arrow.names
            yield from read_batches(file, has if columns is None else [each for each in columns if each in has])
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and (error.errno is not None or not isinstance(source, Path)):
            raise  # the store of an open file has errors without a number
        cause = " ".join(str(error).split())
        raise ConfigError(f"{name} is damaged: {cause}. Restore the file as it was written") from error


class UnfinishedFile:
    """A local file that is written and counted until it is finished or discarded."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size = 0
        self._file: IO[bytes] | None = file

    def write(self, data: bytes, /) -> int:
        if self._file is not None:  # a library may still write a footer after ``discard``
            self._file.write(data)
            self.size += len(data)
        return len(data)

    def discard(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class _LocalFile(UnfinishedFile):
    """A new local file of the table."""

    def __init__(self, path: Path) -> None:
        super().__init__(open(path, "xb"))  # noqa: SIM115 - open until the file is finished
        self._path = path

    def finish(self) -> None:
        assert self._file is not None
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        self._file = None
        disk.sync_directory(self._path.parent)
