"""The executor's copy of state files: a cache of the checkpoint storage, by content.

A task opens its state from files that it links into a directory of its own attempt. What an attempt wrote there is
never read again under that name; its files are, if a decided manifest names their content.
Rule: only files that RocksDB never writes again are kept, under their SHA-256, so it does not matter whose they were.
What an earlier term has kept is used too, but only after its content was read: the machine may have lost power since.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kafka_eos.abc.storage import CheckpointStorage, FileRef, ignore_progress
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.forwarding_storage import ForwardingStorage

_KEPT = "cache"
_INHERITED = "inherited"
_YOUNG = 60.0
"""Seconds for which a file may belong to an epoch that is not decided yet."""


class CachedStorage(ForwardingStorage):
    """A ``CheckpointStorage`` that remembers what it uploads and fetches, in ``directory`` of one term."""

    def __init__(self, storage: CheckpointStorage, directory: Path) -> None:
        super().__init__(storage)
        self._kept = directory / _KEPT
        self._inherited = directory / _INHERITED
        self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)

    def upload(self, path: Path, name: str) -> FileRef:
        ref = super().upload(path, name)
        self._keep(ref, path)
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        if ref.name.endswith(paths.IMMUTABLE_SUFFIX):
            # Another task of this machine may drop it between any two steps: then it comes from the storage.
            with suppress(FileNotFoundError):
                kept = self._kept / ref.sha256
                if kept.stat().st_size == ref.size and files.link(kept, target):
                    return
        if not self._took_over(ref, target):
            super().fetch(ref, target, passed)
        self._keep(ref, target)

    def _took_over(self, ref: FileRef, target: Path) -> bool:
        """Link what an earlier term has kept, if its content is what it should be."""
        kept = self._inherited / ref.sha256
        if not ref.name.endswith(paths.IMMUTABLE_SUFFIX) or not kept.exists():
            return False
        with suppress(OSError):
            with files.open_file(kept) as fd:
                intact = files.digest(fd) == (ref.sha256, ref.size)
            if intact:
                return files.link(kept, target)
            kept.unlink()
        return False

    def prepare_run(self, needed: Collection[str]) -> None:
        """Forget files that are not ``needed`` (SHA-256) by the newest epoch, unless they came just now."""
        young = time.time() - _YOUNG
        for kept in self._kept.iterdir():
            with suppress(FileNotFoundError):
                if kept.name not in needed and kept.stat().st_ctime < young:
                    kept.unlink()
        for old in self._inherited.glob("*"):  # no process adds to these
            if old.name not in needed:
                old.unlink(missing_ok=True)

    def _keep(self, ref: FileRef, path: Path) -> None:
        if ref.name.endswith(paths.IMMUTABLE_SUFFIX):
            with suppress(FileExistsError):
                files.link(path, self._kept / ref.sha256)


class LocalDisk:
    """One of this machine's working directories: attempts of a term work there, beside the files kept for them."""

    def __init__(self, storage: CheckpointStorage, root: Path, term: int) -> None:
        self.directory = own_directory(root, term)
        self.storage = CachedStorage(storage, self.directory)


def disk_of(disks: Sequence[LocalDisk], level: int, subtask: int) -> LocalDisk:
    """Return the disk of a task. Tasks take disks in turn, and keep theirs in every epoch, where the last files are."""
    return disks[(level + subtask) % len(disks)]


def own_directory(root: Path, term: int) -> Path:
    """Return the directory of the term on this machine, and remove those of older terms.

    Their files are moved to this term: a job that restarts needs most of them.
    """
    directory = root / str(term)
    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        older = [old for old in root.iterdir() if old.name.isdigit() and int(old.name) < term]
        for old in sorted(older, key=lambda old: int(old.name), reverse=True):
            # Another task of this machine may be doing the same: each file is moved or removed by one of them.
            _inherit_files(old, directory / _INHERITED)
            shutil.rmtree(old, ignore_errors=True)
    return directory


def _inherit_files(old: Path, inherited: Path) -> None:
    """Move cached files from an older term to a newer one."""
    inherited.mkdir(mode=0o700, exist_ok=True)
    for kept in [*old.glob(f"{_KEPT}/*"), *old.glob(f"{_INHERITED}/*")]:
        with suppress(FileNotFoundError):
            kept.rename(inherited / kept.name)


@contextmanager
def attempt_directory(directory: Path, attempt: int) -> Iterator[Path]:
    """A new directory of one attempt, removed at the end. Removes those that killed attempts of this host have left.

    An attempt has it locked, and the lock ends with the process; where tasks run in containers, a process id
    would tell nothing. Where nothing can be locked nothing is taken for left, until the next term; nor is the empty one
    of a task that was killed before it had locked it.
    """
    here = f"attempt-{socket.gethostname()}-"
    for old in directory.glob(f"{here}*"):
        with _lock(old) as locked:
            if locked:
                shutil.rmtree(old, ignore_errors=True)
    path = directory / f"{here}{attempt}-{os.getpid()}"
    new = directory / f"new-{path.name}"
    new.mkdir(mode=0o700)
    with _lock(new):
        new.rename(path)
        try:
            yield path
        finally:
            shutil.rmtree(path)


@contextmanager
def _lock(directory: Path) -> Iterator[bool]:
    """Lock a directory and yield whether that succeeded.

    It fails if another process holds the lock, the directory is gone, or its file system has no locks.
    """
    with ExitStack() as closing:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            closing.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
