"""What a position in a file is: the next row, and what the file was when it was found.

Pure. Rule: the split names the file; its position says the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_eos.core.errors import CorruptCheckpoint, InputLost
from kafka_eos.core.json_values import Json, Position


@dataclass(frozen=True, slots=True)
class Progress:
    """``size`` in bytes, ``modified`` in nanoseconds since the Unix epoch, as the file system says them."""

    row: int
    """The next one to read; of a file that is ``done`` it does not matter."""
    size: int
    modified: int
    done: bool = False

    @staticmethod
    def of(state: os.stat_result) -> Progress:
        """Of a file that is read from its beginning."""
        return Progress(0, state.st_size, state.st_mtime_ns)

    @staticmethod
    def read(position: Mapping[str, Json]) -> Progress:
        """CorruptCheckpoint if it is none."""
        match position:
            case {"size": int(size), "modified": int(modified), "done": True}:
                return Progress(0, size, modified, done=True)
            case {"size": int(size), "modified": int(modified), "row": int(row)} if row >= 0:
                return Progress(row, size, modified)
        raise CorruptCheckpoint(f"not a position in a file: {dict(position)!r}")

    @property
    def begun(self) -> bool:
        """Has a row of it been read, or is it known that it has none?"""
        return self.done or self.row > 0

    def position(self) -> Position:
        file: dict[str, Json] = {"size": self.size, "modified": self.modified}
        return {**file, "done": True} if self.done else {**file, "row": self.row}

    def at_end(self) -> Progress:
        return replace(self, row=0, done=True)

    def after(self, row: int) -> Progress:
        return replace(self, row=row)

    def reaches(self, end: Progress) -> bool:
        return self.done or (not end.done and self.row >= end.row)

    def expect_unchanged(self, path: str, now: Progress) -> None:
        """InputLost if the file is another one now."""
        if (self.size, self.modified) != (now.size, now.modified):
            raise InputLost(
                f"{path} has changed since it was found: it had {self.size:,} bytes and now has {now.size:,}, last "
                f"changed {now.modified - self.modified:+,} ns from then. What was read of it is in the results; "
                "put the old file back, with its time; new rows go into a new file, moved there when it is whole"
            )
