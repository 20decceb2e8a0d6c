"""Spark's checkpoint, read through Spark: whatever path Spark takes, this takes.

``SparkFiles`` uses Spark's own CheckpointFileManager, which writes Spark's offset and commit logs: a promise is
published with exactly the atomicity of the decision that follows it.

Rule: only ``commits/<batch>`` of Spark's files is read, and none is ever written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.errors import ConfigError, CorruptCheckpoint, Retryable
from kafka_eos.interfaces import CheckpointStorage, FileRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "kafka_eos"
"""The directory of the door's own records, inside the checkpoint: they are copied and deleted with it."""
_COMMITS: Final = "commits"
_MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"


class Decisions(Protocol):
    """Which batches Spark has decided."""

    pause: float
    """Seconds between looks."""

    def has(self, batch: int) -> bool:
        """Raises Retryable if the store does not answer."""

    def newest(self) -> int | None:
        """None if there is none yet."""


class LocalDecisions:
    """In a directory of this host."""

    pause = 0.005

    def __init__(self, checkpoint: Path) -> None:
        self._commits = checkpoint / _COMMITS

    def has(self, batch: int) -> bool:
        return (self._commits / str(batch)).exists()

    def newest(self) -> int | None:
        if not self._commits.is_dir():
            return None
        return _newest(path.name for path in self._commits.iterdir())


class SparkDecisions:
    """In any file system that Spark reaches."""

    pause = 0.05

    def __init__(self, files: SparkFiles) -> None:
        self._files = files

    def has(self, batch: int) -> bool:
        return self._files.exists(f"{_COMMITS}/{batch}")

    def newest(self) -> int | None:
        return _newest(self._files.names(_COMMITS))


def _newest(names: Any) -> int | None:
    return max((int(name) for name in names if name.isdecimal()), default=None)


class SparkFiles:
    """Files below one directory. Errors of the store are Retryable, unless they say what is the matter."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._root = self._path(root)
        self._bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._manager = _dotted(jvm, _MANAGER).create(self._root, conf)

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
        """All or nothing. FileExistsError if it exists."""
        if self.exists(name):
            raise FileExistsError(name)

        def write() -> None:
            stream = self._manager.createAtomic(self._at(name), False)
            try:
                stream.write(bytearray(data))
            except BaseException:
                stream.cancel()
                raise
            stream.close()

        self._call(write)

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
                raise ConfigError(f"the checkpoint's file system refuses this user: {text}") from error
            raise Retryable(f"the checkpoint's file system: {text}") from error


class SparkStorage:
    """The door's records in any file system that Spark reaches; a ``CheckpointStorage``."""

    def __init__(self, files: SparkFiles) -> None:
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
        ref = FileRef(paths.plain_file_name(name), hashlib.sha256(data).hexdigest(), len(data))
        if not self._files.exists(_ours(paths.shared_name(ref.sha256))):
            self.publish(paths.shared_name(ref.sha256), data)
        return ref

    def fetch(self, ref: FileRef, target: Path) -> None:
        data = self.read(paths.shared_name(ref.sha256))
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise CorruptCheckpoint(f"{paths.shared_name(ref.sha256)} ({ref.name}): the content was altered")
        target.write_bytes(data)


def _ours(name: str) -> str:
    return f"{OURS}/{paths.inside(name)}"


def _dotted(jvm: Any, name: str) -> Any:
    found = jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def local_path(spark: SparkSession, checkpoint: str) -> Path | None:
    """The directory on this host that Spark means by ``checkpoint``; None if it is elsewhere."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)
    system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    uri = system.makeQualified(path).toUri()
    return Path(str(uri.getPath())) if str(uri.getScheme()) == "file" else None


def opened(spark: SparkSession, checkpoint: str, local: Path | None) -> tuple[CheckpointStorage, Decisions]:
    """The door's records and Spark's decisions, in one checkpoint."""
    if local is not None:
        return LocalStorage(local / OURS), LocalDecisions(local)
    files = SparkFiles(spark, checkpoint)
    return SparkStorage(files), SparkDecisions(files)
