"""The location of a FileSource's files: a local directory, or a bucket prefix.

Rule: a file is identified by its name below that location, with slashes. Its state is read from the location. Errors
are
OSError if the state is unknown, FileNotFoundError if the file does not exist.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.connectors.files.s3.bucket import Bucket, BucketAddress
from kafka_eos.connectors.files.source.positions import FileProgress
from kafka_eos.core.errors import ConfigError

Reads: TypeAlias = Callable[[str], bool]
"""A predicate: whether the file of that name belongs to the source."""
_HIDDEN = (".", "_")
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of an open that never waits: a pipe that replaced a file has no end."""
_MOST_LINKS = 40
"""Links on the way to a file that are followed, as many as Linux follows."""
_SECOND = 10**9
_ROOT = 0


class SourceLocation(Protocol):
    @property
    def text(self) -> str:
        """Return the location for messages."""

    def there(self) -> bool:
        """Return whether the location exists. A bucket prefix always does."""

    def found(self, depth: int, reads: Reads) -> Mapping[str, FileProgress]:
        """Return the files that the source ``reads``, up to ``depth`` levels deep, with their start positions.

        Names that begin with . or _ are ignored. Raises ConfigError if the location does not exist, or if a name that
        the source would read is a broken link.
        """

    def has(self, name: str) -> bool:
        """Return whether such a file exists."""

    def state(self, name: str) -> FileProgress:
        """Return the start position of the file in its present state."""

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """Yield a local path of the file."""


class SourceDirectory:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        return str(self._path)

    def there(self) -> bool:
        return self._path.exists()

    def found(self, depth: int, reads: Reads) -> Mapping[str, FileProgress]:
        if not self._path.is_dir():
            raise ConfigError(f"FileSource reads {self._path}, which does not exist: create the directory first")
        return dict(self._below(self._path, "", depth, reads))

    def _below(self, directory: Path, before: str, depth: int, reads: Reads) -> Iterator[tuple[str, FileProgress]]:
        for name in sorted(os.listdir(directory)):
            if name.startswith(_HIDDEN):
                continue
            try:
                state = os.stat(directory / name)
            except OSError as error:
                is_link = os.path.islink(directory / name)
                if not is_link and not isinstance(error, FileNotFoundError):
                    raise
                if is_link and (depth or reads(f"{before}{name}")):
                    raise ConfigError(f"{directory / name} is a broken link: repair it, or remove it") from None
                continue  # it was moved since it was listed, or does not belong to the source
            if stat.S_ISREG(state.st_mode):
                if reads(f"{before}{name}"):
                    self._expect_trusted(directory / name, os.lstat(directory / name), state)
                    yield f"{before}{name}", FileProgress.of(state)
            elif stat.S_ISDIR(state.st_mode) and depth:
                self._expect_trusted(directory / name, os.lstat(directory / name), state)
                yield from self._below(directory / name, f"{before}{name}/", depth - 1, reads)

    def _expect_trusted(self, path: Path, link: os.stat_result, target: os.stat_result) -> None:
        """Raise ConfigError for a link that another user made to what may be hidden from that user.

        The rows of such a file, or dead letters with them, would be written where others can read them.
        """
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (target.st_uid, os.geteuid(), _ROOT):
            raise ConfigError(
                f"{path} is a link of user {link.st_uid} to a file of user {target.st_uid}. It is not followed: "
                "its owner may lack the permission to read the file. Remove it, or copy the file into the directory"
            )

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def state(self, name: str) -> FileProgress:
        return FileProgress.of(os.stat(self._path / name))

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Yield a link to the open file. It stays the same file if another one replaces it in the directory."""
        with ExitStack() as held:
            file = self._open(name, held)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ConfigError(f"{self._path / name} is not a file any more: put the file back, and restart")
            path = held.enter_context(temporary_directory()) / name.rpartition("/")[2]
            path.symlink_to(f"/proc/self/fd/{file}")
            yield path

    def _open(self, name: str, held: ExitStack) -> int:
        """Open a file and return its descriptor. A link of another user is not followed, also not behind other links.

        Each name is looked up once, so a link cannot be replaced between the check and the opening.
        """
        at = _keep(os.open(self._path, _OPEN), held)
        names, links = [*reversed(name.split("/"))], list[tuple[Path, os.stat_result]]()
        while names:
            entry = _keep(os.open(names.pop(), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at), held)
            state = os.fstat(entry)
            if not stat.S_ISLNK(state.st_mode):
                at = entry
                continue
            target = os.readlink("", dir_fd=entry)
            links.append((Path(os.readlink(f"/proc/self/fd/{entry}")), state))
            if len(links) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self._path / name))
            if target.startswith("/"):
                at = _keep(os.open("/", os.O_PATH | os.O_CLOEXEC), held)
            names += [part for part in reversed(target.split("/")) if part]
        file = _keep(os.open(f"/proc/self/fd/{at}", _OPEN), held)
        for path, link in links:
            self._expect_trusted(path, link, os.fstat(file))
        return file


def _keep(descriptor: int, held: ExitStack) -> int:
    """Return an open descriptor that is closed with the others."""
    held.callback(os.close, descriptor)
    return descriptor


class SourceBucket:
    """Objects below a bucket prefix; each is downloaded completely before it is read."""

    def __init__(self, address: BucketAddress) -> None:
        ensure_extra("s3", "FileSource on S3")
        self._address = address
        self._made: Bucket | None = None

    @property
    def _bucket(self) -> Bucket:
        if self._made is None:
            self._made = Bucket(self._address)
        return self._made

    @property
    def text(self) -> str:
        return self._address.text

    def there(self) -> bool:
        return True

    def found(self, depth: int, reads: Reads) -> Mapping[str, FileProgress]:
        found: dict[str, FileProgress] = {}
        for name, listed in sorted(self._bucket.listed("").items()):
            parts = name.split("/")
            hidden = any(part.startswith(_HIDDEN) for part in parts)
            if len(parts) <= depth + 1 and parts[-1] and not hidden and reads(name):
                found[name] = _progress(listed.size, listed.since, listed.tag)
        return found

    def has(self, name: str) -> bool:
        try:
            self._bucket.head_object(name)
        except FileNotFoundError:
            return False
        return True

    def state(self, name: str) -> FileProgress:
        now = self._bucket.head_object(name)
        return _progress(now.size, now.since, now.tag)

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        with temporary_directory() as directory:
            path = directory / name.rpartition("/")[2]
            self._bucket.fetch(name, path)
            yield path


def _progress(size: int, since: float, tag: str) -> FileProgress:
    """Return a start position. Stores give seconds, so a hash of the ETag fills the rest of the time."""
    rest = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") % _SECOND
    return FileProgress(0, size, int(since) * _SECOND + rest)
