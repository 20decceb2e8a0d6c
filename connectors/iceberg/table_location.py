"""The location of an Iceberg table: a local directory, or a bucket prefix.

Rule: this module makes no requests; other kinds of locations are not supported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from kafka_eos.connectors._lake.bucket_store import BucketStore
from kafka_eos.connectors._lake.file_store import LocalStore, TableStore
from kafka_eos.connectors.files.s3.bucket import AccessKeys, Bucket, BucketAddress
from kafka_eos.connectors.files.sink.locations import on_network

_LOCAL: Final = ("", "file")
_S3: Final = ("s3", "s3a", "s3n")
DATA: Final = "data"
"""The directory of data files in the table's directory."""


def local_path(location: str) -> Path | None:
    """Return the path of a file in a local directory; None for other locations."""
    parsed = urlparse(location)
    if parsed.scheme not in _LOCAL or parsed.netloc not in ("", "localhost"):
        return None
    return Path(os.path.abspath(parsed.path if parsed.scheme == "" else unquote(parsed.path)))


def in_bucket(location: str, properties: Mapping[str, str]) -> tuple[Bucket, str] | None:
    """Return the bucket with the directory of an object, and its name there; None if it is not in a bucket.

    ``properties``: of the catalog, including those that it gave for the table. boto3 finds missing ones.
    """
    scheme, _, rest = location.partition("://")
    bucket, _, key = rest.partition("/")
    prefix, _, name = key.strip("/").rpartition("/")
    if scheme not in _S3 or not (bucket and prefix and name):
        return None
    region = properties.get("s3.region", properties.get("client.region"))
    return _bucket(BucketAddress(bucket, prefix, properties.get("s3.endpoint"), region), _keys(properties)), name


def store_of(location: str, properties: Mapping[str, str]) -> TableStore | None:
    """Return the storage of the data files of the table at ``location``; None if the kind is not supported."""
    if (path := local_path(location)) is not None:
        return LocalStore(path / DATA)
    found = in_bucket(f"{location.rstrip('/')}/{DATA}/_", properties)
    return None if found is None else BucketStore(found[0])


def notices(location: str) -> Sequence[str]:
    """Return notices about the location for a start."""
    path = local_path(location)
    return [] if path is None else on_network(path)


def _keys(properties: Mapping[str, str]) -> AccessKeys | None:
    identity, secret, session = (
        properties.get(f"s3.{name}", properties.get(f"client.{name}"))
        for name in ("access-key-id", "secret-access-key", "session-token")
    )
    return None if identity is None or secret is None else AccessKeys(identity, secret, session)


@lru_cache(maxsize=32)
def _bucket(address: BucketAddress, keys: AccessKeys | None) -> Bucket:
    """Return a cached client: a client is expensive, and a table is opened often. A catalog may rotate its keys."""
    return Bucket(address, keys)
