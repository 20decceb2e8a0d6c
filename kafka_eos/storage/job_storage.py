"""Storage of the durable objects of one job: the interface, a local directory, and memory for tests.

Publishing writes a temporary file, syncs it, links it under its name and syncs the directory. The name exists with all
of its content or not at all, and an existing name is never replaced.
Rule: a full disk or an I/O error is raised as the original OSError; this module neither retries nor guesses.
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
from kafka_eos.abc.storage import CheckpointStorage, FileRef, ignore_progress
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.rolling_log import LocalLog


class JobStorage(CheckpointStorage, Protocol):
    """The storage operations that the coordinator needs in addition to those of state backends."""

    def check_content(self, ref: FileRef) -> None:
        """Read a file and compare its checksum."""

    def check_size(self, ref: FileRef) -> None:
        """Check that a file exists and has the right size, without reading it."""

    def delete_all(self, names: Sequence[str]) -> None:
        """Delete objects in any order, durably. Absent ones are ignored. After an OSError any of them may remain."""

    def append(self, name: str, line: str) -> None:
        """Append a line to a log of ``object_names.LOGS``, without a sync. A line torn by a crash stays on a line of
        its own."""

    def sync_log(self, name: str) -> None:
        """Make the lines appended to a log durable. After an OSError it is unknown how many of them are."""

    def lines(self, name: str) -> Sequence[str]:
        """Return the lines of a log, without one that was cut off at the end; [] if the log does not exist."""

    def compress_logs(self) -> None:
        """Compress full log segments. After an OSError, another call compresses the rest."""

    def prepare_run(self) -> None:
        """Prepare for a run: remove temporary files of dead processes, and test that publishing works.

        Only the holder of the job's lock may call it, before it starts workers: it would also remove files of a live
        publisher.
        """


class LocalFiles:
    """The objects in a directory of a local file system that honors fsync. Nothing is created before the first write.

    If ``publish`` raises anything but FileExistsError, it is unknown whether the object exists: only a recovery may
    decide that. Objects that a recovery can see must be durable. So the next ``publish``, with which a recovery begins,
    first syncs the directory whose sync failed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unsynced: set[Path] = set()

    def publish(self, name: str, data: bytes) -> None:
        self._sync_what_failed()
        target = self._path(name)
        passed: Callable[[str], None] = failpoints.hit if paths.is_manifest(name) else _unobserved
        if target.parent.name in paths.LAZY_DIRECTORIES and not target.parent.exists():
            files.make_directory(target.parent)
            files.sync_directory(self.root)
        with self._staging(target.parent) as temporary:
            with files.create_file(temporary) as fd:
                files.write_all(fd, data)
                passed("manifest.staged")
                os.fsync(fd)
                passed("manifest.synced")
            try:
                os.link(temporary, target, follow_symlinks=False)
            except FileExistsError:
                self._sync(target.parent)  # the process that created it may not have done so
                raise
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
        """Upload as ``CheckpointStorage`` does. A file private to this user is hard-linked, so it must not change
        later.

        Any other file is copied, because stored files are private and the original must stay as it is.
        """
        with files.open_file(path) as fd:
            sha256, size = files.digest(fd)
            ref = FileRef(paths.ensure_plain_name(name), sha256, size)
            target = self._path(paths.shared_name(sha256))
            if not self._holds(ref, target) and self._place(path, fd, ref, target):
                return ref
        # Another process stored the same content, and may not have synced it yet.
        files.sync(target)
        files.sync_directory(target.parent)
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        with self._shared(ref) as fd:
            content = files.chunks(fd) if ref.pack is None else [files.read_part(fd, ref.start, ref.size)]
            pieces = files.with_progress(content, passed)
            is_linkable = ref.pack is None and ref.name.endswith(paths.IMMUTABLE_SUFFIX)
            if is_linkable and files.link(self._path(paths.shared_name(ref.sha256)), target):
                ensure_matches(ref, files.digest_of(pieces))
                return
            with files.create_file(target) as out:
                ensure_matches(ref, files.write_chunks(out, pieces))

    def check_content(self, ref: FileRef) -> None:
        with self._shared(ref) as fd:
            ensure_matches(ref, files.digest(fd))

    def check_size(self, ref: FileRef) -> None:
        with self._shared(ref) as fd:
            ensure_size(ref, os.fstat(fd).st_size)

    def append(self, name: str, line: str) -> None:
        self._log(name).append(line)

    def sync_log(self, name: str) -> None:
        self._log(name).sync()

    def lines(self, name: str) -> Sequence[str]:
        return self._log(name).lines()

    def compress_logs(self) -> None:
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
            # Remove it first: a thread that fails meanwhile adds it back.
            self._sync(self._unsynced.pop())

    def _path(self, name: str) -> Path:
        return self.root / paths.ensure_inside(name)

    @contextmanager
    def _staging(self, directory: Path) -> Iterator[Path]:
        temporary = files.temporary_path(directory)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _stored(self, name: str) -> Iterator[int]:
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(files.open_file(self._path(name)))
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EINVAL):
                    raise CorruptCheckpoint(f"{name}: not a regular file (links are not followed)") from error
                raise
            yield fd

    @contextmanager
    def _shared(self, ref: FileRef) -> Iterator[int]:
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(self._stored(paths.shared_name(ref.object.sha256)))
            except FileNotFoundError as error:
                raise damaged_file_error(ref, "the file is missing") from error
            yield fd

    @staticmethod
    def _holds(ref: FileRef, target: Path) -> bool:
        try:
            found = os.lstat(target)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != ref.size:
            raise damaged_file_error(ref, f"{found.st_size} bytes, not {ref.size}")
        return True

    def _place(self, path: Path, fd: int, ref: FileRef, target: Path) -> bool:
        """Store a file durably. Return False if another process stored the same content a moment ago."""
        with self._staging(target.parent) as temporary:
            try:
                if not self._linked(path, fd, target):
                    os.lseek(fd, 0, os.SEEK_SET)
                    with files.create_file(temporary) as out:
                        ensure_matches(ref, files.copy(fd, out))
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
        # Sync the content first, then the name: after a power cut the name must not refer to incomplete content.
        os.fsync(fd)
        return files.link(path, target)


