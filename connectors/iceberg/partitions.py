"""Partitioning of an Iceberg table, by transforms of columns. Data files contain these columns as well.

A committable contains the partition of its file as JSON values, field by field, and the id of the partition spec. A
spec never changes, so a committed file is in the partition that was computed when it was staged.
Rule: transforms follow the format's specification. Types whose values cannot be transformed from a Python value alone
are refused when the table is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from kafka_eos.connectors._lake.lake_table import CommitConflict
from kafka_eos.connectors._lake.partitions import repartitioned
from kafka_eos.connectors.files.file_names import PARTITION_NAME
from kafka_eos.connectors.files.formats.arrow_columns import column_of
from kafka_eos.core.errors import ConfigError

_SPEC: Final = "kafka_eos_spec"
"""The key of the spec id, next to the fields of a partition."""
_SOURCES: Final = (BooleanType, IntegerType, LongType, StringType, DateType, TimestampType, TimestamptzType)
_WORDS: Final[Mapping[str, Transform[Any, Any]]] = {
    "year": YearTransform(), "month": MonthTransform(), "day": DayTransform(), "hour": HourTransform(),
}  # fmt: skip
_BY: Final = re.compile(r"(?:(year|month|day|hour)|(bucket|truncate)\[([1-9]\d{0,8})\])\(([^()]+)\)")
_PARTS: Final = "a column, or year(at), month(at), day(at), hour(at), bucket[16](user), truncate[4](user)"


class TransformPartitioning:
    """The partitioning of an Iceberg table by transforms of its columns."""

    omitted_columns: Sequence[str] = ()

    def __init__(self, table: Table) -> None:
        self._id = table.spec().spec_id
        self._names = [field.name for field in _fields(table)]
        self._of = {field.name: _source(table, field) for field in _fields(table)}
        self._computed = {field.name: _computed(table, field) for field in _fields(table)}
        self.columns: Sequence[str] = [*dict.fromkeys(self._of.values())]

    def of(self, cells: Mapping[str, Any]) -> Mapping[str, object]:
        values = {name: compute(cells[self._of[name]]) for name, compute in self._computed.items()}
        return {_SPEC: self._id} | {name: None if value is None else _as_json(value) for name, value in values.items()}

    def explain_mismatch(self, partition: Mapping[str, str | None]) -> str | None:
        if partition.get(_SPEC) == (str(self._id) if self._names else None):
            return None
        return repartitioned(self._names, [name for name in partition if name != _SPEC])


def record(table: Table, partition: Mapping[str, str | None]) -> Record:
    """Return the partition of a file for a manifest. Raise CommitConflict if the table has another partition
    spec now."""
    if partition.get(_SPEC) != (str(table.spec().spec_id) if _fields(table) else None):
        raise CommitConflict
    values = (partition.get(field.name) for field in table.spec().fields)
    return Record(*(None if value is None else json.loads(value) for value in values))


def problems(table: Table) -> Iterator[str]:
    """Yield reasons why rows cannot be partitioned as the table requires, with the remedy."""
    for field in _fields(table):
        source = table.schema().find_column_name(field.source_id)
        tp = table.schema().find_type(field.source_id)
        if isinstance(field.transform, UnknownTransform) or not isinstance(tp, _SOURCES) or source is None:
            yield (
                f"it is partitioned by {field.transform} of {source}, {tp}: IcebergSink computes partitions of texts, "
                "integers, bools, dates and timestamps"
            )
        elif "." in source:
            yield f"it is partitioned by {source}, a field within a column: IcebergSink partitions by columns"
        if not PARTITION_NAME.fullmatch(field.name) or field.name == _SPEC:
            yield f"its partitions are called {field.name!r}: IcebergSink writes names of letters, digits and _"


def add_to(spec: UpdateSpec, by: Sequence[str]) -> None:
    """Partition a new table."""
    for text in by:
        column, transform = parsed(text)
        spec.add_field(column, transform)


def parsed(text: str) -> tuple[str, Transform[Any, Any]]:
    """Return the column and the transform of ``"day(at)"``, ``"bucket[16](user)"`` or a plain column."""
    match = _BY.fullmatch(text)
    if match is None:
        if "(" in text:
            raise ConfigError(f"IcebergSink(partition_by=…): {text!r} must be {_PARTS}")
        return text, IdentityTransform()
    word, sized, size, column = match.groups()
    if word:
        return column, _WORDS[word]
    return column, BucketTransform(int(size)) if sized == "bucket" else TruncateTransform(int(size))


def _fields(table: Table) -> list[PartitionField]:
    """Return the effective fields. A field removed from a version 1 table remains, and is always null."""
    return [field for field in table.spec().fields if not isinstance(field.transform, VoidTransform)]


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _source(table: Table, field: PartitionField) -> str:
    return str(table.schema().find_column_name(field.source_id))


def _computed(table: Table, field: PartitionField) -> Callable[[Any], Any]:
    """Return a function that computes the partition field of a cell, as a file would store the cell."""
    name, tp = _source(table, field), table.schema().find_type(field.source_id)
    column, transform = column_of(schema_to_pyarrow(table.schema()).field(name)), field.transform.transform(tp)
    stored = _STORED.get(type(tp))

    def of(cell: Any) -> Any:
        try:
            (ready,) = column.ready([cell])
        except ValueError as error:
            why = str(error)
        else:
            return transform(ready if ready is None or stored is None else stored(ready))
        raise ValueError(f"column {name!r}: {why}")  # raised without context, so it is certainly about the record

    return of


_STORED: Final[Mapping[type[IcebergType], Callable[[Any], Any]]] = {
    DateType: date_to_days,
    TimestampType: datetime_to_micros,
    TimestamptzType: datetime_to_micros,
}
"""Conversions to stored values: days and microseconds since 1970."""
