"""Where an Iceberg table lies: in a directory of this machine, or below a prefix of a bucket.

Rule: nothing is asked of a place here, and what has neither form is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from kafka_eos.connectors._lake.bucket_store import BucketStore
from kafka_eos.connectors._lake.file_store import LocalStore, Store
from kafka_eos.connectors.files.s3.bucket import Address, Bucket, Keys
from kafka_eos.connectors.files.sink.locations import on_network

_LOCAL: Final = ("", "file")
_S3: Final = ("s3", "s3a", "s3n")
DATA: Final = "data"
"""The directory of data files in that of the table."""


def local_path(location: str) -> Path | None:
    """The path of a file in a directory of this machine; None for one elsewhere."""
    parsed = urlparse(location)
    if parsed.scheme not in _LOCAL or parsed.netloc not in ("", "localhost"):
        return None
    return Path(os.path.abspath(parsed.path if parsed.scheme == "" else unquote(parsed.path)))


def in_bucket(location: str, properties: Mapping[str, str]) -> tuple[Bucket, str] | None:
    """The bucket with the directory of an object, and its name there; None for what is in no bucket.

    ``properties``: of the catalog, with those that it has given for the table. boto3 knows what they do not say.
    """
    scheme, _, rest = location.partition("://")
    bucket, _, key = rest.partition("/")
    prefix, _, name = key.strip("/").rpartition("/")
    if scheme not in _S3 or not (bucket and prefix and name):
        return None
    region = properties.get("s3.region", properties.get("client.region"))
    return _bucket(Address(bucket, prefix, properties.get("s3.endpoint"), region), _keys(properties)), name


def store_of(location: str, properties: Mapping[str, str]) -> Store | None:
    """Where the data files of the table at ``location`` lie; None if that is neither a directory nor in a bucket."""
    if (path := local_path(location)) is not None:
        return LocalStore(path / DATA)
    found = in_bucket(f"{location.rstrip('/')}/{DATA}/_", properties)
    return None if found is None else BucketStore(found[0])


def notices(location: str) -> Sequence[str]:
    """What a start has to say of the place."""
    path = local_path(location)
    return [] if path is None else on_network(path)


def _keys(properties: Mapping[str, str]) -> Keys | None:
    identity, secret, session = (
        properties.get(f"s3.{name}", properties.get(f"client.{name}"))
        for name in ("access-key-id", "secret-access-key", "session-token")
    )
    return None if identity is None or secret is None else Keys(identity, secret, session)


@lru_cache(maxsize=32)
def _bucket(address: Address, keys: Keys | None) -> Bucket:
    """A client is dear, and a table is opened for each look. A catalog may give other keys each hour."""
    return Bucket(address, keys)
