"""Creation of the storage that ``checkpoint_dir`` selects. Rule: only this module chooses between kinds of storage."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kafka_eos._util.store_urls import ensure_no_secret
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import object_store as objects
from kafka_eos.storage import pyarrow_store as arrow
from kafka_eos.storage.job_storage import JobStorage, LocalStorage
from kafka_eos.storage.remote_storage import BlobStore, RemoteStorage

_MARKS = (paths.TERMS, paths.MANIFESTS)
"""Directories; at least one is not empty if the job was ever started."""


def open_storage(where: str | Path) -> JobStorage:
    """Return the storage of one job: a directory (a path or ``file://…``), an object store or a pyarrow file system.

    A directory is created if it does not exist; for other kinds opening makes no request, except that pyarrow connects.
    Raises ConfigError if the address is wrong or a required package is not installed.
    """
    directory = _directory(where)
    return _remote(str(where)) if directory is None else LocalStorage(directory)


def find_storage(where: str | Path) -> JobStorage | None:
    """Return the storage of a job that was ever started, or None. Creates nothing."""
    directory = _directory(where)
    if directory is not None and not any((directory / kind).is_dir() for kind in _MARKS):
        return None
    storage = open_storage(where)
    return storage if any(storage.list(kind) for kind in _MARKS) else None


def open_claimed_storage(where: str | Path, term: Term, claim: bytes) -> JobStorage:
    """Open the storage of a job on a machine other than its supervisor's. Creates nothing.

    Raises ConfigError if the claim of the term is not there: the storage is another one.
    """
    storage = find_storage(where)
    if storage is None or _read_claim(storage, term) != claim:
        raise ConfigError(
            f"checkpoint_dir is not the same location on every machine: on {socket.gethostname()}, {where} does not "
            f"contain the claim of term {term.n}, which the driver wrote. State stored there would be lost to all "
            "others. Set checkpoint_dir to an object store, or to a file system that driver and executors share "
            "under one name."
        )
    return storage


def _read_claim(storage: JobStorage, term: Term) -> bytes | None:
    try:
        return storage.read(paths.claim_name(term))
    except FileNotFoundError:
        return None


def list_jobs(uri: str) -> list[str]:
    """List the jobs that keep their checkpoints in this store. Raise OSError if the store does not respond."""
    return sorted(name for name in _connected(uri).directories() if "." not in name)


def _directory(where: str | Path) -> Path | None:
    """Return the local directory that is meant; None for a remote store."""
    if isinstance(where, str) and "://" in where:
        parts = urlsplit(where)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None
    return Path(where)


def _remote(uri: str) -> RemoteStorage:
    return RemoteStorage(_connected(uri))


def _connected(uri: str) -> BlobStore:
    try:
        ensure_no_secret(uri)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return objects.connect(uri) if urlsplit(uri).scheme in objects.SCHEMES else arrow.connect(uri)
