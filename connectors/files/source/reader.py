"""The reader of files, one after the other, in the order of their names.

Rule: a position advances when the rows before it have been returned. A file is done when its last row was returned, and
the file is still unchanged. A poll ends after a second, also if it has found no row: there may be very many files
without rows, and barriers pass between two polls.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.source import Reader
from kafka_eos.connectors.files.hive_partitions import PartitionLevels
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.source.bounded_reads import READ_ENDS, PartTooLarge
from kafka_eos.connectors.files.source.locations import SourceLocation
from kafka_eos.connectors.files.source.positions import FileProgress, get_file_name
from kafka_eos.connectors.files.source.row_formats import ReadFormat
from kafka_eos.core.error_messages import describe_error
from kafka_eos.core.errors import ConfigError, EnvironmentFailed
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch, Origin, RawRecord

_LONGEST: Final = 1.0
"""Seconds of a search for the next row."""


class _OpenFile(Struct, frozen=True):
    """The file that is being read, at a local path. ``held``: resources to release after it."""

    split: SplitId
    path: Path
    rows: Iterator[Any]
    decode: Callable[[Any], Any]
    held: ExitStack

    def close(self) -> None:
        rows: Any = self.rows
        rows.close()
        self.held.close()


class FileReader(Reader[Any]):
    """The reader of one subtask's files. Only one of them is open at a time."""

    def __init__(
        self,
        place: SourceLocation,
        reading: ReadFormat,
        levels: PartitionLevels,
        ctx: TaskContext,
        positions: Positions,
        *,
        in_order: bool,
    ) -> None:
        """Create a reader. ``in_order``: a file is begun only when all files with earlier names are read, even if one
        is paused."""
        self._place = place
        self._reading = reading
        self._levels = levels
        self._operator = ctx.operator
        self._reject = partial(ctx.services.reject_record, ctx.operator)
        self._in_order = in_order
        self._at: dict[SplitId, FileProgress] = {}
        self._unread = deque[SplitId]()
        """Files that are not done, in the order of their names."""
        self._paused: frozenset[SplitId] = frozenset()
        self._open: _OpenFile | None = None
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        until = time.monotonic() + _LONGEST
        while (split := self._next()) is not None:
            batch = self._read(split, max_records)
            if batch is not None and batch.values:
                return batch
            if time.monotonic() > until:
                return None
        time.sleep(timeout)
        return None

    def _next(self) -> SplitId | None:
        """Return the file to read next, or None."""
        if self._open is not None and self._open.split not in self._paused:
            return self._open.split
        self._close()
        unread = islice(self._unread, 1) if self._in_order else self._unread
        return next((split for split in unread if split not in self._paused), None)

    def _read(self, split: SplitId, max_records: int) -> Batch[Any] | None:
        """Return the next rows of a file, None if there are none. After an error no position has advanced."""
        at, name = self._at[split], get_file_name(split)
        try:
            if self._open is None:
                self._open = self._opened(split, at)
                self._expect_unchanged(name, at)
            rows, at_end = self._rows(name, at, self._open.rows, max_records)
            if os.stat(self._open.path).st_size != at.size:  # it may end within a row now
                self._expect_unchanged(name, at)
            if not rows:
                if at_end:
                    self._expect_unchanged(name, at)
                    self._at[split] = at.at_end()
                    self._unread.remove(split)
                    self._close()
                return None
            batch = self._decoded(name, at.row, rows, self._open.decode)
        except BaseException:
            self._close()
            raise
        self._at[split] = at.after(at.row + len(rows))
        return batch

    def _opened(self, split: SplitId, at: FileProgress) -> _OpenFile:
        name = get_file_name(split)
        try:
            decode = self._reading.decoder(self._levels.columns(name))
        except ValueError as error:
            raise ConfigError(
                f"{self._path(name)} cannot be read: its directory does not fit the type: {error}. Move the file"
            ) from None
        with ExitStack() as opened, map_errors(EnvironmentFailed, f"open {self._path(name)}"):
            path = opened.enter_context(self._place.opened(name))
            return _OpenFile(split, path, self._reading.rows(path, at.row), decode, opened.pop_all())

    def _path(self, name: str) -> str:
        return f"{self._place.text}/{name}"

    def _rows(self, name: str, at: FileProgress, rows: Iterator[Any], max_records: int) -> tuple[Sequence[Any], bool]:
        """Return the rows of one read, and whether the file has no more."""
        found: list[Any] = []
        try:
            for row in islice(rows, max_records):
                if row is READ_ENDS:
                    return found, False
                found.append(row)
            return found, len(found) < max_records
        except ConfigError:  # a package is not installed
            raise
        except Exception as error:
            # Errors of the operating system have a number; a library's errors about damaged data have none.
            if isinstance(error, OSError) and error.errno is not None:
                raise EnvironmentFailed(f"could not read {self._path(name)}: {error}") from error
            self._expect_unchanged(name, at)
            cause = describe_error(error).rstrip(".")
            raise ConfigError(
                f"{self._path(name)} cannot be read after row {at.row}: {cause}. "
                f"{_what_to_do(error, self._reading.name, begun=at.begun)}. Nothing was skipped"
            ) from error

    def _expect_unchanged(self, name: str, at: FileProgress) -> None:
        with map_errors(EnvironmentFailed, f"look at {self._path(name)}"):
            now = self._place.state(name)
        at.expect_unchanged(self._path(name), now)

    def _decoded(self, name: str, first: int, rows: Sequence[Any], decode: Callable[[Any], Any]) -> Batch[Any]:
        origin = FileOrigin(self._operator, name, first, rows, self._reading)
        values, refused = map_rows(decode, rows, refuse=lambda row, error: self._reject(origin.raw(row), error))
        bad = frozenset(refused)
        return Batch(values, [row for row in range(len(rows)) if row not in bad] if bad else range(len(rows)), origin)

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def positions(self) -> Positions:
        return {split: at.position() for split, at in self._at.items()}

    def assign(self, positions: Positions) -> None:
        self._at |= {split: FileProgress.read(position) for split, position in positions.items()}
        self._unread = deque(sorted((split for split, at in self._at.items() if not at.done), key=get_file_name))

    def pause(self, splits: Collection[SplitId]) -> None:
        self._paused = frozenset(splits)

    def list_splits_at_end(self) -> Collection[SplitId]:
        return [split for split, at in self._at.items() if at.done]

    def lag(self) -> int | None:
        """Return 0 if all files are done, else None: the number of rows is known only at the end of a file."""
        return 0 if all(at.done for at in self._at.values()) else None

    def has_reached(self, ends: Positions) -> bool:
        return all(split in self._at and self._at[split].reaches(FileProgress.read(end)) for split, end in ends.items())

    def close(self) -> None:
        self._close()


