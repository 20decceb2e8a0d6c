"""How far the restore of one operator's state is, told by what has been done.

Rule: it is told after a piece of work and never by the clock: who waits takes silence for a standstill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kafka_eos.abc.storage import CheckpointStorage, FileRef

_UNITS = (("GB", 10**9), ("MB", 10**6), ("KB", 10**3))


@dataclass(frozen=True, slots=True)
class Restored:
    """What is done of a restore. ``rows``: those that were converted, or taken up again; most restores have none."""

    operator: str
    files: int
    of_files: int
    bytes: int
    of_bytes: int
    rows: int

    def __str__(self) -> str:
        unit, size = next(((unit, size) for unit, size in _UNITS if self.of_bytes >= size), ("bytes", 1))
        done, total = (f"{number / size:,.{0 if size == 1 else 1}f}" for number in (self.bytes, self.of_bytes))
        rows = f", {self.rows:,} rows" if self.rows else ""
        return f"{self.operator!r}: {done} of {total} {unit}, {self.files} of {self.of_files} files{rows}"


Told: TypeAlias = Callable[[Restored], None]


def nobody(restored: Restored) -> None:
    """Nobody is told."""


class Restoration:
    """The stored files of one operator as its restore fetches them: each piece of each file is counted, and told."""

    def __init__(self, operator: str, stored: CheckpointStorage, files: Sequence[FileRef], told: Told) -> None:
        self._operator, self._stored, self._told = operator, stored, told
        self._of_files, self._of_bytes = len(files), sum(file.size for file in files)
        self._files = self._bytes = self._rows = 0

    def fetch(self, ref: FileRef, target: Path) -> None:
        """As ``StoredFiles``."""
        self._stored.fetch(ref, target, self._passed)
        self._files += 1
        self._tell()

    def converted(self, rows: int) -> None:
        """So many rows more are read and in their place."""
        self._rows += rows
        self._tell()

    def _passed(self, size: int) -> None:
        self._bytes += size
        self._tell()

    def _tell(self) -> None:
        self._told(Restored(self._operator, self._files, self._of_files, self._bytes, self._of_bytes, self._rows))
