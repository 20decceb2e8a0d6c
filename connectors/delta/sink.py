"""``DeltaSink``: rows in a Delta table, each exactly once.

Rule: deltalake is imported when a sink is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafka_eos._util.extras import ensure_extra
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._lake.lake_sink import LakeSink

T = TypeVar("T")


class DeltaSink(LakeSink[T]):
    """A sink that writes a stream of ``T`` into a Delta table, each value exactly once, with one commit per epoch.

    - ``table``: its directory, or ``s3://bucket/prefix?endpoint=…&region=…``.
    - ``value``: the type of the values, a pydantic model, msgspec Struct or dataclass: its fields are the columns. The
      default is the type of the stream; if that is unknown or a dict, rows are dicts with the table's columns.
    - ``create``: create the table at the start if it does not exist, with the columns of ``value``.
    - ``key``: columns that identify a row: a value replaces the row of its key. Without a key every value is a new row.
    - ``delete``: a function; a value for which it returns true deletes the row of its key.
    - ``partition_by``: columns by which ``create`` partitions the table; an existing table keeps its partitioning.
    """

    _connector = "delta"
    _version = "version"
    _commit_text = "one commit of the table per epoch, with the epoch as its application transaction"
    _maintenance = "compact them with OPTIMIZE"

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
        ensure_extra("delta", "DeltaSink")
        from kafka_eos.connectors.delta.delta_log import DeltaLakeTable
        from kafka_eos.connectors.delta.log_location import place_of

        self._place = place = place_of(table)
        super().__init__(DeltaLakeTable(place), f"delta:{place.text}", value, create, partition_by, key, delete)

    @property
    def default_name(self) -> str:
        """Return the table's name, marked as a table: a topic in the same plan may have the same name."""
        return f"{self._place.text.rstrip('/').rpartition('/')[2]}-table"

    def find_location(self, ctx: JobContext | None) -> str:
        """Return the table's directory, or its address in a bucket."""
        return self._place.text

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a location that does not respond."""
        return f"Check {self._place.advice}"
