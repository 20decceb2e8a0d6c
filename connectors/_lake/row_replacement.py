"""Replacement of data files: the commit of rows with a key, by copy on write.

A file that has a row with one of the epoch's keys is rewritten without it, together with the new rows, so files that an
epoch touches become few. Files that cannot contain one of the keys, by the bounds of their key columns, are not opened.
Of the others, at first only the keys are read.
Rule: this module does not change the table. The new files have staging entries, as all staged files do, and take effect
with their commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.connectors._lake.commit_status import LogState
from kafka_eos.connectors._lake.file_names import LakeCommittable
from kafka_eos.connectors._lake.keyed_rows import DELETED, LatestRows, UpsertFile
from kafka_eos.connectors._lake.lake_staging import LakeStaging
from kafka_eos.connectors._lake.lake_table import DataFile, LakeTable, LiveFile, TableSpec
from kafka_eos.connectors._lake.partitions import ColumnPartitioning
from kafka_eos.connectors._lake.table_rows import explain_schema_change
from kafka_eos.connectors.files.file_names import PartId, partition
from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.sink.file_staging import FileStaging
from kafka_eos.connectors.files.sink.open_files import FileOptions, PartFiles, Roll
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.limits import LIMITS


class FileReplacement(Struct, frozen=True):
    """The data files that one commit adds and removes. ``parts``: the ids of the new files."""

    added: Sequence[DataFile]
    removed: Sequence[LiveFile]
    parts: Sequence[PartId]


def rewrite_files(
    table: LakeTable, seen: LogState, staged_files: Sequence[LakeCommittable], part: Callable[[int], PartId]
) -> FileReplacement:
    """Write the data files that replace those with rows of the epoch's keys. ``part`` returns the id of each file."""
    fit, store = table.read_spec(), table.store()
    with map_errors(Retryable, f"read what is staged for {table.display_name}"):
        staged = [
            LatestRows([UpsertFile(store, staged_file.file) for staged_file in group], key, fit.columns)
            for key, group in _by_key(staged_files).items()
        ]
    out = _DataFileWriter(table, fit, part)
    removed = []
    try:
        for file in table.live(seen):
            stays = _staying(table, file, staged, fit)
            if stays is not None:
                removed.append(file)
                out.add(_filtered(table.rows(file, fit.columns), stays))
        for newest in staged:
            out.add(newest.rows())
        bounded = sorted({name for newest in staged for name in newest.key} - {*fit.partitions.omitted_columns})
        staged_files, rows = out.finish()
        added = [
            DataFile(staged_file.file, staged_file.size, records, staged_file.partition, bounded)
            for staged_file, records in zip(staged_files, rows, strict=True)
        ]
        return FileReplacement(added, removed, [staged_file.part for staged_file in staged_files])
    except BaseException:
        out.discard()
        raise


def explain_mismatch(fit: TableSpec, staged: pa.Schema, staged_file: LakeCommittable) -> str | None:
    """Return why a staged file does not match the table now; None if it does."""
    if not staged_file.key:
        return explain_schema_change(fit, staged, staged_file.partition)
    columns = pa.schema([field for field in staged if field.name != DELETED])
    return explain_schema_change(replace(fit, partitions=ColumnPartitioning()), columns, {})


def _by_key(staged_files: Sequence[LakeCommittable]) -> Mapping[tuple[str, ...], list[LakeCommittable]]:
    """Return the committables by key columns, the oldest rows first. An aborted epoch of a writer comes before the
    next."""
    found: dict[tuple[str, ...], list[LakeCommittable]] = {}
    for staged_file in sorted(staged_files, key=_age):
        found.setdefault(staged_file.key, []).append(staged_file)
    return found


def _age(staged_file: LakeCommittable) -> tuple[EpochId, str, int, int]:
    part = staged_file.part
    return part.epoch, part.operator, part.subtask, part.number


def _staying(table: LakeTable, file: LiveFile, staged: Sequence[LatestRows], fit: TableSpec) -> pa.Array | None:
    """Return for each row of a file whether it stays; None if all do."""
    stays = None
    for newest in staged:
        if any(_apart(file.bounds[name], newest.bounds(name)) for name in newest.key if name in file.bounds):
            continue
        wanted = pa.schema([fit.columns.field(name) for name in newest.key])
        keys = pa.Table.from_batches([*table.rows(file, wanted)], wanted)
        goes = newest.replaced(keys)
        if pc.any(goes).as_py():
            others = pc.invert(goes)
            stays = others if stays is None else pc.and_(stays, others)
    return stays


def _apart(one: tuple[object, object], other: tuple[object, object]) -> bool:
    (least, most), (other_least, other_most) = one, other
    return bool(most < other_least or other_most < least)  # type: ignore[operator]  # values of one column


def _filtered(batches: Iterator[pa.RecordBatch], stays: pa.Array) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        yield batch.filter(stays.slice(at, len(batch)))
        at += len(batch)


class _DataFileWriter:
    """A writer of new data files in the table's partitions."""

    def __init__(self, table: LakeTable, fit: TableSpec, part: Callable[[int], PartId]) -> None:
        self._table, self._partitions = table, fit.partitions
        rows = LIMITS.rows_per_lake_row_group
        layout = ArrowLayout(None, fit.columns, False, "snappy", rows, fit.partitions.omitted_columns)
        shape = FileOptions(layout, "parquet", False, None, Roll(size=LIMITS.rewritten_file_bytes), False)
        self._staging: FileStaging[Any] = LakeStaging(table.store(), table.display_name, fit)
        self._files = PartFiles(self._staging, shape, part)

    def add(self, batches: Iterator[pa.RecordBatch]) -> None:
        with map_errors(Retryable, f"write data files of {self._table.display_name}"):
            for batch in batches:
                block = pa.Table.from_batches([batch])
                for place, rows in self._places(batch).items():
                    self._files.append(place, block if rows is None else block.take(rows))

    def finish(self) -> tuple[list[LakeCommittable], list[int]]:
        """Finish all files; return them with their row counts."""
        with map_errors(Retryable, f"write data files of {self._table.display_name}"):
            segments = self._files.finish()
            payloads = self._staging.prepare([segment.file for segment in segments])
        return [LakeCommittable.read(payload) for payload in payloads], [segment.records for segment in segments]

    def discard(self) -> None:
        self._files.discard()

    def _places(self, batch: pa.RecordBatch) -> Mapping[str, list[int] | None]:
        """Return the indices of the rows of each partition; None means all rows."""
        if not len(batch):
            return {}
        if not self._partitions.columns:
            return {"": None}
        found: dict[str, list[int] | None] = {}
        for row, values in enumerate(batch.select([*self._partitions.columns]).to_pylist()):
            found.setdefault(self._place(values), []).append(row)  # type: ignore[union-attr]
        return found

    def _place(self, values: Mapping[str, object]) -> str:
        try:
            return partition(self._partitions.of(values))
        except ValueError as error:
            raise ConfigError(
                f"{self._table.display_name} has rows in a partition that the sink cannot rewrite: "
                f"{error}. Delete these rows, or include the partition columns in the key"
            ) from error
