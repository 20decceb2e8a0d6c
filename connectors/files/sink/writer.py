"""The writer of a FileSink: rows become the files of one epoch, by partition, and files end as the sink configures.

Rule: it does not know where files are; ``file_staging`` creates them in a directory, ``s3_staging`` in a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kafka_eos._util import failpoints
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import PreCommit, Writer
from kafka_eos.connectors._shared.row_errors import BadRows, encode_or_reject, map_rows
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.connectors.files.formats.format import RowBlock
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.sink.file_staging import FileStaging
from kafka_eos.connectors.files.sink.open_files import FileOptions, PartFiles
from kafka_eos.core import provenance
from kafka_eos.core.errors import EnvironmentFailed
from kafka_eos.core.ids import EpochId, ensure_name
from kafka_eos.core.records import Batch


class FileWriter(Writer[Any]):
    """The writer of a subtask's hidden files."""

    def __init__(self, staging: FileStaging[Any], scope: str, shape: FileOptions, ctx: TaskContext) -> None:
        self._staging = staging
        self._scope = scope
        self._shape = shape
        self._operator, self._term = ensure_name(ctx.operator, "operator name"), ctx.job.term
        self._job = ensure_name(ctx.job.job, "job name")
        self._part = partial(PartId, self._job, ctx.job.identity, subtask=ctx.subtask, operator=ctx.operator)
        self._epoch, self._reject = ctx.first_epoch, ctx.services.reject_row
        self._files = self._new_files()

    def write(self, batch: Batch[Any]) -> None:
        _, (block, places) = encode_or_reject(self._data, batch, self._operator, self._reject)
        if not len(block):
            return
        with map_errors(EnvironmentFailed, f"stage rows in {self._staging.where}"):
            if places is None:
                self._files.append("", block)
            else:
                for place, rows in _grouped(places).items():
                    self._files.append(place, block.take(rows))

    def seal(self, epoch: EpochId) -> PreCommit:
        files, self._epoch = self._files, epoch.epoch.next()
        self._files = self._new_files()
        return partial(self._prepare, epoch, files) if files else lambda: ()

    def discard(self) -> None:
        self._files.discard()
        self._files = self._new_files()

    def _data(self, batch: Batch[Any]) -> tuple[RowBlock, list[str] | None]:
        """Return the rows, and the partition of each. Raise BadRows for all values that cannot be written."""
        by = self._shape.partition_by
        places = None if by is None else map_rows(lambda value: names.partition(_mapping(by(value))), batch.values)
        if places is not None and (rejected := self._files.find_rejected(places)):
            raise BadRows(rejected)
        envelope, at = self._shape.envelope, (self._job, self._term, self._epoch)
        texts = provenance.format_provenance(batch, *at) if envelope else None
        return self._shape.layout.block(batch.values, texts), places

    def _new_files(self) -> PartFiles:
        at = EpochId(self._epoch, self._term)
        return PartFiles(self._staging, self._shape, lambda number: self._part(at, number=number))

    def _prepare(self, epoch: EpochId, files: PartFiles) -> Sequence[Committable]:
        with map_errors(EnvironmentFailed, f"prepare epoch {epoch} in {self._staging.where}"):
            failpoints.hit("sink.flush.before")
            segments = files.finish()
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            payloads = self._staging.prepare([segment.file for segment in segments])
            failpoints.hit("sink.prepare.after")
        return tuple(
            Committable(self._scope, payload, segment.records, {self._operator: segment.records})
            for segment, payload in zip(segments, payloads, strict=True)
        )


def _mapping(given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise ValueError(f"partition_by returns a dict such as {{'day': …}}, not a {type(given).__name__}")
    return given


def _grouped(places: Sequence[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, place in enumerate(places):
        rows.setdefault(place, []).append(row)
    return rows
