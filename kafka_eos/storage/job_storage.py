"""Where the durable objects of one job are kept: what that place must do, a local directory, and memory for tests.

Publishing writes a temporary file, syncs it, links it under its name and syncs the directory: the name
exists with all of its content or not at all, and an existing name is never replaced.
Rule: a full disk or an I/O error comes out as the OSError it is; nothing here retries or guesses.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from kafka_eos._util import failpoints
from kafka_eos.abc.storage import CheckpointStorage, FileRef, unheard
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.rolling_log import LocalLog


class JobStorage(CheckpointStorage, Protocol):
    """What the coordinator needs on top of what backends need."""

    def check(self, ref: FileRef) -> None:
        """Read a stored file; CorruptCheckpoint, naming it, if it is absent or not what was stored."""

    def look(self, ref: FileRef) -> None:
        """As ``check`` by existence and size alone: no byte of the file is read, however large it is."""

    def delete_all(self, names: Sequence[str]) -> None:
        """Delete many, in any order; absent is fine. Durable on return. After an OSError any of them may be left."""

    def append(self, name: str, line: str) -> None:
        """Add a line to a log of ``paths.LOGS``. Not synced. A line torn by a crash stays alone on its line."""

    def settle(self, name: str) -> None:
        """Make durable what was appended to a log so far, by whatever process. OSError leaves open how much is."""

    def lines(self, name: str) -> Sequence[str]:
        """The lines of a log, without one that was cut off at the end; [] if there is no log yet."""

    def compress(self) -> None:
        """Make what is full of the logs smaller, if that saves anything. OSError: the rest waits for another call."""

    def tidy(self) -> None:
        """Make ready for a run: remove what dead processes left; ConfigError if nothing can be published here.

        Only for the holder of the job's lock, before it starts workers: it would hit a live publisher too.
        """


class LocalFiles:
    """Objects in a directory of a local file system that honours fsync. It makes nothing until it is asked to.

    ``publish`` that raises anything but FileExistsError leaves open whether the object exists: only a recovery may
    decide that. What a recovery can see must be durable, so the next ``publish``, with which a recovery begins, first
    syncs the directory that could not be synced.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unsynced: set[Path] = set()

    def publish(self, name: str, data: bytes) -> None:
        self._sync_what_failed()
        target = self._path(name)
        passed: Callable[[str], None] = failpoints.hit if paths.is_manifest(name) else _unobserved
        if target.parent.name in paths.MADE_WHEN_NEEDED and not target.parent.exists():
            files.make_directory(target.parent)
            files.sync_directory(self.root)
        with self._staging(target.parent) as temporary:
            with files.created(temporary) as fd:
                files.write_all(fd, data)
                passed("manifest.staged")
                os.fsync(fd)
                passed("manifest.synced")
            os.link(temporary, target, follow_symlinks=False)
            passed("manifest.renamed")
        self._sync(target.parent)
        passed("manifest.published")

    def read(self, name: str) -> bytes:
        with self._stored(name) as fd:
            return files.read_all(fd)

    def list(self, prefix: str) -> Sequence[str]:
        names = os.listdir(self._path(prefix))
        return sorted(f"{prefix}/{name}" for name in names if not name.startswith(files.TEMPORARY))

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def delete_all(self, names: Sequence[str]) -> None:
        gone = [self._path(name) for name in names]
        for path in gone:
            path.unlink(missing_ok=True)
        for directory in sorted({path.parent for path in gone}):
            files.sync_directory(directory)

    def upload(self, path: Path, name: str) -> FileRef:
        """As ``CheckpointStorage``. A file that is private to this user gets a second name here: it must not change.

        Any other is copied: what is stored is private, and what is somebody else's stays as it is.
        """
        with files.opened(path) as fd:
            sha256, size = files.digest(fd)
            ref = FileRef(paths.plain_file_name(name), sha256, size)
            target = self._path(paths.shared_name(sha256))
            if not self._holds(ref, target) and self._place(path, fd, ref, target):
                return ref
        # Another process stored the same content, and may not have come to its syncs yet.
        files.sync(target)
        files.sync_directory(target.parent)
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = unheard) -> None:
        stored = self._path(paths.shared_name(ref.sha256))
        with self._shared(ref) as fd:
            pieces = files.counted(files.chunks(fd), passed)
            if ref.name.endswith(paths.IMMUTABLE_SUFFIX) and files.link(stored, target):
                expect(ref, files.digest_of(pieces))
                return
            with files.created(target) as out:
                expect(ref, files.write_chunks(out, pieces))

    def check(self, ref: FileRef) -> None:
        with self._shared(ref) as fd:
            expect(ref, files.digest(fd))

    def look(self, ref: FileRef) -> None:
        with self._shared(ref) as fd:
            expect_size(ref, os.fstat(fd).st_size)

    def append(self, name: str, line: str) -> None:
        self._log(name).append(line)

    def settle(self, name: str) -> None:
        self._log(name).settle()

    def lines(self, name: str) -> Sequence[str]:
        return self._log(name).lines()

    def compress(self) -> None:
        for name in paths.LOGS:
            self._log(name).compress()

    def _log(self, name: str) -> LocalLog:
        if name not in paths.LOGS:
            raise CorruptCheckpoint(f"{name!r} is not a log")
        return LocalLog(self.root, name)

    def _sync(self, directory: Path) -> None:
        try:
            files.sync_directory(directory)
        except OSError:
            self._unsynced.add(directory)
            raise

    def _sync_what_failed(self) -> None:
        while self._unsynced:
            # Taken out first: another thread that fails meanwhile adds it again.
            self._sync(self._unsynced.pop())

    def _path(self, name: str) -> Path:
        return self.root / paths.inside(name)

    @contextmanager
    def _staging(self, directory: Path) -> Iterator[Path]:
        temporary = files.temporary(directory)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _stored(self, name: str) -> Iterator[int]:
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(files.opened(self._path(name)))
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EINVAL):
                    raise CorruptCheckpoint(f"{name}: not a regular file (links are not followed)") from error
                raise
            yield fd

    @contextmanager
    def _shared(self, ref: FileRef) -> Iterator[int]:
        name = paths.shared_name(ref.sha256)
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(self._stored(name))
            except FileNotFoundError as error:
                raise CorruptCheckpoint(f"{name} ({ref.name}): the file is missing") from error
            yield fd

    @staticmethod
    def _holds(ref: FileRef, target: Path) -> bool:
        try:
            found = os.lstat(target)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != ref.size:
            raise altered(ref, f"{found.st_size} bytes, not {ref.size}")
        return True

    def _place(self, path: Path, fd: int, ref: FileRef, target: Path) -> bool:
        """Store a file, durably. False if somebody has stored the same content a moment ago."""
        with self._staging(target.parent) as temporary:
            try:
                if not self._linked(path, fd, target):
                    os.lseek(fd, 0, os.SEEK_SET)
                    with files.created(temporary) as out:
                        expect(ref, files.copy(fd, out))
                        os.fsync(out)
                    os.link(temporary, target, follow_symlinks=False)
            except FileExistsError:
                return False
        files.sync_directory(target.parent)
        return True

    @staticmethod
    def _linked(path: Path, fd: int, target: Path) -> bool:
        if not files.is_private(fd):
            return False
        # Content first, then the name: after a power cut the name must not stand for less.
        os.fsync(fd)
        return files.link(path, target)


