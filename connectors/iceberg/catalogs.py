"""The catalog of an Iceberg table: opening it, and checking it if it is a file. Imports pyiceberg; see the package.

Rule: the properties of a catalog are never shown, except the path of a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kafka_eos.connectors.files.sink.locations import MAY_WRITE_ON_A_DISK
from kafka_eos.connectors.iceberg.durable_file_io import DurableFileIO
from kafka_eos.core.errors import ConfigError

NEEDS: Final = (
    f"{MAY_WRITE_ON_A_DISK}; in a bucket it needs permission to put, get, delete and list "
    "objects, with the credentials of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of "
    "the catalog's s3.access-key-id and s3.secret-access-key"
)
_FILE_IO: Final = {"py-io-impl": f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}"}
_ANSWER_SECONDS: Final = 60
"""Seconds after which a REST catalog counts as not responding; the table is then read to see whether it committed."""
_SQLITE: Final = b"SQLite format 3\0"


def opened(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return the catalog. Raise ConfigError if its address is missing or not valid."""
    try:
        catalog = load_catalog(name, **{**properties, **_FILE_IO})
    except (ValueError, ArgumentError) as error:
        cause = " ".join(str(error).split())
        if "@" in properties.get("uri", ""):  # the message may quote a part of a login
            cause = f"{type(error).__name__} in its uri, which is not shown (percent-encode each @ / ? # in a login)"
        raise ConfigError(
            f"catalog {name!r} cannot be opened: {cause}. Set its address in properties={{…}}, in "
            f".pyiceberg.yaml or in PYICEBERG_CATALOG__{name.upper()}__URI"
        ) from error
    if (session := getattr(catalog, "_session", None)) is not None:  # a REST session would wait forever
        session.request = partial(session.request, timeout=_ANSWER_SECONDS)
    return catalog


def expect_file(name: str, properties: Mapping[str, str]) -> None:
    """Raise ConfigError with the cause if the catalog is an SQLite file that cannot be opened.

    SQLite reports the same error for every cause.
    """
    if (file := _file(name, properties)) is None:
        return
    if (wrong := _obstacle(file)) is not None:
        raise ConfigError(f"catalog {name!r} is {file}, a file of SQLite: {wrong}. Or name another file in its uri")


def _file(name: str, properties: Mapping[str, str]) -> Path | None:
    """Return the path of the catalog if it is an SQLite file."""
    uri = properties.get("uri") or (Config().get_catalog_config(name) or {}).get("uri")
    try:
        url = make_url(str(uri))
    except ArgumentError:  # another kind of catalog, or an error that is reported when the catalog is opened
        return None
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith((":", "file:")):
        return None
    return Path(os.path.abspath(url.database))


def _obstacle(file: Path) -> str | None:
    """Return why the file cannot be read and written, with the remedy; None if it can."""
    if not file.parent.is_dir():
        return f"its directory does not exist. Create it: mkdir -p {file.parent}"
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return f"the user of the job may not write in {file.parent}, where SQLite creates auxiliary files"
    if not file.exists():
        return None
    if not file.is_file():
        return "it is not a file"
    if not os.access(file, os.R_OK | os.W_OK):
        return "the user of the job may not read and write it"
    with file.open("rb") as opened:
        begin = opened.read(len(_SQLITE))
    return None if begin in (b"", _SQLITE) else "it is not an SQLite database"
