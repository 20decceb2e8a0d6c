"""The files of one epoch while a writer fills them: one a partition, and more only where files end early.

Rule: few files are open and little is in memory, however many partitions there are. Rows of a partition that finds no
place among the open files wait, and are written in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from kafka_eos.connectors.files.file_names import Part
from kafka_eos.connectors.files.formats.format import Block, Layout
from kafka_eos.connectors.files.sink.staging import StagedFile, Staging
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS

MOST_FILES: Final = 10_000
"""Of a writer in an epoch. Each has a line in the manifest, and steps of its own on the disk."""
_EACH_BLOCK: Final = 6 << 10
"""Bytes that a block takes besides its rows: an Arrow table of some columns."""
_EACH_ROW: Final = 48
"""Bytes that a row takes besides its own: an object of Python."""


@dataclass(frozen=True, slots=True)
class Roll:
    """When a file ends within an epoch: at so many ``rows``, as soon as it has so many bytes (``size``), or when a row
    comes so many ``seconds`` after its first one.

    The end of an epoch ends every file.
    """

    rows: int | None = None
    size: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if any(limit is not None and not limit > 0 for limit in (self.rows, self.size, self.seconds)):
            raise ConfigError("Roll: rows, size and seconds are greater than 0")

    def reached(self, rows: int, size: int) -> bool:
        return (self.rows is not None and rows >= self.rows) or (self.size is not None and size >= self.size)

    def over(self, since: float) -> bool:
        """Does a row that comes now belong into another file than one that came at ``since``?"""
        return self.seconds is not None and monotonic() - since >= self.seconds

    def describe(self) -> dict[str, Json]:
        limits = {"roll_rows": self.rows, "roll_size": self.size, "roll_seconds": self.seconds}
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


class Segment:
    """One open file of an epoch."""

    def __init__(self, file: StagedFile, layout: Layout) -> None:
        self.file, self.records = file, 0
        self._body = layout.body(file)

    @property
    def size(self) -> int:
        return self.file.size + self._body.held

    @property
    def memory(self) -> int:
        """Bytes of rows that are not written."""
        return self._body.memory

    def append(self, block: Block) -> None:
        self._body.write(block)
        self.records += len(block)

    def flush(self) -> None:
        self._body.flush()

    def finish(self) -> None:
        self._body.close()
        self.file.finish()


class _Waiting:
    """Rows of a partition without an open file."""

    def __init__(self) -> None:
        self.blocks, self.records, self.size = list[Block](), 0, 0

    @property
    def memory(self) -> int:
        return self.size + self.records * _EACH_ROW + len(self.blocks) * _EACH_BLOCK

    def append(self, block: Block) -> None:
        self.blocks.append(block)
        self.records += len(block)
        self.size += block.nbytes


class OpenFiles:
    """The files of one writer and one epoch."""

    def __init__(self, staging: Staging[Any], shape: Shape, part: Callable[[int], Part]) -> None:
        self._staging, self._shape, self._part = staging, shape, part
        self._open, self._waiting = dict[str, Segment](), dict[str, _Waiting]()
        """By the directory of the partition."""
        self._since = dict[str, float]()
        """When the first row came that is open or waits."""
        self._finished = list[Segment]()
        self._count = self._memory = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def append(self, place: str, block: Block) -> None:
        """Write rows to the file of a partition; to several, where files end."""
        if place in self._since and self._shape.roll.over(self._since[place]):
            self._write_out(place)
        self._since.setdefault(place, monotonic())
        if place in self._open or len(self._open) < LIMITS.open_files:
            self._write(place, [*self._taken(place), block])
        else:
            self._wait(place, block)
        if self._memory > LIMITS.open_file_bytes:
            self._relieve()

    def finish(self) -> list[Segment]:
        """All of them, complete and durable."""
        for place in list(self._open):
            self._end(place)
        for place in list(self._waiting):
            self._write_out(place)
        return self._finished

    def let_go(self) -> None:
        for segment in self._open.values():
            segment.file.let_go()

    def _write(self, place: str, blocks: Sequence[Block]) -> None:
        for block in blocks:
            begin = 0
            while begin < len(block):
                segment = self._open.get(place) or self._opened(place)
                room = len(block) if self._shape.roll.rows is None else self._shape.roll.rows - segment.records
                part = block.slice(begin, min(room, len(block) - begin))
                before = segment.memory
                segment.append(part)
                self._memory += segment.memory - before
                begin += len(part)
                if self._shape.roll.reached(segment.records, segment.size):
                    self._end(place)

    def _wait(self, place: str, block: Block) -> None:
        waiting = self._waiting.setdefault(place, _Waiting())
        before = waiting.memory
        waiting.append(block)
        self._memory += waiting.memory - before
        if self._shape.roll.reached(waiting.records, waiting.size):
            self._write_out(place)

    def _taken(self, place: str) -> list[Block]:
        """What waits for a partition, which waits no more."""
        waiting = self._waiting.pop(place, None)
        if waiting is None:
            return []
        self._memory -= waiting.memory
        return waiting.blocks

    def _write_out(self, place: str) -> None:
        self._write(place, self._taken(place))
        if place in self._open:
            self._end(place)

    def _relieve(self) -> None:
        """Join what waits in small blocks; where that is not enough, write what is largest."""
        for waiting in self._waiting.values():
            before, waiting.blocks = waiting.memory, [self._shape.layout.joined(waiting.blocks)]
            self._memory -= before - waiting.memory
        held: Mapping[str, Segment | _Waiting] = {**self._open, **self._waiting}
        for place in sorted(held, key=lambda each: held[each].memory, reverse=True):
            if self._memory <= LIMITS.open_file_bytes // 2:
                return
            if (segment := self._open.get(place)) is None:
                self._write_out(place)
            else:
                self._memory -= segment.memory
                segment.flush()
                self._memory += segment.memory

    def _opened(self, place: str) -> Segment:
        if self._count >= MOST_FILES:
            raise ConfigError(
                f"an epoch has more than {MOST_FILES} files of one writer in {self._staging.where}: let partition_by "
                "give fewer partitions, or Roll larger files, or make checkpoint_interval shorter"
            )
        part, shape = self._part(self._count), self._shape
        self._count += 1
        file = self._staging.open(part, place, shape.extension, shape.announced)
        segment = self._open[place] = Segment(file, shape.layout)
        self._since.setdefault(place, monotonic())
        return segment

    def _end(self, place: str) -> None:
        segment = self._open.pop(place)
        del self._since[place]
        self._memory -= segment.memory
        segment.finish()
        self._finished.append(segment)