class LocalStorage(LocalFiles):
    """The directory of a job, on a file system that has hard links. The supervisor and its workers each open it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        for directory in (root, *(root / name for name in paths.DIRECTORIES)):
            files.make_directory(directory)
        for directory in (root.parent, root):
            files.sync_directory(directory)

    def tidy(self) -> None:
        """As ``JobStorage``. Also makes durable what dead processes linked before they died."""
        directories = [self.root / name for name in (*paths.DIRECTORIES, *paths.MADE_WHEN_NEEDED, *paths.LOGS.values())]
        for directory in (each for each in directories if each.exists()):
            for entry in directory.iterdir():
                if entry.name.startswith(files.TEMPORARY):
                    entry.unlink(missing_ok=True)
            files.sync_directory(directory)


class MemoryStorage:
    """The same contract without a disk, for tests. ``objects`` is what is stored; may be used from threads."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._logs: dict[str, str] = {}
        self._creating = threading.Lock()

    def publish(self, name: str, data: bytes) -> None:
        with self._creating:
            if paths.inside(name) in self.objects:
                raise FileExistsError(errno.EEXIST, "exists", name)
            self.objects[name] = bytes(data)

    def read(self, name: str) -> bytes:
        try:
            return self.objects[paths.inside(name)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such object", name) from None

    def list(self, prefix: str) -> Sequence[str]:
        return sorted(name for name in tuple(self.objects) if name.startswith(f"{prefix}/"))

    def delete(self, name: str) -> None:
        self.objects.pop(paths.inside(name), None)

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def upload(self, path: Path, name: str) -> FileRef:
        data = path.read_bytes()
        ref = FileRef(paths.plain_file_name(name), hashlib.sha256(data).hexdigest(), len(data))
        self.objects[paths.shared_name(ref.sha256)] = data
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = unheard) -> None:
        data = self._checked(ref)
        with files.created(target) as fd:
            files.write_chunks(fd, files.counted([data], passed))

    def check(self, ref: FileRef) -> None:
        self._checked(ref)

    def look(self, ref: FileRef) -> None:
        expect_size(ref, len(self._stored(ref)))

    def append(self, name: str, line: str) -> None:
        self._logs[name] = self._logs.get(paths.inside(name), "") + line + "\n"

    def settle(self, name: str) -> None:
        """Nothing outlives a process here."""

    def lines(self, name: str) -> Sequence[str]:
        return paths.complete_lines(self._logs.get(name, "").encode())

    def compress(self) -> None:
        """Nothing is full here."""

    def tidy(self) -> None:
        """Nothing outlives a process here."""

    def _checked(self, ref: FileRef) -> bytes:
        data = self._stored(ref)
        expect(ref, (hashlib.sha256(data).hexdigest(), len(data)))
        return data

    def _stored(self, ref: FileRef) -> bytes:
        try:
            return self.objects[paths.shared_name(ref.sha256)]
        except KeyError:
            raise altered(ref, "the file is missing") from None


def expect(ref: FileRef, found: tuple[str, int]) -> None:
    """CorruptCheckpoint, naming the file, unless ``found`` (SHA-256 in hex, bytes) is what ``ref`` says."""
    sha256, size = found
    expect_size(ref, size)
    if sha256 != ref.sha256:
        raise altered(ref, "the content does not match its checksum")


def expect_size(ref: FileRef, size: int) -> None:
    """CorruptCheckpoint, naming the file, unless it has as many bytes as ``ref`` says."""
    if size != ref.size:
        raise altered(ref, f"{size} bytes, not {ref.size}")


def altered(ref: FileRef, what: str) -> CorruptCheckpoint:
    """The error that names a stored file and what is wrong with it."""
    return CorruptCheckpoint(f"{paths.shared_name(ref.sha256)} ({ref.name}): {what}")


def _unobserved(_: str) -> None:
    """Only manifests have named steps."""
