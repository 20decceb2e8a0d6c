"""FileSource: the files of a directory, each read once, row by row; files that come later are found.

Rule: a file is one split, and never changes. Size and time of its last change stand in every position of it: one that
is not what it was when it was found is InputLost, before and while it is read, and after that as long as it is there.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

from kafka_eos.connectors.files.errors import mapped
from kafka_eos.connectors.files.file_reader import FileReader
from kafka_eos.connectors.files.progress import Progress, name_of, split_of
from kafka_eos.connectors.files.row_formats import Reading, reading
from kafka_eos.errors import ConfigError, InputLost, Retryable
from kafka_eos.ids import EpochId, SplitId
from kafka_eos.interfaces import Guarantee, JobContext, Json, Positions, TaskContext

T = TypeVar("T")

Until: TypeAlias = Literal["latest"]
_HIDDEN: Final = (".", "_")


@dataclass(frozen=True, slots=True)
class _Found:
    """The files that are there, by name, as they would be read from their beginning."""

    files: Mapping[str, Progress]


class FileSource(Generic[T]):
    """Reads the files of a directory as a stream of ``T``, also those that come later while the job runs.

    ``directory``  a path. Files in it are read, not those of directories below it, nor names that begin with . or _
    ``value``      the values' type; for JSON lines also a codec. Default what the format gives: dicts for most
    ``format``     "jsonl", "csv", "avro" or "parquet"
    ``files``      which names, as a shell has it: "part-*.parquet". Default: all with the format's extension
    ``until``      "latest": the files that are there at the job's first start, and no others. Default: it has no end
    ``in_order``   you vouch that names tell the order of event time: no row of a file is late for those of files whose
                   names come before. Then event time goes on file by file; else it waits until each was begun

    Files must be moved into the directory when they are whole, and never be changed. Raises ConfigError if ``value``
    and ``format`` do not fit.
    """

    @overload
    def __init__(
        self: FileSource[Any],
        directory: str | os.PathLike[str],
        *,
        value: None = None,
        format: str = "jsonl",
        files: str | None = None,
        until: Until | None = None,
        in_order: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: type[T],
        format: str = "jsonl",
        files: str | None = None,
        until: Until | None = None,
        in_order: bool = False,
    ) -> None: ...

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: Any = None,
        format: str = "jsonl",  # noqa: A002 - what everybody calls it
        files: str | None = None,
        until: Until | None = None,
        in_order: bool = False,
    ) -> None:
        if until not in (None, "latest"):
            raise ConfigError(f'until={until!r}: FileSource takes "latest", what is there at the first start')
        if isinstance(directory, str) and "://" in directory:
            raise ConfigError(f"FileSource reads directories of this machine, not {directory}")
        if not os.fspath(directory):
            raise ConfigError("FileSource('') names no directory: for the one that the job is started in write '.'")
        if files is not None and "/" in files:
            raise ConfigError(f"files={files!r} is a pattern of names in {os.fspath(directory)}: it has no slash")
        self._directory = Path(os.path.abspath(os.path.expanduser(directory)))
        self._reading: Reading = reading(format, value)
        self._files = (files,) if files is not None else self._reading.names
        self._ended, self._in_order = until is not None, in_order
        self.value_type: Any = value
        """What a stream of this source holds, for codecs between workers."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def describe(self) -> Mapping[str, Json]:
        said: dict[str, Json] = {
            "connector": "files",
            "directory": str(self._directory),
            "files": ", ".join(self._files),
            "format": self._reading.name,
        }
        return said | ({"until": "latest"} if self._ended else {}) | ({"in_order": True} if self._in_order else {})

    def __repr__(self) -> str:
        return f"FileSource({str(self._directory)!r})"

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """See ``interfaces.Source``. Retryable if the directory cannot be looked at now."""
        if self._ended and known and not self._directory.exists() and len(self.not_waited_for(known)) == len(known):
            return known  # all of it was read: it may go
        found = self._found()
        if self._ended and known is None and not found.files:
            raise ConfigError(
                f'{self._directory} has no file that matches {", ".join(self._files)}, and with until="latest" nothing '
                "that comes later would be read: put the files there first, or name others with files="
            )
        there = {split_of(name): progress.position() for name, progress in found.files.items()}
        read = {split: at for split, at in (known or {}).items() if self._is_begun(split, Progress.read(at), found)}
        later = there.keys() - (known or there).keys() if self._ended else ()
        return {split: at for split, at in {**(known or {}), **there, **read}.items() if split not in later}

    def bounds(self, positions: Positions) -> Positions | None:
        """See ``interfaces.Bounded``."""
        if not self._ended:
            return None
        return {split: Progress.read(at).at_end().position() for split, at in positions.items()}

    def not_waited_for(self, positions: Positions) -> Collection[SplitId]:
        """See ``interfaces.Sequenced``: files that were read, and with ``in_order`` those behind the one at hand."""
        unread = [split for split, at in positions.items() if not Progress.read(at).done]
        waited_for = {min(unread, key=name_of)} if unread and self._in_order else set(unread)
        return positions.keys() - waited_for

    def ends(self, ctx: JobContext) -> Positions:
        return {split_of(name): at.at_end().position() for name, at in self._found().files.items()}

    def reader(self, ctx: TaskContext, positions: Positions) -> FileReader:
        return FileReader(self._directory, self._reading, ctx, positions, in_order=self._in_order)

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Nobody watches the lag of a directory."""

    def _found(self) -> _Found:
        if not self._directory.is_dir():
            raise ConfigError(f"FileSource reads {self._directory}, and there is no such directory: make it first")
        with mapped(Retryable, f"list {self._directory}"):
            names = sorted(name for name in os.listdir(self._directory) if self._reads(name))
            states = [(name, os.stat(self._directory / name)) for name in names]
        return _Found({name: Progress.of(state) for name, state in states if stat.S_ISREG(state.st_mode)})

    def _reads(self, name: str) -> bool:
        if name.startswith(_HIDDEN) or not any(fnmatch.fnmatchcase(name, pattern) for pattern in self._files):
            return False
        if not name.isprintable():
            raise ConfigError(f"the name of {name!r} in {self._directory} cannot be printed: give it another one")
        return True

    def _is_begun(self, split: SplitId, progress: Progress, found: _Found) -> bool:
        """Is anything of a known file in the results? If not, it may have changed: it is read as it is now.

        InputLost if it is not what it was, or gone before its end.
        """
        path, now = self._directory / name_of(split), found.files.get(name_of(split))
        if now is None and not progress.done and not path.exists():
            raise InputLost(f"{path} is gone, and the job has read it up to row {progress.row} only: put it back")
        if now is not None and progress.begun:
            progress.expect_unchanged(path, now)
        return progress.begun
