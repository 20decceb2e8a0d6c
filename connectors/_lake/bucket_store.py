"""A bucket prefix as the storage of a lake table's files.

A data file is uploaded in one request once it is complete; until then it is on local disk. So a process that dies
leaves no upload.
Rule: an object in the bucket is durable, and complete or absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors._lake.file_store import UnfinishedFile, read
from kafka_eos.connectors._shared.parquet_files import read_footer
from kafka_eos.connectors.files.s3.bucket import Bucket


class BucketStore:
    """The files of a lake table in a bucket. See ``file_store.TableStore``."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def begin(self, name: str) -> _TableObject:
        return _TableObject(self._bucket, name)

    def create(self, name: str) -> None:
        self._bucket.create(name)

    def delete(self, name: str) -> None:
        self._bucket.delete(name)

    def size(self, name: str) -> int | None:
        found = self._bucket.listed(name).get(name)
        return None if found is None else found.size

    def columns(self, name: str) -> pa.Schema:
        with self._fetched(name) as path:
            return pq.read_schema(path)

    def footer(self, name: str) -> pq.FileMetaData:
        with self._fetched(name) as path:
            return read_footer(path)

    def rows(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._fetched(name) as path:
            yield from read(path, name, columns)

    def notes(self) -> Mapping[str, float]:
        found = self._bucket.listed(f"{CONTROL}/")
        return {name.removeprefix(f"{CONTROL}/"): each.since for name, each in sorted(found.items())}

    @contextmanager
    def _fetched(self, name: str) -> Iterator[Path]:
        with temporary_directory() as directory:
            path = directory / "object"
            self._bucket.fetch(name, path)
            yield path


class _TableObject(UnfinishedFile):
    """A new object of the table, kept on local disk until it is finished."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        super().__init__(TemporaryFile(prefix="kafka-eos-object-"))  # noqa: SIM115 - until it is finished
        self._bucket, self._name = bucket, name

    def finish(self) -> None:
        assert self._file is not None
        with self._file as file:
            file.seek(0)
            self._bucket.put(self._name, file)
        self._file = None
