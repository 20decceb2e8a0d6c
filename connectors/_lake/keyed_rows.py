"""Rows that replace those of their key: how they are staged, and which of an epoch's rows is the newest of its key.

A staged file has the table's columns and ``DELETED``. It has every row in the order of its writer; what becomes of them
is decided when all of the epoch is known.
Rule: nothing here knows what a format is, or which files a table has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from kafka_eos.abc.codec import Codec
from kafka_eos.connectors._lake.file_store import Store
from kafka_eos.connectors._lake.lake_table import Fit
from kafka_eos.connectors._lake.partitions import partition_of
from kafka_eos.connectors._lake.table_rows import counterpart
from kafka_eos.connectors._shared.row_errors import each_row
from kafka_eos.connectors.files.file_names import partition
from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout
from kafka_eos.connectors.files.formats.format import Body, Out
from kafka_eos.connectors.files.formats.record_fields import picker
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

DELETED: Final = "kafka_eos_deleted"
"""The column of a staged file that says whether its row deletes its key."""
_AT: Final = "at"
_KEYS: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    kinds.is_boolean, kinds.is_integer, kinds.is_decimal, kinds.is_date, kinds.is_timestamp, kinds.is_string,
    kinds.is_large_string, kinds.is_binary, kinds.is_large_binary,
)  # fmt: skip
"""Types of which equal values are the same value."""


def expect_key(key: Sequence[str], columns: pa.Schema, table: str) -> None:
    """ConfigError if these columns cannot tell rows."""
    if DELETED in columns.names:
        raise ConfigError(f"{table} has a column {DELETED}, which is the sink's own name: rename it")
    if unknown := [name for name in key if name not in columns.names]:
        raise ConfigError(f"key: {', '.join(unknown)} is no column of the sink (they are {', '.join(columns.names)})")
    if wrong := [name for name in key if not any(of(columns.field(name).type) for of in _KEYS)]:
        found = ", ".join(f"{name} is {columns.field(name).type}" for name in wrong)
        raise ConfigError(
            f"key: {found} in {table}; a key is of bools, integers, decimals, dates, times, texts or bytes"
        )


class KeyedLayout:
    """Rows of a staged file."""

    def __init__(
        self, layout: ArrowLayout, fit: Fit, value: Any, key: Sequence[str], delete: Callable[[Any], bool] | None
    ) -> None:
        """``layout``: of rows that are in the table."""
        columns = layout.schema
        self._key, self._delete, self._names = key, delete, [*columns.names]
        self._required = [field.name for field in columns if not field.nullable]
        self._pick = picker(value, self._names)
        self._place = partition_of(fit.partitions, value)
        fields = [field.with_nullable(field.name not in key) for field in columns]
        staged = pa.schema([*fields, pa.field(DELETED, pa.bool_(), False)])
        self._staged = ArrowLayout(None, staged, False, "snappy", LIMITS.rows_per_lake_row_group)
        self._columns = columns

    @property
    def codec(self) -> Codec[Any]:
        return self._staged.codec

    @property
    def schema(self) -> pa.Schema:
        """The columns of rows that are in the table."""
        return self._columns

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> pa.Table:
        return self._staged.block(each_row(self._row, values), None)

    def joined(self, blocks: Sequence[pa.Table]) -> pa.Table:
        return self._staged.joined(blocks)

    def body(self, out: Out) -> Body:
        return self._staged.body(out)

    def told(self, block: pa.Table) -> list[bytes]:
        return self._staged.told(block.select(self._names))

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        return self._staged.read(path)

    def keys(self, block: pa.Table) -> list[bytes]:
        """The key of each row, for the audit."""
        return self._staged.told(block.select([*self._key]))

    def _row(self, value: Any) -> dict[str, Any]:
        row = dict(zip(self._names, self._pick(value), strict=True))
        if self._delete is not None and self._delete(value):
            return {name: cell if name in self._key else None for name, cell in row.items()} | {DELETED: True}
        if unset := [name for name in self._required if row[name] is None]:
            raise ValueError(f"column {unset[0]!r}: it may not be null")
        if self._place is not None:
            partition(self._place(value))
        return row | {DELETED: False}


def told(layout: ArrowLayout | KeyedLayout, block: pa.Table) -> list[tuple[bytes | None, bytes | None]]:
    """Of each row the key, where rows have one, and what it says; None if it deletes the key."""
    said = layout.told(block)
    if isinstance(layout, ArrowLayout):
        return [(None, each) for each in said]
    gone = block.column(DELETED).to_pylist() if DELETED in block.column_names else [False] * len(block)
    rows = zip(layout.keys(block), said, gone, strict=True)
    return [(key, None if deleted else each) for key, each, deleted in rows]


class Newest:
    """Of all rows that an epoch has staged under one key, the newest of each value of the key.

    ``files``  the staged files, the oldest rows first. Their keys are in memory, and of their rows a batch at a time
    """

    def __init__(self, files: Sequence[StagedRows], key: Sequence[str], columns: pa.Schema) -> None:
        self._files, self._columns = files, columns
        found = [file.keys(key, columns) for file in files]
        self.key = tuple(found[0].column_names)
        """As the table calls these columns now."""
        at = _numbered(pa.concat_tables(found))
        names = at.column_names[:-1]
        last = at.group_by(names).aggregate([(_AT, "max")])
        self._keys = last.select(names)
        wins = pc.is_in(at.column(_AT), value_set=last.column(f"{_AT}_max").combine_chunks())
        self._wins = wins.combine_chunks()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Those that are to be in the table, in its columns."""
        at = 0
        for file in self._files:
            for batch in file.batches():
                stays = pc.and_(self._wins.slice(at, len(batch)), pc.invert(batch.column(DELETED)))
                at += len(batch)
                yield aligned(batch.filter(stays), self._columns)

    def replaced(self, keys: pa.Table) -> pa.Array:
        """Which rows of a table with the key's columns have a newer one here, or are deleted: a bool each."""
        at = _numbered(keys)
        met = at.join(self._keys, keys=self._keys.column_names, join_type="left semi").column(_AT)
        return pc.is_in(at.column(_AT), value_set=met.combine_chunks()).combine_chunks()

    def bounds(self, name: str) -> tuple[Any, Any]:
        """The least and the greatest value of a column of the key."""
        found = pc.min_max(self._keys.column(self.key.index(name)))
        return found["min"].as_py(), found["max"].as_py()


def _numbered(keys: pa.Table) -> pa.Table:
    """With the number of each row in ``_AT``. Arrow takes some names for paths, so columns have none of the table's."""
    plain = keys.rename_columns([f"key{n}" for n in range(keys.num_columns)])
    return plain.append_column(_AT, pa.array(range(len(keys)), pa.int64()))


class StagedRows:
    """One staged file."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._schema = store, name, store.columns(name)

    def keys(self, key: Sequence[str], columns: pa.Schema) -> pa.Table:
        """The key's columns, as the table calls them now."""
        now = [counterpart(self._schema.field(name), columns) for name in key]
        wanted = pa.schema([field.with_nullable(True) for field in now if field is not None])
        found = [aligned(batch, wanted) for batch in self._store.rows(self._name, [*key])]
        return pa.Table.from_batches(found, wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._store.rows(self._name, self._schema.names)


def aligned(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The same rows in these columns. One that they do not have is null."""
    there = [counterpart(field, batch.schema) for field in columns]
    arrays = [
        pa.nulls(len(batch), field.type) if of is None else batch.column(of.name).cast(field.type)
        for field, of in zip(columns, there, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
