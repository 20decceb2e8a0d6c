"""The files of one epoch while a writer fills them: one per partition, and more only if files are rolled.

Rule: few files are open and little memory is used, however many partitions exist. Rows of a partition without an open
file are buffered, and are written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from msgspec import Struct

from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.connectors.files.formats.format import FileLayout, RowBlock
from kafka_eos.connectors.files.sink.file_staging import FileStaging, StagedFile
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS

MOST_FILES: Final = 10_000
"""Files of a writer in an epoch, beyond which files are not rolled and rows of further partitions are rejected. Each
has an entry in the manifest, and needs its own disk operations."""
_EACH_BLOCK: Final = 6 << 10
"""Bytes that a block takes besides its rows, such as an Arrow table with a few columns."""
_EACH_ROW: Final = 48
"""Bytes that a row takes besides its content, as a Python object."""


@dataclass(frozen=True, slots=True, init=False)
class Roll:
    """The conditions that end a file within an epoch. The end of an epoch ends every file.

    ``rows``: the number of rows of a file.
    ``size``: bytes after which a file ends.
    ``seconds``: a row that arrives this long after the file's first row begins a new file.
    """

    rows: int | None
    size: int | None
    seconds: float | None

    def __init__(self, rows: int | None = None, size: int | None = None, seconds: Seconds | None = None) -> None:
        waits = None if seconds is None else to_seconds(seconds)
        for name, given in (("rows", rows), ("size", size), ("seconds", waits)):
            object.__setattr__(self, name, given)
        if any(limit is not None and not limit > 0 for limit in (self.rows, self.size, self.seconds)):
            raise ConfigError("Roll: rows, size and seconds must be greater than 0")

    def reached(self, rows: int, size: int) -> bool:
        return (self.rows is not None and rows >= self.rows) or (self.size is not None and size >= self.size)

    def is_expired(self, since: float) -> bool:
        """Return whether the file's first row is too old to add another one."""
        return self.seconds is not None and monotonic() - since >= self.seconds

    def describe(self) -> dict[str, Json]:
        limits = {"roll_rows": self.rows, "roll_size": self.size, "roll_seconds": self.seconds}
        return {name: limit for name, limit in limits.items() if limit is not None}


class FileOptions(Struct, frozen=True):
    """The conversion of rows to files: layout, envelope, partitions, rolling."""

    layout: FileLayout
    extension: str
    envelope: bool
    partition_by: Callable[[Any], Mapping[str, object]] | None
    roll: Roll
    announced: bool


class PartFile:
    """One open part file of an epoch."""

    def __init__(self, file: StagedFile, layout: FileLayout) -> None:
        self.file, self.records = file, 0
        self._body = layout.body(file)

    @property
    def size(self) -> int:
        return self.file.size + self._body.buffered_bytes

    @property
    def memory(self) -> int:
        """Return the bytes of rows that are not written yet."""
        return self._body.memory

    def append(self, block: RowBlock) -> None:
        self._body.write(block)
        self.records += len(block)

    def flush(self) -> None:
        self._body.flush()

    def finish(self) -> None:
        self._body.close()
        self.file.finish()


class _BufferedRows:
    """Buffered rows of a partition that has no open file."""

    def __init__(self) -> None:
        self.blocks = list[RowBlock]()
        self.records = 0
        self.size = 0

    @property
    def memory(self) -> int:
        return self.size + self.records * _EACH_ROW + len(self.blocks) * _EACH_BLOCK

    def append(self, block: RowBlock) -> None:
        self.blocks.append(block)
        self.records += len(block)
        self.size += block.nbytes


