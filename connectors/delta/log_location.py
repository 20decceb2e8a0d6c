"""Where a Delta table is: a directory, or a prefix of a bucket.

deltalake reads and writes the log in both. What differs is how entries become durable, and where data files lie.
Rule: entries of a log in a directory are synced here, for the library syncs none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from kafka_eos._util.extras import expect_extra
from kafka_eos.connectors._lake.bucket_store import BucketStore
from kafka_eos.connectors._lake.file_store import LocalStore, Store
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.s3.bucket import Address, Bucket
from kafka_eos.connectors.files.sink.locations import (
    IN_A_BUCKET,
    MAY_WRITE_IN_A_BUCKET,
    MAY_WRITE_ON_A_DISK,
    ON_A_DISK,
    on_network,
)
from kafka_eos.core.errors import ConfigError

_LOG: Final = "_delta_log"
_CLOCKS_DIFFER: Final = 3600.0
"""Seconds by which times of files may be wrong, where several machines write them."""


class LogPlace(Protocol):
    """The place of one table. Raises OSError."""

    text: str
    """For people, and the scope."""
    uri: str
    """As deltalake takes it, with its ``options``."""
    options: Mapping[str, str] | None
    syncs: bool
    """Is what the library writes to the log durable only when ``sync`` has been called?"""

    def store(self) -> Store: ...

    @property
    def advice(self) -> str:
        """What to look at if the place cannot be reached."""

    @property
    def needs(self) -> str:
        """What is to be changed if the place refuses this user."""

    def look(self) -> None:
        """Raises what the place itself says of who looks: deltalake does not tell one error from another."""

    def make(self) -> None:
        """Before a table is made there. ConfigError if none can be."""

    def identity(self) -> str:
        """Which place it is, whatever way leads to it."""

    def notices(self) -> Sequence[str]:
        """What a start has to say of it."""

    def sync(self) -> bool:
        """Whether there is a checkpoint that was not durable before."""

    def entries(self, since: float) -> Iterator[str]:
        """What is in entries of the log that came later than ``since``, and perhaps in older ones."""


class LogDirectory:
    """A directory of this machine. May be used from threads."""

    options: Mapping[str, str] | None = None
    syncs = True
    advice, needs = ON_A_DISK, MAY_WRITE_ON_A_DISK

    def __init__(self, directory: Path) -> None:
        self.text = self.uri = str(directory)
        self._directory, self._synced, self._lock = directory, -1, Lock()

    def store(self) -> Store:
        return LocalStore(self._directory)

    def look(self) -> None:
        """The operating system tells them apart."""

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
            with suppress(FileNotFoundError):  # a clean-up has just taken it
                if entry.name.endswith(".json") and entry.stat().st_mtime >= since - _CLOCKS_DIFFER:
                    yield Path(entry.path).read_text()


class LogBucket:
    """A prefix of a bucket."""

    syncs = False
    advice, needs = IN_A_BUCKET, MAY_WRITE_IN_A_BUCKET

    def __init__(self, address: Address) -> None:
        expect_extra("s3", "DeltaSink on S3")
        self.text, self.uri, self._address = address.text, f"s3://{address.bucket}/{address.prefix}", address
        given = {"AWS_ENDPOINT_URL": address.endpoint, "AWS_REGION": address.region}
        plain = {"AWS_ALLOW_HTTP": "true"} if (address.endpoint or "").startswith("http://") else {}
        options = {name: value for name, value in given.items() if value is not None} | plain
        self.options: Mapping[str, str] | None = options

    def store(self) -> Store:
        return BucketStore(self._bucket)

    def look(self) -> None:
        self._bucket.names(f"{_LOG}/_last_checkpoint")

    def make(self) -> None:
        """There is nothing to make."""

    def identity(self) -> str:
        return self.uri

    def notices(self) -> Sequence[str]:
        return []

    def sync(self) -> bool:
        return False

    def entries(self, since: float) -> Iterator[str]:
        for name, found in self._bucket.listed(f"{_LOG}/").items():
            if name.endswith(".json") and found.since >= since - _CLOCKS_DIFFER:
                with suppress(FileNotFoundError):
                    yield self._bucket.read(name).decode()

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket(self._address)


def place_of(table: str | os.PathLike[str]) -> LogPlace:
    """ConfigError if it is none."""
    text = os.fspath(table)
    if not text:
        raise ConfigError("DeltaSink('') names no table: give its directory, or s3://bucket/prefix")
    if "://" in text:
        return LogBucket(Address.read(text))
    directory = Path(os.path.abspath(os.path.expanduser(text)))
    if directory.is_file():
        raise ConfigError(f"{directory} is a file. Name the directory of the table")
    return LogDirectory(directory)


def _sync(path: Path) -> None:
    """One that is not there any more was cleaned up, and a checkpoint has what it had."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
