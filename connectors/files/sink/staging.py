"""Files that are staged: what a writer asks of a place, and the hidden files of a directory.

Rule: every step that others rely on is fsynced, the directory's entry included. What a name means is in ``names``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.file_names import Kind, Part, Promise
from kafka_eos.core.errors import Fenced, RestartFromCheckpoint
from kafka_eos.core.json_values import Json


class StagedFile(Protocol):
    """A file that nobody sees."""

    @property
    def size(self) -> int:
        """Bytes that were written."""

    def write(self, data: bytes, /) -> int: ...

    def finish(self) -> None:
        """All of it is durable when this returns."""

    def let_go(self) -> None:
        """Undo nothing; what is written afterwards goes nowhere."""


F = TypeVar("F", bound=StagedFile)


class Staging(Protocol[F]):
    """Where a writer stages files. Raises OSError, or Fenced if a newer term has ended one."""

    where: str

    def open(self, part: Part, place: str, extension: str, announced: bool) -> F:
        """``place``: the directory of its partition, "" if it is in none. ``announced``: see ``FileSink``."""

    def prepare(self, files: Sequence[F]) -> Sequence[Mapping[str, Json]]:
        """Of finished files what committables say; any process can commit them then."""


class DiskFile:
    """A hidden file, counted and summed up on its way to the disk."""

    def __init__(self, directory: Path, part: Part, final: str, announced: bool) -> None:
        self.part, self.path = part, directory / part.hidden(Kind.OPEN)
        self._final, self._announced = final, announced
        self._file: BinaryIO | None = open(self.path, "xb")  # noqa: SIM115 - lives until the file is prepared
        self._digest, self.size = hashlib.sha256(), 0

    def write(self, data: bytes, /) -> int:
        if self._file is not None:  # a library may write an end to what was let go
            self._file.write(data)
            self._digest.update(data)
            self.size += len(data)
        return len(data)

    def finish(self) -> None:
        assert self._file is not None
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_size != self.size:
                raise RestartFromCheckpoint(f"{self.path} is not as long as what was written to it")
        self._file = None

    def let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def payload(self) -> dict[str, Json]:
        return Promise(self.part, self.size, self._digest.hexdigest(), self._final, self._announced).payload()


class DiskStaging:
    """Hidden files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.where = directory, str(directory)

    def open(self, part: Part, place: str, extension: str, announced: bool) -> DiskFile:
        name = part.final(extension)
        return DiskFile(self._directory, part, f"{place}/{name}" if place else name, announced)

    def prepare(self, files: Sequence[DiskFile]) -> list[dict[str, Json]]:
        for file in files:
            try:
                os.rename(file.path, self._directory / file.part.staged)
            except FileNotFoundError as error:
                raise Fenced(f"{file.path} is gone: a newer term of job {file.part.job!r} removed it") from error
        disk.sync_directory(self._directory)
        return [file.payload() for file in files]
