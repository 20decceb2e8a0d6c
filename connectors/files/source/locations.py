"""Where the files of a FileSource are: a directory of this machine, or a prefix of a bucket.

Rule: a file is called by its name below that place, with a slash behind each directory. What it is now the place is
asked; an answer is an OSError if nobody can tell, FileNotFoundError if it is not there.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from kafka_eos._util.extras import expect_extra
from kafka_eos.connectors.files.s3.bucket import Address, Bucket
from kafka_eos.connectors.files.source.positions import Progress
from kafka_eos.core.errors import ConfigError

Reads: TypeAlias = Callable[[str], bool]
"""Is the file of that name one of the source's?"""
_HIDDEN = (".", "_")
_SECOND = 10**9


class Place(Protocol):
    @property
    def text(self) -> str:
        """For people."""

    def there(self) -> bool:
        """Is the place itself there? Objects need none."""

    def found(self, depth: int, reads: Reads) -> Mapping[str, Progress]:
        """The files in it that the source ``reads``, and those in up to ``depth`` directories below each other, as they
        would be read from their beginning. Files and directories whose names begin with . or _ are passed over.

        ConfigError if it is not there, or if what may be one of the files is a link to nothing.
        """

    def has(self, name: str) -> bool:
        """Is there such a file?"""

    def state(self, name: str) -> Progress:
        """What the file is now, as it would be read from its beginning."""

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """The file as one of this machine."""


class Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        return str(self._path)

    def there(self) -> bool:
        return self._path.exists()

    def found(self, depth: int, reads: Reads) -> Mapping[str, Progress]:
        if not self._path.is_dir():
            raise ConfigError(f"FileSource reads {self._path}, and there is no such directory: make it first")
        return dict(self._below(self._path, "", depth, reads))

    def _below(self, directory: Path, before: str, depth: int, reads: Reads) -> Iterator[tuple[str, Progress]]:
        for name in sorted(os.listdir(directory)):
            if name.startswith(_HIDDEN):
                continue
            try:
                state = os.stat(directory / name)
            except FileNotFoundError:
                if (directory / name).is_symlink() and (depth or reads(f"{before}{name}")):
                    raise ConfigError(
                        f"{directory / name} is a link to what is not there: repair it, or remove it"
                    ) from None
                continue  # it was moved away since it was listed, or is none of the source's
            if stat.S_ISREG(state.st_mode):
                if reads(f"{before}{name}"):
                    yield f"{before}{name}", Progress.of(state)
            elif stat.S_ISDIR(state.st_mode) and depth:
                yield from self._below(directory / name, f"{before}{name}/", depth - 1, reads)

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def state(self, name: str) -> Progress:
        return Progress.of(os.stat(self._path / name))

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        yield self._path / name


class Objects:
    """Objects below a prefix. Each is fetched whole before it is read."""

    def __init__(self, address: Address) -> None:
        expect_extra("s3", "FileSource on S3")
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

    def found(self, depth: int, reads: Reads) -> Mapping[str, Progress]:
        found: dict[str, Progress] = {}
        for name, listed in sorted(self._bucket.listed("").items()):
            parts = name.split("/")
            hidden = any(part.startswith(_HIDDEN) for part in parts)
            if len(parts) <= depth + 1 and parts[-1] and not hidden and reads(name):
                found[name] = _progress(listed.size, listed.since, listed.tag)
        return found

    def has(self, name: str) -> bool:
        try:
            self._bucket.told(name)
        except FileNotFoundError:
            return False
        return True

    def state(self, name: str) -> Progress:
        now = self._bucket.told(name)
        return _progress(now.size, now.since, now.tag)

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="kafka-eos-") as directory:
            path = Path(directory) / name.rpartition("/")[2]
            self._bucket.fetch(name, path)
            yield path


def _progress(size: int, since: float, tag: str) -> Progress:
    """Stores tell seconds; what the object's tag is stands in the rest of them, so that two of a second differ."""
    rest = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") % _SECOND
    return Progress(0, size, int(since) * _SECOND + rest)
