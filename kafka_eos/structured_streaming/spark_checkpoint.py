"""Spark's checkpoint, read through Spark, so that every path that Spark supports is supported here.

``HadoopFiles`` uses Spark's own CheckpointFileManager, which writes Spark's offset and commit logs. So a prepared batch
is published with exactly the atomicity of the decision that follows it.

Rule: only ``commits/<batch>`` of Spark's files is read, and none is ever written.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_eos.abc.storage import CheckpointStorage, FileRef, ignore_progress
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, JobLocked, Retryable
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "kafka_eos"
"""The directory of the sink's own records, inside the checkpoint: they are copied and deleted with it."""
_COMMITS: Final = "commits"
_MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"


class CommitLog(Protocol):
    """The batches in Spark's commit log."""

    pause: float
    """Seconds between looks."""

    def has(self, batch: int) -> bool:
        """Raises Retryable if the store does not answer."""

    def find_latest_batch(self) -> int | None:
        """Return the newest batch in the commit log; None if it is empty."""


class LocalCommitLog:
    """Spark's commit log in a directory of this host."""

    pause = 0.005

    def __init__(self, checkpoint: Path) -> None:
        self._commits = checkpoint / _COMMITS

    def has(self, batch: int) -> bool:
        return (self._commits / str(batch)).exists()

    def find_latest_batch(self) -> int | None:
        if not self._commits.is_dir():
            return None
        return _newest(path.name for path in self._commits.iterdir())


class HadoopCommitLog:
    """Spark's commit log in any file system that Spark reaches."""

    pause = 0.05

    def __init__(self, files: HadoopFiles) -> None:
        self._files = files

    def has(self, batch: int) -> bool:
        return self._files.exists(f"{_COMMITS}/{batch}")

    def find_latest_batch(self) -> int | None:
        return _newest(self._files.names(_COMMITS))


def _newest(names: Any) -> int | None:
    return max((int(name) for name in names if name.isdecimal()), default=None)