class PartFiles:
    """All part files of one writer and epoch."""

    def __init__(self, staging: FileStaging[Any], shape: FileOptions, part: Callable[[int], PartId]) -> None:
        self._staging = staging
        self._shape = shape
        self._part = part
        self._open, self._waiting = dict[str, PartFile](), dict[str, _BufferedRows]()
        """Open files and buffered rows, by the directory of the partition."""
        self._since = dict[str, float]()
        """The arrival time of the first row that is in an open file or buffered."""
        self._finished = list[PartFile]()
        self._count = self._memory = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def find_rejected(self, places: Sequence[str]) -> dict[int, Exception]:
        """Return an error for each row whose partition would need a file beyond ``MOST_FILES``, by ascending index.

        Rows with any value of a partition's column must stop no job.
        """
        begun, errors = set[str](), dict[int, Exception]()
        left = MOST_FILES - self._count - len(self._waiting)
        for index, place in enumerate(places):
            if place in begun or place in self._since:
                continue
            if len(begun) < left:
                begun.add(place)
            else:
                errors[index] = UnfitValue(
                    f"its partition needs one more than {MOST_FILES:,} files of one writer in one epoch: return fewer "
                    "partitions from partition_by, use a larger Roll, or shorten checkpoint_interval"
                )
        return errors

    @property
    def _may_roll(self) -> bool:
        return self._count + len(self._waiting) < MOST_FILES

    def append(self, place: str, block: RowBlock) -> None:
        """Write rows to the file of a partition, or to several files if they are rolled."""
        if place in self._since and self._may_roll and self._shape.roll.is_expired(self._since[place]):
            self._write_out(place)
        self._since.setdefault(place, monotonic())
        if place in self._open or len(self._open) < LIMITS.open_files:
            self._write(place, [*self._taken(place), block])
        else:
            self._wait(place, block)
        if self._memory > LIMITS.open_file_bytes:
            self._relieve()

    def finish(self) -> list[PartFile]:
        """Finish all files; return them complete and durable."""
        for place in list(self._open):
            self._end(place)
        for place in list(self._waiting):
            self._write_out(place)
        return self._finished

    def discard(self) -> None:
        for segment in self._open.values():
            segment.file.discard()

    def _write(self, place: str, blocks: Sequence[RowBlock]) -> None:
        for block in blocks:
            begin = 0
            while begin < len(block):
                segment = self._open.get(place) or self._opened(place)
                rows = self._shape.roll.rows
                room = len(block) if rows is None or not self._may_roll else rows - segment.records
                part = block.slice(begin, min(room, len(block) - begin))
                before = segment.memory
                segment.append(part)
                self._memory += segment.memory - before
                begin += len(part)
                if self._may_roll and self._shape.roll.reached(segment.records, segment.size):
                    self._end(place)

    def _wait(self, place: str, block: RowBlock) -> None:
        waiting = self._waiting.setdefault(place, _BufferedRows())
        before = waiting.memory
        waiting.append(block)
        self._memory += waiting.memory - before
        if self._may_roll and self._shape.roll.reached(waiting.records, waiting.size):
            self._write_out(place)

    def _taken(self, place: str) -> list[RowBlock]:
        """Remove and return the buffered rows of a partition."""
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
        """Merge small buffered blocks; if that is not enough, write the largest buffers."""
        for waiting in self._waiting.values():
            before, waiting.blocks = waiting.memory, [self._shape.layout.joined(waiting.blocks)]
            self._memory -= before - waiting.memory
        held: Mapping[str, PartFile | _BufferedRows] = {**self._open, **self._waiting}
        for place in sorted(held, key=lambda each: held[each].memory, reverse=True):
            if self._memory <= LIMITS.open_file_bytes // 2:
                return
            if (segment := self._open.get(place)) is None:
                self._write_out(place)
            else:
                self._memory -= segment.memory
                segment.flush()
                self._memory += segment.memory

    def _opened(self, place: str) -> PartFile:
        part, shape = self._part(self._count), self._shape
        self._count += 1
        file = self._staging.open(part, place, shape.extension, shape.announced)
        segment = self._open[place] = PartFile(file, shape.layout)
        self._since.setdefault(place, monotonic())
        return segment

    def _end(self, place: str) -> None:
        segment = self._open.pop(place)
        del self._since[place]
        self._memory -= segment.memory
        segment.finish()
        self._finished.append(segment)
