"""A checkpoint storage that passes each call on to another one: the base of those that change some calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kafka_eos.abc.storage import CheckpointStorage, FileRef, ignore_progress


class ForwardingStorage:
    """A ``CheckpointStorage`` that does what ``storage`` does."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage

    def publish(self, name: str, data: bytes) -> None:
        self._storage.publish(name, data)

    def read(self, name: str) -> bytes:
        return self._storage.read(name)

    def list(self, prefix: str) -> Sequence[str]:
        return self._storage.list(prefix)

    def delete(self, name: str) -> None:
        self._storage.delete(name)

    def upload(self, path: Path, name: str) -> FileRef:
        return self._storage.upload(path, name)

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        self._storage.fetch(ref, target, passed)
