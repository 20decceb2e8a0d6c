"""Storage of a job's durable objects and state files.

Rule: an object is complete or absent, and no object is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class PackedAt(Struct, frozen=True):
    """The place of a small file in an object that has several of them."""

    sha256: str
    """SHA-256 of the object's content."""
    size: int
    """The size of the object."""
    start: int


class FileRef(Struct, frozen=True, omit_defaults=True):
    """A content-addressed file: equal bytes are stored once, however often they are referenced."""

    name: str
    """The name under which the backend fetches it."""
    sha256: str
    size: int
    pack: PackedAt | None = None
    """None: it is an object of its own."""

    @property
    def object(self) -> FileRef:
        """Return the stored object that has its content: the file itself, or its pack."""
        return self if self.pack is None else FileRef("pack", self.pack.sha256, self.pack.size)

    @property
    def start(self) -> int:
        """Return where its content begins in that object."""
        return 0 if self.pack is None else self.pack.start

    def content_in(self, stored: bytes) -> bytes:
        """Return its content, unchecked, from that of its object: all of it if the object is the file itself."""
        return stored if self.pack is None else stored[self.start : self.start + self.size]


class FileBatch(Protocol):
    """Files of a checkpoint that are stored together."""

    def add(self, path: Path) -> Callable[[], FileRef]:
        """Add a file, which may be removed then. The returned function may be called when the batch is stored.

        Raises OSError if it cannot be stored.
        """


def ignore_progress(size: int) -> None:
    """Ignore the progress of a fetch; the default of its ``on_bytes``."""


class StoredFiles(Protocol):
    """Access to state files by their content."""

    def fetch(self, ref: FileRef, target: Path) -> None:
        """Fetch a file and verify its length and checksum. Raises CorruptCheckpoint, which names the file."""


class CheckpointStorage(StoredFiles, Protocol):
    """Durable objects of one job. Names come from ``storage.object_names`` only."""

    def publish(self, name: str, data: bytes) -> None:
        """Create ``name`` with ``data``: all or nothing, durable on return. Raises FileExistsError if it exists."""

    def read(self, name: str) -> bytes:
        """Return the content of an object. Raises FileNotFoundError if it is absent."""

    def list(self, prefix: str) -> Sequence[str]:
        """List the complete, published names below ``prefix`` (a directory name), sorted."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists. Not durable: after a power failure the object may exist again."""

    def upload(self, path: Path, name: str) -> FileRef:
        """Store a file under its content; return when it is durable. If it is stored already, nothing is copied."""

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        """Fetch as ``StoredFiles`` does.

        ``passed`` is called with the bytes of each piece; its exceptions end the call.
        """