def _what_to_do(error: Exception, form: str, *, begun: bool) -> str:
    """Return the remedy for an error. ``begun``: rows of the file were processed."""
    if isinstance(error, PartTooLarge):
        wrong = "If the file is correct, raise the limit. If not, it is damaged"
    elif isinstance(error, UnicodeDecodeError):
        wrong = "It is not in UTF-8"
    else:
        wrong = f"It is damaged, or not in the format {form}"
    if begun:
        return (
            f"{wrong}, and earlier rows are part of the results: restore the complete file, with "
            "its size and modification time"
        )
    return f"{wrong}: repair it, or put a file without rows in its place, and restart"


class FileOrigin(Origin):
    """The origin of rows of one file, starting with row ``first``. A row is encoded only when it is requested."""

    __slots__ = ("_first", "_reading", "_rows", "offsets", "partitions", "source", "topic")

    def __init__(self, source: str, name: str, first: int, rows: Sequence[Any], reading: ReadFormat) -> None:
        self.source = source
        self.topic = name
        self._first = first
        self._rows = rows
        self._reading = reading
        self.partitions: Sequence[int] = [0] * len(rows)
        self.offsets: Sequence[int] = range(first, first + len(rows))

    def timestamps(self) -> Sequence[int]:
        return [-1] * len(self._rows)

    def raw(self, row: int) -> RawRecord:
        return RawRecord(self.topic, 0, self._first + row, -1, None, self._reading.encode_raw(self._rows[row]), ())
