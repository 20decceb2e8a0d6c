"""Data files in place of others: the rows of a table without those that an epoch replaces, and what it puts there.

Copy on write: a file that has a row of one of the epoch's keys is written again without it, together with the new rows,
so files that epochs touch become few. Files that cannot have one, by the bounds of their keys, are not opened, and of
the others only the keys are read at first.
Rule: nothing of the table changes here. The files have notes, as all that is staged, and their commit is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos.connectors._lake.commit_status import Seen
from kafka_eos.connectors._lake.file_names import Promise
from kafka_eos.connectors._lake.keyed_rows import DELETED, Newest, StagedRows
from kafka_eos.connectors._lake.lake_table import DataFile, Fit, LakeTable, LiveFile
from kafka_eos.connectors._lake.partitions import ByColumns
from kafka_eos.connectors._lake.staging import LakeStaging
from kafka_eos.connectors._lake.table_rows import changed
from kafka_eos.connectors.files.file_names import Part, partition
from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.connectors.files.sink.open_files import OpenFiles, Roll, Shape
from kafka_eos.connectors.files.sink.staging import Staging
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.limits import LIMITS


@dataclass(frozen=True, slots=True)
class Replacement:
    """What one commit has to add and to remove. ``parts``: the new files, as their notes tell them."""

    added: Sequence[DataFile]
    removed: Sequence[LiveFile]
    parts: Sequence[Part]


def replacement(table: LakeTable, seen: Seen, promises: Sequence[Promise], part: Callable[[int], Part]) -> Replacement:
    """Of the version ``seen``, with the rows that are promised. ``part`` gives files their names."""
    fit, store = table.fit(), table.store()
    with mapped(Retryable, f"read what is staged for {table.text}"):
        staged = [
            Newest([StagedRows(store, promise.file) for promise in group], key, fit.columns)
            for key, group in _by_key(promises).items()
        ]
    out = _Out(table, fit, part)
    removed = []
    try:
        for file in table.live(seen):
            stays = _staying(table, file, staged, fit)
            if stays is not None:
                removed.append(file)
                out.add(_filtered(table.rows(file, fit.columns), stays))
        for newest in staged:
            out.add(newest.rows())
        bounded = sorted({name for newest in staged for name in newest.key} - {*fit.partitions.left_out})
        promises, rows = out.finish()
        added = [
            DataFile(promise.file, promise.size, records, promise.partition, bounded)
            for promise, records in zip(promises, rows, strict=True)
        ]
        return Replacement(added, removed, [promise.part for promise in promises])
    except BaseException:
        out.let_go()
        raise


def misfit(fit: Fit, staged: pa.Schema, promise: Promise) -> str | None:
    """Why a staged file does not fit into the table as it is now; None if it does."""
    if not promise.key:
        return changed(fit, staged, promise.partition)
    columns = pa.schema([field for field in staged if field.name != DELETED])
    return changed(replace(fit, partitions=ByColumns()), columns, {})


def _by_key(promises: Sequence[Promise]) -> Mapping[tuple[str, ...], list[Promise]]:
    """Those of one key, the oldest rows first: of a writer, an epoch that was given up comes before the next one."""
    found: dict[tuple[str, ...], list[Promise]] = {}
    for promise in sorted(promises, key=_age):
        found.setdefault(promise.key, []).append(promise)
    return found


def _age(promise: Promise) -> tuple[EpochId, str, int, int]:
    part = promise.part
    return part.epoch, part.operator, part.subtask, part.number


def _staying(table: LakeTable, file: LiveFile, staged: Sequence[Newest], fit: Fit) -> pa.Array | None:
    """Of each row of a file, whether it stays; None if all do."""
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


class _Out:
    """New data files, in the partitions of the table."""

    def __init__(self, table: LakeTable, fit: Fit, part: Callable[[int], Part]) -> None:
        self._table, self._partitions = table, fit.partitions
        rows = LIMITS.rows_per_lake_row_group
        layout = ArrowLayout(None, fit.columns, False, "snappy", rows, fit.partitions.left_out)
        shape = Shape(layout, "parquet", False, None, Roll(size=LIMITS.rewritten_file_bytes), False)
        self._staging: Staging[Any] = LakeStaging(table.store(), table.text, fit)
        self._files = OpenFiles(self._staging, shape, part)

    def add(self, batches: Iterator[pa.RecordBatch]) -> None:
        with mapped(Retryable, f"write data files of {self._table.text}"):
            for batch in batches:
                block = pa.Table.from_batches([batch])
                for place, rows in self._places(batch).items():
                    self._files.append(place, block if rows is None else block.take(rows))

    def finish(self) -> tuple[list[Promise], list[int]]:
        """All files, and how many rows each has."""
        with mapped(Retryable, f"write data files of {self._table.text}"):
            segments = self._files.finish()
            payloads = self._staging.prepare([segment.file for segment in segments])
        return [Promise.read(payload) for payload in payloads], [segment.records for segment in segments]

    def let_go(self) -> None:
        self._files.let_go()

    def _places(self, batch: pa.RecordBatch) -> Mapping[str, list[int] | None]:
        """Which rows are of which partition; None is all of them."""
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
                f"{self._table.text} has rows in a partition that the sink cannot write again: {error}. Delete them, "
                "or let the key have the columns of the partition"
            ) from error
