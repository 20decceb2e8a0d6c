"""The writer of a FileSink: rows become files of one epoch, in partitions, and those end where the sink says.

Rule: it knows nothing of where files are; ``staging`` makes them in a directory, ``s3.staging`` in a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kafka_eos import failpoints, provenance
from kafka_eos.connectors.files import names
from kafka_eos.connectors.files.errors import mapped
from kafka_eos.connectors.files.formats.base import Block, Layout
from kafka_eos.connectors.files.names import Part
from kafka_eos.connectors.files.staging import StagedFile, Staging
from kafka_eos.connectors.rejecting import each_row, encoded
from kafka_eos.errors import ConfigError, RestartFromCheckpoint
from kafka_eos.ids import EpochId, token
from kafka_eos.interfaces import Committable, Json, PreCommit, TaskContext
from kafka_eos.records import Batch

OPEN_AT_ONCE: Final = 64
"""Files that a writer has open. For one more, that which nothing was written to for the longest time ends."""


@dataclass(frozen=True, slots=True)
class Roll:
    """When a file ends within an epoch: at so many ``rows``, or as soon as it has so many bytes (``size``).

    The end of an epoch ends every file.
    """

    rows: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if min(self.rows or 1, self.size or 1) < 1 or 0 in (self.rows, self.size):
            raise ConfigError("Roll: rows and size are greater than 0")

    def describe(self) -> dict[str, Json]:
        limits = {"roll_rows": self.rows, "roll_size": self.size}
        return {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Shape:
    """How a sink's rows become files; see ``FileSink``."""

    layout: Layout
    extension: str
    envelope: bool
    partition_by: Callable[[Any], Mapping[str, object]] | None
    roll: Roll
    announced: bool


class _Segment:
    """One open file of an epoch."""

    def __init__(self, file: StagedFile, place: str, layout: Layout) -> None:
        self.file, self.place, self.records = file, place, 0
        self._body = layout.body(file)

    @property
    def size(self) -> int:
        return self.file.size + self._body.held

    def append(self, block: Block) -> None:
        self._body.write(block)
        self.records += len(block)

    def finish(self) -> None:
        self._body.close()
        self.file.finish()


class FileWriter:
    """Writes the hidden files of a subtask."""

    def __init__(self, staging: Staging[Any], scope: str, shape: Shape, ctx: TaskContext) -> None:
        self._staging, self._scope, self._shape = staging, scope, shape
        self._operator, self._term = token(ctx.operator, "operator name"), ctx.job.term
        job = token(ctx.job.job, "job name")
        self._part = partial(Part, job, ctx.job.identity, subtask=ctx.owner, operator=ctx.operator)
        self._epoch, self._reject = ctx.first_epoch, ctx.services.reject_row
        self._open: dict[str, _Segment] = {}
        """By the directory of the partition; what was written to last is the last."""
        self._finished: list[_Segment] = []
        self._count = 0

    def write(self, batch: Batch[Any]) -> None:
        _, (block, places) = encoded(self._data, batch, self._operator, self._reject)
        if not len(block):
            return
        with mapped(RestartFromCheckpoint, f"stage rows in {self._staging.where}"):
            if places is None:
                self._append("", block)
            else:
                for place, rows in _grouped(places).items():
                    self._append(place, block.take(rows))

    def seal(self, epoch: EpochId) -> PreCommit:
        finished, open_ = self._finished, list(self._open.values())
        self._finished, self._open, self._count = [], {}, 0
        self._epoch = epoch.epoch.next()
        if not finished and not open_:
            return lambda: ()
        return partial(self._prepare, epoch, finished, open_)

    def committed(self, epoch: EpochId) -> None:
        """Nothing is kept for an epoch once it is prepared."""

    def discard(self) -> None:
        for segment in self._open.values():
            segment.file.let_go()
        self._open, self._finished = {}, []

    def _data(self, batch: Batch[Any]) -> tuple[Block, list[str] | None]:
        """The rows, and the partition of each. Raises BadRows for all values that cannot be written."""
        by = self._shape.partition_by
        places = None if by is None else each_row(lambda value: names.partition(_mapping(by(value))), batch.values)
        texts = provenance.column(batch, self._term, self._epoch) if self._shape.envelope else None
        return self._shape.layout.block(batch.values, texts), places

    def _append(self, place: str, block: Block) -> None:
        """Write rows to the file of a partition; to several, where files end."""
        roll, begin = self._shape.roll, 0
        while begin < len(block):
            segment = self._open.pop(place, None) or self._opened(place)
            self._open[place] = segment
            room = len(block) if roll.rows is None else roll.rows - segment.records
            part = block.slice(begin, min(room, len(block) - begin))
            segment.append(part)
            begin += len(part)
            if segment.records == roll.rows or (roll.size is not None and segment.size >= roll.size):
                self._end(place)

    def _opened(self, place: str) -> _Segment:
        if len(self._open) >= OPEN_AT_ONCE:
            self._end(next(iter(self._open)))
        part, shape = self._part(EpochId(self._epoch, self._term), number=self._count), self._shape
        self._count += 1
        return _Segment(self._staging.open(part, place, shape.extension, shape.announced), place, shape.layout)

    def _end(self, place: str) -> None:
        segment = self._open.pop(place)
        segment.finish()
        self._finished.append(segment)

    def _prepare(self, epoch: EpochId, finished: list[_Segment], open_: list[_Segment]) -> Sequence[Committable]:
        with mapped(RestartFromCheckpoint, f"prepare epoch {epoch} in {self._staging.where}"):
            failpoints.hit("sink.flush.before")
            for segment in open_:
                segment.finish()
            failpoints.hit("sink.flush.after")
            failpoints.hit("sink.prepare.before")
            segments = finished + open_
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
