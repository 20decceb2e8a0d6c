"""Where durable objects and state files of a job are kept.

Rule: an object is there whole or not at all, and nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileRef:
    """A content-addressed file: the same bytes are stored once, whoever refers to them."""

    name: str
    """The name the backend wants it back under."""
    sha256: str
    size: int


def unheard(size: int) -> None:
    """Nobody hears how much has passed."""


class StoredFiles(Protocol):
    """State files by their content."""

    def fetch(self, ref: FileRef, target: Path) -> None:
        """Bring a file back after verifying length and checksum, else raise CorruptCheckpoint naming it."""


class CheckpointStorage(StoredFiles, Protocol):
    """Durable objects of one job. Names come from ``storage.object_names`` only."""

    def publish(self, name: str, data: bytes) -> None:
        """Create ``name`` with ``data``: all or nothing, durable on return. FileExistsError if it exists."""

    def read(self, name: str) -> bytes:
        """FileNotFoundError if absent."""

    def list(self, prefix: str) -> Sequence[str]:
        """Complete published names below ``prefix`` (a directory name), sorted."""

    def delete(self, name: str) -> None:
        """Absent is fine. Not durable: after a power cut the object may be back."""

    def upload(self, path: Path, name: str) -> FileRef:
        """Store a file under its content. Already stored: costs a look, no copy. Durable on return."""

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = unheard) -> None:
        """As ``StoredFiles``; ``passed`` hears the bytes of each piece as it goes, and what it raises ends the call."""
