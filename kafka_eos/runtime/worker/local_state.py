"""The local state of one worker: a directory per term, below one per subtask.

It is a copy of the checkpoint. A later session on the same machine takes state files from it instead of fetching them.
Rule: a file is taken only if its content, which is read each time, is what the checkpoint names.
"""

from __future__ import annotations

import heapq
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from kafka_eos.abc.storage import CheckpointStorage, FileRef, ignore_progress
from kafka_eos.storage import local_files as files
from kafka_eos.storage.object_names import IMMUTABLE_SUFFIX

_MOST_FILES = 400
"""The first message of a worker, which contains their sizes, must stay below 4 KB."""


class LocalFirstStorage:
    """A ``CheckpointStorage`` that takes files which RocksDB never changes from ``directories``, if it finds them."""

    def __init__(self, storage: CheckpointStorage, directories: Iterable[Path]) -> None:
        self._storage = storage
        self._by_size: dict[int, list[Path]] = defaultdict(list)
        for directory in directories:
            for path in directory.rglob(f"*{IMMUTABLE_SUFFIX}"):
                with suppress(FileNotFoundError):  # another worker of this machine has removed it
                    self._by_size[path.stat().st_size].append(path)

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        if ref.name.endswith(IMMUTABLE_SUFFIX) and self._has_linked(ref, target):
            passed(ref.size)
        else:
            self._storage.fetch(ref, target, passed)

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

    def _has_linked(self, ref: FileRef, target: Path) -> bool:
        """Return whether a local file with this content has got the name ``target``."""
        for path in self._by_size[ref.size]:
            with suppress(FileNotFoundError):
                with files.open_file(path) as fd:
                    is_same = files.digest(fd) == (ref.sha256, ref.size)
                if is_same and files.link(path, target):
                    return True
        return False


def list_largest_files(roots: Iterable[Path]) -> tuple[int, ...]:
    """Return the sizes of the largest state files below ``roots``, at most 400: they say which state is here.

    Two files of one size are rarely different, and a worker verifies each file before it takes it.
    """
    sizes = []
    for root in roots:
        for path in root.rglob(f"*{IMMUTABLE_SUFFIX}"):
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
    return tuple(heapq.nlargest(_MOST_FILES, sizes))


def find_older_state(roots: Iterable[Path], term: int) -> Iterator[Path]:
    """Yield the directories below ``roots`` in which workers kept their state in earlier terms."""
    for root in roots:
        for directory in root.glob("*/*"):
            if _is_older(directory, term):
                yield directory


def remove_older_state(directory: Path, term: int, kept: int) -> None:
    """Remove a subtask's state of terms before ``term``, except the ``kept`` newest ones.

    State of a newer term stays: this session may be the late one of a worker that has been replaced.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    older = sorted((path for path in directory.iterdir() if _is_older(path, term)), key=lambda path: int(path.name))
    for path in older[: len(older) - kept]:
        shutil.rmtree(path)


def _is_older(directory: Path, term: int) -> bool:
    return directory.name.isdigit() and int(directory.name) < term
