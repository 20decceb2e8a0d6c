"""``DeltaSink``: rows of a Delta table, each exactly once.

Rule: deltalake is imported when a sink is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_eos._util.extras import expect_extra
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._lake.lake_sink import LakeSink, expect_parts, replacing
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


class DeltaSink(LakeSink[T]):
    """Writes a stream of ``T`` into a Delta table, each value exactly once; all of an epoch is one commit.

    ``table``   its directory, or ``s3://bucket/prefix?endpoint=…&region=…``
    ``value``   the type of the values, a pydantic model, msgspec Struct or dataclass: its fields are columns. Without
                it rows are dicts of the table's columns
    ``create``  make the table at the start if it is not there, with the columns of ``value``
    ``key``     columns that tell a row: a value replaces the row of its key. Without it every value is a new row
    ``delete``  values for which it is true delete the row of their key

    ``partition_by``  columns by which the table is partitioned that ``create`` makes; one that is there says it itself
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        value: type[T] | None = None,
        create: bool = False,
        partition_by: Sequence[str] = (),
        key: str | Sequence[str] = (),
        delete: Callable[[T], bool] | None = None,
    ) -> None:
        expect_extra("delta", "DeltaSink")
        from kafka_eos.connectors.delta.delta_log import DeltaLog
        from kafka_eos.connectors.delta.log_location import place_of

        self._place = place = place_of(table)
        by = _columns(partition_by, value, create)
        super().__init__(DeltaLog(place), f"delta:{place.text}", value, create, by, key, delete)

    def price(self) -> Sequence[str]:
        """See ``abc.Priced``."""
        if self._key:
            return replacing("version")
        return (
            "a version of the table for each epoch, and a file for each subtask and partition in it: a short interval "
            "makes many; compact them with OPTIMIZE",
            "other writers of the table make a commit of the job try again",
        )

    def advice(self, ctx: JobContext) -> str:
        """See ``abc.Advises``."""
        return f"Check {self._place.advice}"

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "delta",
            "table": self._table.text,
            "mode": self._mode(),
            "key": [*self._key],
            "commit": "one commit of the table an epoch, with the epoch as its application transaction",
        }

    def __repr__(self) -> str:
        return f"DeltaSink({self._table.text!r})"


def _columns(by: Sequence[str], value: Any, create: bool) -> Sequence[str]:
    """ConfigError for what cannot be columns of a table that is made."""
    if isinstance(by, str):
        raise ConfigError(f"DeltaSink(partition_by={by!r}): give a list of columns, [{by!r}]")
    expect_parts(by, value, create, "DeltaSink")
    return by
