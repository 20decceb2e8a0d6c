"""The location of a Delta table: a directory, or a bucket prefix.

deltalake reads and writes the log in both. They differ in how entries become durable, and in the storage of data files.
Rule: log entries in a directory are synced here, because the library does not sync them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from kafka_eos._util.extras import ensure_extra
from kafka_eos.connectors._lake.bucket_store import BucketStore
from kafka_eos.connectors._lake.file_store import LocalStore, TableStore
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.s3.bucket import Bucket, BucketAddress
from kafka_eos.connectors.files.sink.locations import (
    IN_A_BUCKET,
    MAY_WRITE_IN_A_BUCKET,
    MAY_WRITE_ON_A_DISK,
    ON_A_DISK,
    on_network,
)
from kafka_eos.core.errors import ConfigError

_LOG: Final = "_delta_log"


class DeltaLocation(Protocol):
    """The location of one Delta table. Raises OSError."""

    text: str
    """The location for messages and for the scope."""
    uri: str
    """The address for deltalake, to be passed with ``options``."""
    options: Mapping[str, str] | None
    syncs: bool
    """True if log entries are durable only after a call of ``sync``."""

    def store(self) -> TableStore: ...

    @property
    def advice(self) -> str:
        """Return what to check if the location cannot be reached."""

    @property
    def needs(self) -> str:
        """Return what must be changed if the location denies access."""

    def check_access(self) -> None:
        """Raise the location's own error, which deltalake would obscure."""

    def make(self) -> None:
        """Prepare the location for a new table. Raise ConfigError if no table can be created."""

    def identity(self) -> str:
        """Return the identity of the location, whatever address leads to it."""

    def notices(self) -> Sequence[str]:
        """Return notices about the location for a start."""

    def sync(self) -> bool:
        """Make the log durable; return whether a checkpoint was not durable before."""

    def entries(self, since: float) -> Iterator[str]:
        """Yield the content of log entries written after ``since``, and possibly of older ones."""


class DeltaDirectory:
    """A Delta table in a directory. Thread-safe."""

    options: Mapping[str, str] | None = None
    syncs = True
    advice, needs = ON_A_DISK, MAY_WRITE_ON_A_DISK

    def __init__(self, directory: Path) -> None:
        self.text = self.uri = str(directory)
        self._directory = directory
        self._synced = -1
        self._lock = Lock()

    def store(self) -> TableStore:
        return LocalStore(self._directory)

    def check_access(self) -> None:
        """Do nothing: deltalake reports errors of a directory clearly."""

    def make(self) -> None:
        disk.create_directory(self._directory)

    def identity(self) -> str:
        found = self._directory.stat()
        return f"{found.st_dev}:{found.st_ino}"

    def notices(self) -> Sequence[str]:
        return on_network(self._directory)

    def sync(self) -> bool:
        with self._lock:
            log = self._directory / _LOG
            versions = {name: int(name[:20]) for name in os.listdir(log) if name[:20].isdigit()}
            for name in [name for name, version in versions.items() if version > self._synced]:
                _sync(log / name)
            _sync(log / "_last_checkpoint")
            disk.sync_directory(log)
            disk.sync_directory(self._directory)
            made = any(".checkpoint" in name and version > self._synced for name, version in versions.items())
            self._synced = max(versions.values(), default=-1)
            return made

    def entries(self, since: float) -> Iterator[str]:
        for entry in os.scandir(self._directory / _LOG):
            with suppress(FileNotFoundError):  # a cleanup has just deleted it
                if entry.name.endswith(".json") and entry.stat().st_mtime >= since:
                    yield Path(entry.path).read_text()


class DeltaBucket:
    """A Delta table below a bucket prefix."""

    syncs = False
    advice, needs = IN_A_BUCKET, MAY_WRITE_IN_A_BUCKET

    def __init__(self, address: BucketAddress) -> None:
        ensure_extra("s3", "DeltaSink on S3")
        self.text = address.text
        self.uri = f"s3://{address.bucket}/{address.prefix}"
        self._address = address
        given = {"AWS_ENDPOINT_URL": address.endpoint, "AWS_REGION": address.region}
        plain = {"AWS_ALLOW_HTTP": "true"} if (address.endpoint or "").startswith("http://") else {}
        options = {name: value for name, value in given.items() if value is not None} | plain
        self.options: Mapping[str, str] | None = options

    def store(self) -> TableStore:
        return BucketStore(self._bucket)

    def check_access(self) -> None:
        self._bucket.names(f"{_LOG}/_last_checkpoint")

    def make(self) -> None:
        """Do nothing: a bucket prefix needs no preparation."""

    def identity(self) -> str:
        return self.uri

    def notices(self) -> Sequence[str]:
        return []

    def sync(self) -> bool:
        return False

    def entries(self, since: float) -> Iterator[str]:
        for name, found in self._bucket.listed(f"{_LOG}/").items():
            if name.endswith(".json") and found.since >= since:
                with suppress(FileNotFoundError):
                    yield self._bucket.read(name).decode()

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket(self._address)


def place_of(table: str | os.PathLike[str]) -> DeltaLocation:
    """Return the location for a user's argument. Raise ConfigError if it is not valid."""
    text = os.fspath(table)
    if not text:
        raise ConfigError("DeltaSink('') does not name a table: use its directory, or s3://bucket/prefix")
    if "://" in text:
        return DeltaBucket(BucketAddress.read(text))
    directory = Path(os.path.abspath(os.path.expanduser(text)))
    if directory.is_file():
        raise ConfigError(f"{directory} is a file: name the table's directory")
    return DeltaDirectory(directory)


def _sync(path: Path) -> None:
    """Sync a file. A missing file was cleaned up, and a checkpoint contains its entries."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
