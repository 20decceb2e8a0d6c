"""From ``checkpoint_dir`` to a storage. Rule: nobody else chooses between kinds of storage."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from kafka_eos._util.store_urls import expect_no_secret
from kafka_eos.core.errors import ConfigError
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import object_store as objects
from kafka_eos.storage import pyarrow_store as arrow
from kafka_eos.storage.job_storage import JobStorage, LocalStorage
from kafka_eos.storage.remote_storage import RemoteStorage, Store

_MARKS = (paths.TERMS, paths.MANIFESTS)
"""A job that was ever started has something in one of these."""


def open_storage(where: str | Path) -> JobStorage:
    """The storage of one job: a directory (a path or ``file://…``), an object store or a pyarrow file system.

    A directory is made if it is not there; elsewhere opening makes no request, except that pyarrow connects.
    ConfigError if the address is wrong or what it needs is not installed.
    """
    directory = _directory(where)
    return _remote(str(where)) if directory is None else LocalStorage(directory)


def find_storage(where: str | Path) -> JobStorage | None:
    """As ``open_storage``, of a job that was ever started; None if there is none. Looking leaves no trace."""
    directory = _directory(where)
    if directory is not None and not any((directory / kind).is_dir() for kind in _MARKS):
        return None
    storage = open_storage(where)
    return storage if any(storage.list(kind) for kind in _MARKS) else None


def jobs_in(uri: str) -> list[str]:
    """Names that jobs may have which keep their checkpoints in this store. OSError if nobody can tell."""
    return sorted(name for name in _connected(uri).directories() if "." not in name)


def _directory(where: str | Path) -> Path | None:
    """The local directory that is meant; None if it is elsewhere."""
    if isinstance(where, str) and "://" in where:
        parts = urlsplit(where)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None
    return Path(where)


def _remote(uri: str) -> RemoteStorage:
    return RemoteStorage(_connected(uri))


def _connected(uri: str) -> Store:
    try:
        expect_no_secret(uri)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return objects.connect(uri) if urlsplit(uri).scheme in objects.SCHEMES else arrow.connect(uri)