class HadoopFiles:
    """Files below one directory of any file system that Spark reaches.

    Errors of the store are Retryable, unless they say what is the matter.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._root = self._path(root)
        self._bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._manager = _dotted(jvm, _MANAGER).create(self._root, self._conf)

    def make(self, name: str) -> None:
        self._call(lambda: self._manager.mkdirs(self._at(name)))

    def exists(self, name: str) -> bool:
        return bool(self._call(lambda: self._manager.exists(self._at(name))))

    def names(self, directory: str) -> list[str]:
        """Names in a directory, without hidden ones; [] if there is no such directory."""
        try:
            found = self._call(lambda: self._manager.list(self._at(directory)))
        except FileNotFoundError:
            return []
        names = [str(status.getPath().getName()) for status in found]
        return sorted(name for name in names if not name.startswith("."))

    def create(self, name: str, data: bytes) -> None:
        """Create a file completely or not at all. Raise FileExistsError if it exists."""
        if self.exists(name):
            raise FileExistsError(name)
        self.staged(name, data)()

    def staged(self, name: str, data: bytes) -> Callable[[], None]:
        """Write ``data`` aside. The call that is returned gives it its name: FileExistsError if it exists by then."""

        def write() -> Any:
            stream = self._manager.createAtomic(self._at(name), False)
            try:
                stream.write(bytearray(data))
            except BaseException:
                stream.cancel()
                raise
            return stream

        stream = self._call(write)
        return lambda: self._call(stream.close)

    @property
    def scheme(self) -> str:
        """Return the scheme of the underlying file system, below any mount."""
        system = self._root.getFileSystem(self._conf)
        return str(self._call(lambda: system.resolvePath(self._root)).toUri().getScheme())

    @property
    def manager(self) -> str:
        """Return the class with which Spark writes to this file system."""
        return str(self._manager.getClass().getSimpleName())

    def read(self, name: str) -> bytes:
        def read() -> bytes:
            stream = self._manager.open(self._at(name))
            try:
                return bytes(self._bytes(stream))
            finally:
                stream.close()

        found: bytes = self._call(read)
        return found

    def delete(self, name: str) -> None:
        self._call(lambda: self._manager.delete(self._at(name)))

    def _at(self, name: str) -> Any:
        return self._path(self._root, name)

    @staticmethod
    def _call(call: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return call()
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            text = str(error.java_exception)
            if kind == "FileAlreadyExistsException":
                raise FileExistsError(text) from error
            if kind in ("FileNotFoundException", "NoSuchFileException"):
                raise FileNotFoundError(text) from error
            if kind in ("AccessControlException", "AccessDeniedException"):
                raise ConfigError(f"the checkpoint's file system denies access to this user: {text}") from error
            raise Retryable(f"the checkpoint's file system: {text}") from error


class HadoopStorage:
    """A CheckpointStorage in any file system that Spark reaches."""

    def __init__(self, files: HadoopFiles) -> None:
        self._files = files
        for directory in paths.DIRECTORIES:
            files.make(f"{OURS}/{directory}")

    def publish(self, name: str, data: bytes) -> None:
        self._files.create(_ours(name), data)

    def read(self, name: str) -> bytes:
        return self._files.read(_ours(name))

    def list(self, prefix: str) -> Sequence[str]:
        return [f"{prefix}/{name}" for name in self._files.names(f"{OURS}/{prefix}")]

    def delete(self, name: str) -> None:
        self._files.delete(_ours(name))

    def upload(self, path: Path, name: str) -> FileRef:
        data = path.read_bytes()
        ref = FileRef(paths.ensure_plain_name(name), hashlib.sha256(data).hexdigest(), len(data))
        if not self._files.exists(_ours(paths.shared_name(ref.sha256))):
            self.publish(paths.shared_name(ref.sha256), data)
        return ref

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        data = ref.content_in(self.read(paths.shared_name(ref.object.sha256)))
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise CorruptCheckpoint(f"{paths.shared_name(ref.object.sha256)} ({ref.name}): its content was changed")
        target.write_bytes(data)
        passed(len(data))


def _ours(name: str) -> str:
    return f"{OURS}/{paths.ensure_inside(name)}"


_MANAGERS: Final = ("FileContextBasedCheckpointFileManager",)
"""Checkpoint file managers that rely on the file system to refuse a name that exists."""
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs", "wasb", "wasbs"})
"""Spark looks whether a name is taken there, and writes then: two writers may both get it."""
_JVM_ENDS: Final = 30.0
"""Seconds that a JVM may need to end after its Python program."""


def check_exclusive_create(files: HadoopFiles) -> None:
    """Raise ConfigError unless only one of two writers can create a file.

    Both have written before either gives its file the name: so it is the store that refuses, not a look before.
    """
    if files.manager not in _MANAGERS:
        raise ConfigError(_not_exclusive(f"Spark writes there with {files.manager}, which overwrites files"))
    if files.scheme in _OBJECT_STORES:
        raise ConfigError(
            _not_exclusive(f"{files.scheme}: is an object store, where two Spark drivers can both write the same file")
        )
    name = f"{OURS}/{paths.PROBE}-{secrets.token_hex(8)}"
    writers = [files.staged(name, b""), files.staged(name, b"")]
    try:
        if not (_refuses(writers[0]) or _refuses(writers[1])):
            raise ConfigError(_not_exclusive("two writers both created the same file"))
    finally:
        files.delete(name)


def _refuses(writer: Callable[[], None]) -> bool:
    try:
        writer()
    except FileExistsError:
        return True
    return False


def _not_exclusive(what: str) -> str:
    return (
        f"the file system of the checkpoint cannot decide which of two drivers continues: {what}. Keep the "
        "checkpoint on HDFS, on a local disk, or in another file system that renames atomically and never overwrites "
        "an existing file; and leave spark.sql.streaming.checkpointFileManagerClass unset."
    )


@contextmanager
def lock_jvm(spark: SparkSession, path: Path, query: str) -> Iterator[None]:
    """Hold a lock that ends with the JVM, which may outlive its Python program.

    While it is held, no earlier driver of this host can decide anything. Raises JobLocked.
    """
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    try:
        until = time.monotonic() + _JVM_ENDS
        while not _locked(file):
            if time.monotonic() > until:
                raise JobLocked(
                    f"the Spark driver of an earlier run of query {query!r} still runs on this host (it holds "
                    f"{path}), and may still decide a batch. End that Java process, then start the query again."
                )
            time.sleep(0.1)
        yield
    finally:
        with suppress(Py4JError, OSError):  # the JVM is gone, and the lock with it
            file.close()


def _locked(file: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        return file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if "OverlappingFileLock" in str(error.java_exception):  # another query of this very JVM has it
            return False
        raise ConfigError(f"the checkpoint's directory has no locks: {error.java_exception}") from error


def _dotted(jvm: Any, name: str) -> Any:
    found = jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def local_path(spark: SparkSession, checkpoint: str) -> Path | None:
    """Return the directory on this host that Spark means by ``checkpoint``; None if it is elsewhere."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)
    system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    uri = system.makeQualified(path).toUri()
    return Path(str(uri.getPath())) if str(uri.getScheme()) == "file" else None


def open_checkpoint(spark: SparkSession, checkpoint: str, local: Path | None) -> tuple[CheckpointStorage, CommitLog]:
    """Open the sink's records and Spark's commit log of a checkpoint. ConfigError if nothing can be claimed there."""
    if local is not None:
        return LocalStorage(local / OURS), LocalCommitLog(local)
    files = HadoopFiles(spark, checkpoint)
    files.make(OURS)
    check_exclusive_create(files)
    return HadoopStorage(files), HadoopCommitLog(files)