class LocalStorage(LocalFiles):
    """The directory of a job, on a file system with hard links. The supervisor and its workers each open it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        for directory in (root, *(root / name for name in paths.DIRECTORIES)):
            files.make_directory(directory)
        for directory in (root.parent, root):
            files.sync_directory(directory)

    def prepare_run(self) -> None:
        """Prepare as ``JobStorage`` does. Also make links durable that dead processes created."""
        directories = [self.root / name for name in (*paths.DIRECTORIES, *paths.LAZY_DIRECTORIES, *paths.LOGS.values())]
        for directory in (each for each in directories if each.exists()):
            for entry in directory.iterdir():
                if entry.name.startswith(files.TEMPORARY):
                    entry.unlink(missing_ok=True)
            files.sync_directory(directory)


class MemoryStorage:
    """A storage in memory, for tests. ``objects`` is the stored content; thread-safe."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._logs: dict[str, str] = {}
        self._creating = threading.Lock()

    def publish(self, name: str, data: bytes) -> None:
        with self._creating:
            if paths.ensure_inside(name) in self.objects:
                raise FileExistsError(errno.EEXIST, "exists", name)
            self.objects[name] = bytes(data)

    def read(self, name: str) -> bytes:
        try:
            return self.objects[paths.ensure_inside(name)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such object", name) from None

    def list(self, prefix: str) -> Sequence[str]:
        return sorted(name for name in tuple(self.objects) if name.startswith(f"{prefix}/"))

    def delete(self, name: str) -> None:
        self.objects.pop(paths.ensure_inside(name), None)

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def upload(self, path: Path, name: str) -> FileRef:
        data = path.read_bytes()
        ref = FileRef(paths.ensure_plain_name(name), hashlib.sha256(data).hexdigest(), len(data))
        self.objects[paths.shared_name(ref.sha256)] = data
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        data = self._checked(ref)
        with files.create_file(target) as fd:
            files.write_chunks(fd, files.with_progress([data], passed))

    def check_content(self, ref: FileRef) -> None:
        self._checked(ref)

    def check_size(self, ref: FileRef) -> None:
        ensure_size(ref, len(self._stored(ref)))

    def append(self, name: str, line: str) -> None:
        self._logs[name] = self._logs.get(paths.ensure_inside(name), "") + line + "\n"

    def sync_log(self, name: str) -> None:
        """Do nothing: memory does not outlive the process."""

    def lines(self, name: str) -> Sequence[str]:
        return paths.complete_lines(self._logs.get(name, "").encode())

    def compress_logs(self) -> None:
        """Do nothing: logs in memory have no segments."""

    def prepare_run(self) -> None:
        """Do nothing: memory does not outlive the process."""

    def _checked(self, ref: FileRef) -> bytes:
        data = self._stored(ref)
        ensure_matches(ref, (hashlib.sha256(data).hexdigest(), len(data)))
        return data

    def _stored(self, ref: FileRef) -> bytes:
        try:
            return ref.content_in(self.objects[paths.shared_name(ref.object.sha256)])
        except KeyError:
            raise damaged_file_error(ref, "the file is missing") from None


def ensure_matches(ref: FileRef, found: tuple[str, int]) -> None:
    """Raise CorruptCheckpoint unless checksum and size match the reference."""
    sha256, size = found
    ensure_size(ref, size)
    if sha256 != ref.sha256:
        raise damaged_file_error(ref, "the content does not match its checksum")


def ensure_size(ref: FileRef, size: int) -> None:
    """Raise CorruptCheckpoint unless the size matches the reference."""
    if size != ref.size:
        raise damaged_file_error(ref, f"{size} bytes, not {ref.size}")


def damaged_file_error(ref: FileRef, what: str) -> CorruptCheckpoint:
    """Return the error for a stored file that is damaged."""
    return CorruptCheckpoint(f"{paths.shared_name(ref.object.sha256)} ({ref.name}): {what}")


def _unobserved(_: str) -> None:
    """Do nothing: only manifests have failpoints."""
