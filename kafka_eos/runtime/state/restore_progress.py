"""Progress of the restore of an operator's state.

Rule: progress is reported after each piece of work, never by a timer: the waiting side takes silence for a hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from kafka_eos.abc.storage import CheckpointStorage, FileRef

_UNITS = (("GB", 10**9), ("MB", 10**6), ("KB", 10**3))


class RestoreProgress(Struct, frozen=True):
    """Progress of one operator's restore: files, bytes and rows done.

    ``rows`` counts rows that were converted or restored as in-flight rows; most restores have none.
    """

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


ProgressListener: TypeAlias = Callable[[RestoreProgress], None]


def nobody(restored: RestoreProgress) -> None:
    """Ignore the progress of a restore."""


class RestoreFetcher:
    """Fetches the stored files of one operator and reports the progress. Several threads may fetch at the same time."""

    def __init__(
        self, operator: str, stored: CheckpointStorage, files: Sequence[FileRef], on_progress: ProgressListener
    ) -> None:
        self._operator = operator
        self._stored = stored
        self._on_progress = on_progress
        self._of_files, self._of_bytes = len(files), sum(file.size for file in files)
        self._files = self._bytes = self._rows = 0
        self._counting = threading.Lock()

    def fetch(self, ref: FileRef, target: Path) -> None:
        """Fetch a file as ``StoredFiles`` does, and report its progress."""
        self._stored.fetch(ref, target, self._passed)
        self._count(files=1)

    def count_rows(self, rows: int) -> None:
        """Count converted rows and report the progress."""
        self._count(rows=rows)

    def _passed(self, size: int) -> None:
        self._count(size=size)

    def _count(self, files: int = 0, size: int = 0, rows: int = 0) -> None:
        with self._counting:
            self._files += files
            self._bytes += size
            self._rows += rows
            self._on_progress(
                RestoreProgress(self._operator, self._files, self._of_files, self._bytes, self._of_bytes, self._rows)
            )
