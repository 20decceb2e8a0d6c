"""Positions in a file: the next row, and the file's size and modification time when it was found.

Pure. Rule: the split names the file; its position contains everything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.errors import CorruptCheckpoint, InputLost
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Position


def name_split(file: str) -> SplitId:
    """Return the split of a file. Its topic is the name below the source's location, which may have slashes."""
    return SplitId(f"{file}/0")


def get_file_name(split: SplitId) -> str:
    """Return the file of a split, the inverse of ``name_split``."""
    return split.rpartition("/")[0]


class FileProgress(Struct, frozen=True):
    """The progress in reading a file, with the file's size and modification time."""

    row: int
    """The next row to read; meaningless if the file is ``done``."""
    size: int
    modified: int
    done: bool = False

    @staticmethod
    def of(state: os.stat_result) -> FileProgress:
        """Return the start position of a file."""
        return FileProgress(0, state.st_size, state.st_mtime_ns)

    @staticmethod
    def read(position: Mapping[str, Json]) -> FileProgress:
        """Parse a position. Raise CorruptCheckpoint if it is not valid."""
        match position:
            case {"size": int(size), "modified": int(modified), "done": True}:
                return FileProgress(0, size, modified, done=True)
            case {"size": int(size), "modified": int(modified), "row": int(row)} if row >= 0:
                return FileProgress(row, size, modified)
        raise CorruptCheckpoint(f"not a position in a file: {dict(position)!r}")

    @property
    def begun(self) -> bool:
        """Return whether a row was read, or the file is known to have none."""
        return self.done or self.row > 0

    def position(self) -> Position:
        file: dict[str, Json] = {"size": self.size, "modified": self.modified}
        return {**file, "done": True} if self.done else {**file, "row": self.row}

    def at_end(self) -> FileProgress:
        return replace(self, row=0, done=True)

    def after(self, row: int) -> FileProgress:
        return replace(self, row=row)

    def reaches(self, end: FileProgress) -> bool:
        return self.done or (not end.done and self.row >= end.row)

    def expect_unchanged(self, path: str, now: FileProgress) -> None:
        """Raise InputLost if the file was changed."""
        if (self.size, self.modified) != (now.size, now.modified):
            raise InputLost(
                f"{path} has changed since it was found: it had {self.size:,} bytes and now has "
                f"{now.size:,}; it was last changed {now.modified - self.modified:+,} ns later. The "
                "rows that were read are already part of the results. Restore the old file with its "
                "modification time; write new rows to a new file, and move it there when it is "
                "complete"
            )
