"""Reads files one after the other, in the order of their names.

Rule: a position moves when the rows before it have been returned; a file is done when its last row has, and when it
still is what it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from kafka_eos.calls import each
from kafka_eos.connectors.files.errors import mapped
from kafka_eos.connectors.files.progress import Progress, name_of
from kafka_eos.connectors.files.row_formats import Reading
from kafka_eos.errors import Fatal, RestartFromCheckpoint
from kafka_eos.ids import SplitId
from kafka_eos.interfaces import Positions, TaskContext
from kafka_eos.records import Batch, RawRecord


class FileReader:
    """Of the files of one subtask. One of them is open at a time."""

    def __init__(
        self, directory: Path, reading: Reading, ctx: TaskContext, positions: Positions, *, in_order: bool
    ) -> None:
        """``in_order``: no file is begun before the one whose name comes before it is read, also if that is paused."""
        self._directory, self._reading, self._operator = directory, reading, ctx.operator
        self._reject = partial(ctx.services.reject_record, ctx.operator)
        self._in_order = in_order
        self._at: dict[SplitId, Progress] = {}
        self._paused: frozenset[SplitId] = frozenset()
        self._open: tuple[SplitId, Iterator[Any]] | None = None
        self.assign(positions)

    def poll(self, max_records: int, timeout: float) -> Batch[Any] | None:
        while (split := self._next()) is not None:
            batch = self._read(split, max_records)
            if batch is not None and batch.values:
                return batch
        time.sleep(timeout)
        return None

    def _next(self) -> SplitId | None:
        """The file to read on; None if there is none."""
        if self._open is not None and self._open[0] not in self._paused:
            return self._open[0]
        self._close()
        unread = [split for split, at in self._at.items() if not at.done]
        if self._in_order:
            first = min(unread, key=name_of, default=None)
            return None if first in self._paused else first
        return min((split for split in unread if split not in self._paused), key=name_of, default=None)

    def _read(self, split: SplitId, max_records: int) -> Batch[Any] | None:
        """The next rows of a file, None at its end. Whatever goes wrong, nothing has moved."""
        at, path = self._at[split], self._directory / name_of(split)
        try:
            if self._open is None:
                self._expect_unchanged(path, at)
                self._open = split, self._reading.rows(path, at.row)
            rows = self._rows(path, at, self._open[1], max_records)
            if not rows:
                self._expect_unchanged(path, at)
                self._at[split] = at.at_end()
                self._close()
                return None
            batch = self._decoded(name_of(split), at.row, rows)
        except BaseException:
            self._close()
            raise
        self._at[split] = at.after(at.row + len(rows))
        return batch

    def _rows(self, path: Path, at: Progress, rows: Iterator[Any], max_records: int) -> Sequence[Any]:
        try:
            return list(islice(rows, max_records))
        except Exception as error:
            # What the operating system says has a number; what a library says of damaged data has none.
            if isinstance(error, OSError) and error.errno is not None:
                raise RestartFromCheckpoint(f"could not read {path}: {error}") from error
            self._expect_unchanged(path, at)
            raise Fatal(
                f"{path} cannot be read behind row {at.row}: {type(error).__name__}: {error}. It is damaged, or not in "
                f"the format {self._reading.name}. Nothing was skipped, and the job goes on when it can be read"
            ) from error

    def _expect_unchanged(self, path: Path, at: Progress) -> None:
        with mapped(RestartFromCheckpoint, f"look at {path}"):
            now = Progress.of(os.stat(path))
        at.expect_unchanged(path, now)

    def _decoded(self, name: str, first: int, rows: Sequence[Any]) -> Batch[Any]:
        origin = FileOrigin(self._operator, name, first, rows, self._reading)
        values, refused = each(
            self._reading.decode, rows, refuse=lambda row, error: self._reject(origin.raw(row), error)
        )
        bad = frozenset(refused)
        return Batch(values, [row for row in range(len(rows)) if row not in bad] if bad else range(len(rows)), origin)

    def _close(self) -> None:
        if self._open is not None:
            rows: Any = self._open[1]
            rows.close()
            self._open = None

    def positions(self) -> Positions:
        return {split: at.position() for split, at in self._at.items()}

    def assign(self, positions: Positions) -> None:
        self._at |= {split: Progress.read(position) for split, position in positions.items()}

    def pause(self, splits: Collection[SplitId]) -> None:
        self._paused = frozenset(splits)

    def at_end(self) -> Collection[SplitId]:
        return [split for split, at in self._at.items() if at.done]

    def lag(self) -> int | None:
        """How many rows a file has, only its end tells."""
        return 0 if all(at.done for at in self._at.values()) else None

    def reached(self, ends: Positions) -> bool:
        return all(split in self._at and self._at[split].reaches(Progress.read(end)) for split, end in ends.items())

    def close(self) -> None:
        self._close()


class FileOrigin:
    """Rows of one file, from ``first`` on. What a row is as bytes is made only when asked for."""

    __slots__ = ("_first", "_reading", "_rows", "offsets", "partitions", "source", "topic")

    def __init__(self, source: str, name: str, first: int, rows: Sequence[Any], reading: Reading) -> None:
        self.source, self.topic, self._first, self._rows, self._reading = source, name, first, rows, reading
        self.partitions: Sequence[int] = [0] * len(rows)
        self.offsets: Sequence[int] = range(first, first + len(rows))

    def timestamps(self) -> Sequence[int]:
        return [-1] * len(self._rows)

    def raw(self, row: int) -> RawRecord:
        return RawRecord(self.topic, 0, self._first + row, -1, None, self._reading.told(self._rows[row]), ())
