"""``DeltaSink``: rows of a Delta table, each exactly once.

Rule: deltalake is imported when a sink is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from kafka_eos.connectors.lake.sink import LakeSink
from kafka_eos.errors import ConfigError
from kafka_eos.extras import expect_extra
from kafka_eos.interfaces import Json

T = TypeVar("T")


class DeltaSink(LakeSink[T]):
    """Appends a stream of ``T`` to a Delta table, each value exactly once; all of an epoch is one commit.

    ``table``   its directory
    ``value``   the type of the values, a pydantic model, msgspec Struct or dataclass: its fields are columns. Without
                it rows are dicts of the table's columns
    ``create``  make the table at the start if it is not there, with the columns of ``value``
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        value: type[T] | None = None,
        create: bool = False,
    ) -> None:
        expect_extra("delta", "DeltaSink")
        from kafka_eos.connectors.delta.log import DeltaLog

        directory = _directory(table)
        super().__init__(DeltaLog(directory), f"delta:{directory}", value, create)

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "delta",
            "table": self._table.text,
            "mode": "append",
            "commit": "one commit of the table an epoch, with the epoch as its application transaction",
        }

    def __repr__(self) -> str:
        return f"DeltaSink({self._table.text!r})"


def _directory(table: str | os.PathLike[str]) -> Path:
    """As an absolute path. ConfigError if it is none."""
    text = os.fspath(table)
    if not text:
        raise ConfigError("DeltaSink('') names no table: give its directory")
    if "://" in text:
        raise ConfigError(f"DeltaSink writes to tables in a directory, not to {text.partition('://')[0]}://")
    return Path(os.path.abspath(os.path.expanduser(text)))
