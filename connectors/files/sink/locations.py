"""The location of a FileSink's files: a directory of a file system, or a bucket prefix.

Rule: ``check`` tests the operations that the guarantee needs, and refuses a location where one fails.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.os_errors import map_errors, refuse_permanent_errors
from kafka_eos.connectors.files.s3.bucket import Bucket, BucketAddress
from kafka_eos.connectors.files.sink import s3_names as objects
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.connectors.files.sink.file_staging import DirectoryStaging, FileStaging
from kafka_eos.connectors.files.sink.s3_committer import UploadCommitter
from kafka_eos.connectors.files.sink.s3_staging import UploadStaging
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, Retryable
from kafka_eos.core.ids import ensure_name

_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "fuse")
"""Network file systems."""


class SinkLocation(Protocol):
    """The location of a FileSink's files."""

    @property
    def text(self) -> str:
        """Return the location for messages; manifests store it as part of the scope."""

    @property
    def advice(self) -> str:
        """Return what to check if the location cannot be reached."""

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Test the operations that commits need; return notices. Raise ConfigError if one fails."""

    def staging(self) -> FileStaging[Any]: ...

    def committer(self) -> Committer: ...

    def pattern(self, jobs: Collection[str], operator: str) -> str:
        """Return a pattern that matches the final names of one operator of ``jobs``, of any incarnation; groups: epoch
        and subtask."""

    def names(self) -> Sequence[str]:
        """Return the names of all committed files of any writer, including those in partitions."""

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """Yield a local path of a committed file for reading. Raise OSError with a number if it is not available."""


def place_of(given: str | os.PathLike[str]) -> SinkLocation:
    """Return the location of an argument: a path is a directory, an address must be S3."""
    if isinstance(given, str) and "://" in given:
        return SinkBucket(BucketAddress.read(given))
    if not os.fspath(given):
        raise ConfigError(
            "FileSink('') does not name a directory: for the working directory of the job use FileSink('.')"
        )
    return SinkDirectory(Path(os.path.abspath(os.path.expanduser(given))))


ON_A_DISK: Final = "that its disk is mounted and responds"
IN_A_BUCKET: Final = (
    "that the store runs and accepts this job's credentials: endpoint= and region= of "
    "the address set its location, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY the "
    "credentials"
)
_CREDENTIALS: Final = "The credentials are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or others that boto3 finds"
_MAY_UPLOAD: Final = f"FileSink needs permission to put, get, delete and list objects and uploads there. {_CREDENTIALS}"
MAY_WRITE_ON_A_DISK: Final = "The user of the job must be able to create, write and remove files there"
MAY_WRITE_IN_A_BUCKET: Final = (
    f"The user of the job needs permission to put, get, delete and list objects there. {_CREDENTIALS}"
)


class SinkDirectory:
    """A local directory, created if it is missing. ``private``: its files are for the job's user only."""

    advice = ON_A_DISK

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self._mode, self._file_mode = (0o700, 0o600) if private else (0o755, 0o644)

    @property
    def text(self) -> str:
        return str(self.path)

    def check(self, ctx: JobContext) -> Sequence[str]:
        name = f".check.{ensure_name(ctx.job, 'job name')}.{ctx.term}.{os.getpid()}"
        trial, renamed = self.path / name, self.path / f"{name}.renamed"
        try:
            disk.create_directory(self.path, self._mode)
            disk.create_empty(trial)
            try:
                refuses = disk.rename_new(trial, renamed)
                disk.sync_directory(self.path)
            finally:
                trial.unlink(missing_ok=True)
                renamed.unlink(missing_ok=True)
        except OSError as error:
            is_file = "this is a file. Name a directory for the files."
            why = is_file if self.path.is_file() else f"{error}. The directory must be writable."
            raise ConfigError(f"nothing can be committed in {self.path}: {why}") from error
        kind, notices = disk.filesystem(self.path), list[str]()
        notices += on_network(self.path)
        if not refuses:
            notices.append(
                f"{self.path} is on {kind or 'an unknown file system'}, which cannot rename without replacing: make "
                "sure that no other program writes files named part-* there."
            )
        return notices

    def expect_registration_of(self, job: str) -> None:
        """Raise ConfigError if the directory contains nothing of a job that has written there: deleted, or
        not mounted."""
        with map_errors(Retryable, f"look into {self.path}"):
            found = os.listdir(self.path) if self.path.exists() else []
        registered = filter(None, map(names.parse_registration, found))
        if not any(of[0] == job for of in registered):
            raise ConfigError(
                f"{self.path} contains nothing of job {job!r}, which has written there: its content "
                "was removed, or its disk is not mounted. Restore it. To continue with an empty "
                "directory, give the sink another one"
            )

    def staging(self) -> DirectoryStaging:
        with map_errors(EnvironmentFailed, f"create {self.path}"):
            disk.create_directory(self.path, self._mode)
        return DirectoryStaging(self.path, self._file_mode)

    def committer(self) -> FileCommitter:
        return FileCommitter(self.path)

    def pattern(self, jobs: Collection[str], operator: str) -> str:
        return names.files_of(jobs, operator)

    def names(self) -> Sequence[str]:
        found = self.path.rglob("part-*") if self.path.is_dir() else ()
        return [str(file.relative_to(self.path)) for file in found]

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        path = self.path / name
        path.open("rb").close()  # an error here is not about the content
        yield path


def on_network(path: Path) -> list[str]:
    """Return a notice if the path is on a network file system."""
    kind = disk.filesystem(path)
    if kind.split(".")[0] not in _NETWORK:
        return []
    return [f"{path} is on {kind}: exactly-once depends on the server keeping data that was fsynced."]


class SinkBucket:
    """A bucket prefix, which is contacted on first use."""

    advice = IN_A_BUCKET

    def __init__(self, address: BucketAddress) -> None:
        self.address = address

    @property
    def text(self) -> str:
        return self.address.text

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket(self.address)

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Test that an upload can be completed, and that a second upload cannot replace it."""
        name, bucket = f".check.{ensure_name(ctx.job, 'job name')}.{ctx.term}.{os.getpid()}", self._bucket
        with refuse_permanent_errors(_MAY_UPLOAD), map_errors(Retryable, f"reach {self.text}"):
            bucket.delete(name)
            self._made(bucket, name)
            try:
                self._made(bucket, name)
            except FileExistsError:
                return []
            finally:
                bucket.delete(name)
        return [
            f"{self.text} completes an upload even if an object of that name exists: make sure "
            "that no other program writes objects named part-* there."
        ]

    def _made(self, bucket: Bucket, name: str) -> None:
        upload = bucket.begin(name, "")
        try:
            bucket.complete(name, upload, [bucket.send(name, upload, 1, b"")])
        except OSError:
            bucket.abort(name, upload)
            raise

    def staging(self) -> UploadStaging:
        return UploadStaging(self._bucket)

    def committer(self) -> UploadCommitter:
        return UploadCommitter(self._bucket)

    def pattern(self, jobs: Collection[str], operator: str) -> str:
        return objects.files_of(jobs, operator)

    def names(self) -> Sequence[str]:
        return [name for name in self._bucket.names("") if name.rpartition("/")[2].startswith("part-")]

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        with temporary_directory() as directory:
            path = directory / name.rpartition("/")[2]
            self._bucket.fetch(name, path)
            yield path
