"""Staging of rows that replace rows of the same key, and selection of the newest row per key in an epoch.

A staged file has the table's columns and ``DELETED``. It contains every row in the order of its writer; the rows are
merged once all rows of the epoch are known.
Rule: this module knows neither the format of the table nor its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from kafka_eos.abc.codec import Codec
from kafka_eos.connectors._lake.file_store import TableStore
from kafka_eos.connectors._lake.lake_table import TableSpec
from kafka_eos.connectors._lake.partitions import partition_of
from kafka_eos.connectors._lake.table_rows import counterpart
from kafka_eos.connectors._shared.key_columns import expect_key_columns
from kafka_eos.connectors._shared.row_errors import map_rows
from kafka_eos.connectors.files.file_names import partition
from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout
from kafka_eos.connectors.files.formats.format import BlockWriter, ByteOutput
from kafka_eos.connectors.files.formats.record_fields import picker
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

DELETED: Final = "kafka_eos_deleted"
"""The column of a staged file that states whether its row deletes its key."""
_AT: Final = "at"
_KEYS: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    kinds.is_boolean, kinds.is_integer, kinds.is_decimal, kinds.is_date, kinds.is_timestamp, kinds.is_string,
    kinds.is_large_string, kinds.is_binary, kinds.is_large_binary,
)  # fmt: skip
"""Types that may be used for keys, because equal values are identical."""


def expect_key(key: Sequence[str], columns: pa.Schema, table: str) -> None:
    """Raise ConfigError if these columns cannot identify rows."""
    if DELETED in columns.names:
        raise ConfigError(f"{table} has a column {DELETED}, which is the sink's own name: rename it")
    expect_key_columns(key, columns.names)
    if wrong := [name for name in key if not any(of(columns.field(name).type) for of in _KEYS)]:
        found = ", ".join(f"{name} is {columns.field(name).type}" for name in wrong)
        raise ConfigError(
            f"key: {found} in {table}; a key column must hold bools, integers, decimals, dates, times, text or bytes"
        )


class UpsertLayout:
    """The layout of a staged file of upserts and deletes."""

    def __init__(
        self, layout: ArrowLayout, fit: TableSpec, value: Any, key: Sequence[str], delete: Callable[[Any], bool] | None
    ) -> None:
        """Create the layout. ``layout``: the layout of rows of the table."""
        columns = layout.schema
        self._key = key
        self._delete = delete
        self._names = [*columns.names]
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
        """Return the columns of the table's rows."""
        return self._columns

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> pa.Table:
        return self._staged.block(map_rows(self._row, values), None)

    def joined(self, blocks: Sequence[pa.Table]) -> pa.Table:
        return self._staged.joined(blocks)

    def body(self, out: ByteOutput) -> BlockWriter:
        return self._staged.body(out)

    def encode_for_audit(self, block: pa.Table) -> list[bytes]:
        return self._staged.encode_for_audit(block.select(self._names))

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        return self._staged.read(path)

    def keys(self, block: pa.Table) -> list[bytes]:
        """Return the encoded key of each row, for the audit."""
        return self._staged.encode_for_audit(block.select([*self._key]))

    def _row(self, value: Any) -> dict[str, Any]:
        row = dict(zip(self._names, self._pick(value), strict=True))
        if self._delete is not None and self._delete(value):
            return {name: cell if name in self._key else None for name, cell in row.items()} | {DELETED: True}
        if unset := [name for name in self._required if row[name] is None]:
            raise ValueError(f"column {unset[0]!r}: it may not be null")
        if self._place is not None:
            partition(self._place(value))
        return row | {DELETED: False}


def encode_for_audit(layout: ArrowLayout | UpsertLayout, block: pa.Table) -> list[tuple[bytes | None, bytes | None]]:
    """Return the encoded key and content of each row, for the audit; the content of a deletion is None."""
    encoded = layout.encode_for_audit(block)
    if isinstance(layout, ArrowLayout):
        return [(None, each) for each in encoded]
    gone = block.column(DELETED).to_pylist() if DELETED in block.column_names else [False] * len(block)
    rows = zip(layout.keys(block), encoded, gone, strict=True)
    return [(key, None if deleted else each) for key, each, deleted in rows]


class LatestRows:
    """The newest row of each key that an epoch has staged.

    ``files``: the staged files, the oldest rows first. All keys are in memory, but only one batch of rows at a time.
    """

    def __init__(self, files: Sequence[UpsertFile], key: Sequence[str], columns: pa.Schema) -> None:
        self._files, self._columns = files, columns
        found = [file.keys(key, columns) for file in files]
        self.key = tuple(found[0].column_names)
        """The present names of these columns in the table."""
        at = _numbered(pa.concat_tables(found))
        names = at.column_names[:-1]
        last = at.group_by(names).aggregate([(_AT, "max")])
        self._keys = last.select(names)
        wins = pc.is_in(at.column(_AT), value_set=last.column(f"{_AT}_max").combine_chunks())
        self._wins = wins.combine_chunks()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows to be added to the table, in its columns."""
        at = 0
        for file in self._files:
            for batch in file.batches():
                stays = pc.and_(self._wins.slice(at, len(batch)), pc.invert(batch.column(DELETED)))
                at += len(batch)
                yield aligned(batch.filter(stays), self._columns)

    def replaced(self, keys: pa.Table) -> pa.Array:
        """Return for each row of a table, given by its key columns, whether it is replaced or deleted here."""
        at = _numbered(keys)
        met = at.join(self._keys, keys=self._keys.column_names, join_type="left semi").column(_AT)
        return pc.is_in(at.column(_AT), value_set=met.combine_chunks()).combine_chunks()

    def bounds(self, name: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a key column."""
        found = pc.min_max(self._keys.column(self.key.index(name)))
        return found["min"].as_py(), found["max"].as_py()


def _numbered(keys: pa.Table) -> pa.Table:
    """Return the rows with their number in ``_AT``. Columns are renamed, because Arrow parses some names as paths."""
    plain = keys.rename_columns([f"key{n}" for n in range(keys.num_columns)])
    return plain.append_column(_AT, pa.array(range(len(keys)), pa.int64()))


class UpsertFile:
    """One staged file of upserts and deletes."""

    def __init__(self, store: TableStore, name: str) -> None:
        self._store = store
        self._name = name
        self._schema = store.columns(name)

    def keys(self, key: Sequence[str], columns: pa.Schema) -> pa.Table:
        """Return the key columns, under their present names in the table."""
        now = [counterpart(self._schema.field(name), columns) for name in key]
        wanted = pa.schema([field.with_nullable(True) for field in now if field is not None])
        found = [aligned(batch, wanted) for batch in self._store.rows(self._name, [*key])]
        return pa.Table.from_batches(found, wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._store.rows(self._name, self._schema.names)


def aligned(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the same rows in these columns. A column that the rows do not have is null."""
    there = [counterpart(field, batch.schema) for field in columns]
    arrays = [
        pa.nulls(len(batch), field.type) if of is None else batch.column(of.name).cast(field.type)
        for field, of in zip(columns, there, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
