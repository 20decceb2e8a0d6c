"""The writer of a FileSink: rows become files of one epoch, in partitions, and those end where the sink says.

Rule: it knows nothing of where files are; ``staging`` makes them in a directory, ``s3.staging`` in a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kafka_eos._util import failpoints
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import PreCommit
from kafka_eos.connectors._shared.row_errors import each_row, encoded
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import Part
from kafka_eos.connectors.files.formats.format import Block
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.connectors.files.sink.open_files import OpenFiles, Shape
from kafka_eos.connectors.files.sink.staging import Staging
from kafka_eos.core import provenance
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.core.ids import EpochId, token
from kafka_eos.core.records import Batch


class FileWriter:
    """Writes the hidden files of a subtask."""

    def __init__(self, staging: Staging[Any], scope: str, shape: Shape, ctx: TaskContext) -> None:
        self._staging, self._scope, self._shape = staging, scope, shape
        self._operator, self._term = token(ctx.operator, "operator name"), ctx.job.term
        job = token(ctx.job.job, "job name")
        self._part = partial(Part, job, ctx.job.identity, subtask=ctx.owner, operator=ctx.operator)
        self._epoch, self._reject = ctx.first_epoch, ctx.services.reject_row
        self._files = self._new_files()

    def write(self, batch: Batch[Any]) -> None:
        _, (block, places) = encoded(self._data, batch, self._operator, self._reject)
        if not len(block):
            return
        with mapped(RestartFromCheckpoint, f"stage rows in {self._staging.where}"):
            if places is None:
                self._files.append("", block)
            else:
                for place, rows in _grouped(places).items():
                    self._files.append(place, block.take(rows))

    def seal(self, epoch: EpochId) -> PreCommit:
        files, self._epoch = self._files, epoch.epoch.next()
        self._files = self._new_files()
        return partial(self._prepare, epoch, files) if files else lambda: ()

    def committed(self, epoch: EpochId) -> None:
        """Nothing is kept for an epoch once it is prepared."""

    def discard(self) -> None:
        self._files.let_go()
        self._files = self._new_files()

    def _data(self, batch: Batch[Any]) -> tuple[Block, list[str] | None]:
        """The rows, and the partition of each. Raises BadRows for all values that cannot be written."""
        by = self._shape.partition_by
        places = None if by is None else each_row(lambda value: names.partition(_mapping(by(value))), batch.values)
        texts = provenance.column(batch, self._term, self._epoch) if self._shape.envelope else None
        return self._shape.layout.block(batch.values, texts), places

    def _new_files(self) -> OpenFiles:
        at = EpochId(self._epoch, self._term)
        return OpenFiles(self._staging, self._shape, lambda number: self._part(at, number=number))

    def _prepare(self, epoch: EpochId, files: OpenFiles) -> Sequence[Committable]:
        with mapped(RestartFromCheckpoint, f"prepare epoch {epoch} in {self._staging.where}"):
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
