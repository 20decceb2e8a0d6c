"""Staged files: the interface between a writer and a location, and hidden files in a directory.

Rule: every step that others rely on is fsynced, including the directory entry. ``file_names`` defines the names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.file_names import FileCommittable, PartId, PartState
from kafka_eos.core.errors import Fenced, RestartFromCheckpoint
from kafka_eos.core.json_values import Json


class StagedFile(Protocol):
    """A file that readers do not see yet."""

    @property
    def size(self) -> int:
        """Return the bytes that were written."""

    def write(self, data: bytes, /) -> int: ...

    def finish(self) -> None:
        """Make all of the content durable."""

    def discard(self) -> None:
        """Close without finishing. Later writes are ignored, and nothing is deleted."""


F = TypeVar("F", bound=StagedFile)


class FileStaging(Protocol[F]):
    """The staging of one writer's files. It raises Fenced if a newer term has aborted one."""

    where: str

    def open(self, part: PartId, place: str, extension: str, announced: bool) -> F:
        """Open a file. ``place``: the directory of its partition, or "". ``announced``: see
        ``FileSink(epoch_files=…)``."""

    def prepare(self, files: Sequence[F]) -> Sequence[Mapping[str, Json]]:
        """Prepare finished files; return the payloads of their committables, which any process can commit."""


class HiddenFile:
    """A hidden file that is counted and hashed while it is written."""

    def __init__(self, directory: Path, part: PartId, final: str, announced: bool, mode: int) -> None:
        self.part, self.path = part, directory / part.build_hidden_name(PartState.OPEN)
        self._final, self._announced = final, announced
        opener = partial(os.open, mode=mode)
        self._file: BinaryIO | None = open(self.path, "xb", opener=opener)  # noqa: SIM115 - open until it is prepared
        self._digest, self.size = hashlib.sha256(), 0

    def write(self, data: bytes, /) -> int:
        if self._file is not None:  # a library may still write a footer after ``discard``
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
                raise RestartFromCheckpoint(f"{self.path} has another length than the data that was written to it")
        self._file = None

    def discard(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def payload(self) -> dict[str, Json]:
        return FileCommittable(self.part, self.size, self._digest.hexdigest(), self._final, self._announced).payload()


class DirectoryStaging:
    """The staging of hidden files in one directory. ``mode``: of the files."""

    def __init__(self, directory: Path, mode: int) -> None:
        self._directory, self.where = directory, str(directory)
        self._mode = mode

    def open(self, part: PartId, place: str, extension: str, announced: bool) -> HiddenFile:
        name = part.build_final_name(extension)
        return HiddenFile(self._directory, part, f"{place}/{name}" if place else name, announced, self._mode)

    def prepare(self, files: Sequence[HiddenFile]) -> list[dict[str, Json]]:
        for file in files:
            try:
                os.rename(file.path, self._directory / file.part.staged)
            except FileNotFoundError as error:
                raise Fenced(f"{file.path} does not exist: a newer term of job {file.part.job!r} removed it") from error
        disk.sync_directory(self._directory)
        return [file.payload() for file in files]
