"""FileSource: the files of a directory or a bucket, each read once, row by row; files that come later are found.

Rule: a file is one split, and never changes. Size and time of its last change stand in every position of it: one that
is not what it was when it was found is InputLost, before and while it is read, and after that as long as it is there.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.connectors.files.hive_partitions import Levels
from kafka_eos.connectors.files.os_errors import mapped
from kafka_eos.connectors.files.s3.bucket import Address
from kafka_eos.connectors.files.source.locations import Directory, Objects, Place
from kafka_eos.connectors.files.source.positions import Progress
from kafka_eos.connectors.files.source.reader import FileReader
from kafka_eos.connectors.files.source.row_formats import Reading, reading
from kafka_eos.core.errors import ConfigError, InputLost, Retryable
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Positions

T = TypeVar("T")

Until: TypeAlias = Literal["latest"]
LONGEST_ROW: Final = 16 << 20
"""Bytes of a row, unless the user says. A worker holds ``batch_size`` rows at most."""
LARGEST_BLOCK: Final = 256 << 20
"""Bytes of a block, unless the user says. Writers make them of some ten kilobytes, or a few megabytes."""


class FileSource(Generic[T]):
    """Reads the files of a directory as a stream of ``T``, also those that come later while the job runs.

    ``directory``  a path, or ``s3://bucket/prefix?endpoint=…&region=…`` for objects. Files in it are read, not those of
                   directories below it, nor names that begin with . or _
    ``value``      the values' type; for JSON lines also a codec. Default what the format gives: dicts for most
    ``format``     "jsonl", "csv", "avro" or "parquet"
    ``files``      which names, as a shell has it: "part-*.parquet". Default: all with the format's extension
    ``partitions``  the levels of directories below it in which the files are: ("day", "hour") for
                   ``day=2026-01-31/hour=5/``. They are columns of each row
    ``until``      "latest": the files that are there at the job's first start, and no others. Default: it has no end
    ``in_order``   you vouch that names tell the order of event time: no row of a file is late for those of files whose
                   names come before. Then event time goes on file by file; else it waits until each was begun
    ``longest_row``  bytes that a row of JSON lines or CSV may have. A longer one stops the job before it is read
                   to its end
    ``largest_block``  bytes that a block of Avro may have when it is unpacked, or the pages of Parquet that are
                   unpacked together: the largest of each column. More of them stop the job before that

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
        partitions: Sequence[str] = (),
        until: Until | None = None,
        in_order: bool = False,
        longest_row: int = LONGEST_ROW,
        largest_block: int = LARGEST_BLOCK,
    ) -> None: ...

    @overload
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: type[T],
        format: str = "jsonl",
        files: str | None = None,
        partitions: Sequence[str] = (),
        until: Until | None = None,
        in_order: bool = False,
        longest_row: int = LONGEST_ROW,
        largest_block: int = LARGEST_BLOCK,
    ) -> None: ...

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: Any = None,
        format: str = "jsonl",  # noqa: A002 - what everybody calls it
        files: str | None = None,
        partitions: Sequence[str] = (),
        until: Until | None = None,
        in_order: bool = False,
        longest_row: int = LONGEST_ROW,
        largest_block: int = LARGEST_BLOCK,
    ) -> None:
        if until not in (None, "latest"):
            raise ConfigError(f'until={until!r}: FileSource takes "latest", what is there at the first start')
        if longest_row < 1:
            raise ConfigError(f"longest_row={longest_row}: a row has a byte at least")
        if largest_block < 1:
            raise ConfigError(f"largest_block={largest_block}: a block has a byte at least")
        if files is not None and "/" in files:
            raise ConfigError(f"files={files!r} is a pattern of names in {os.fspath(directory)}: it has no slash")
        self._place, self._levels = _place(directory), Levels.of(partitions)
        self._reading: Reading = reading(
            format, value, longest=longest_row, largest=largest_block, in_partitions=bool(partitions)
        )
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
            "directory": self._place.text,
            "files": ", ".join(self._files),
            "format": self._reading.name,
        }
        levels: dict[str, Json] = {"partitions": "/".join(self._levels.names)} if self._levels.names else {}
        ends: dict[str, Json] = {"until": "latest"} if self._ended else {}
        return said | levels | ends | ({"in_order": True} if self._in_order else {})

    def __repr__(self) -> str:
        return f"FileSource({self._place.text!r})"

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """See ``abc.Source``. Retryable if the directory cannot be looked at now."""
        if self._ended and known and not self._place.there() and len(self.not_waited_for(known)) == len(known):
            return known  # all of it was read: it may go
        found = self._found()
        if self._ended and known is None and not found:
            raise ConfigError(
                f'{self._place.text} has no file that matches {", ".join(self._files)}, and with until="latest" '
                "nothing that comes later would be read: put the files there first, or name others with files="
            )
        there = {self._levels.split(name): progress.position() for name, progress in found.items()}
        read = {split: at for split, at in (known or {}).items() if self._is_begun(split, Progress.read(at), found)}
        later = there.keys() - (known or there).keys() if self._ended else ()
        return {split: at for split, at in {**(known or {}), **there, **read}.items() if split not in later}

    def bounds(self, positions: Positions) -> Positions | None:
        """See ``abc.Bounded``."""
        if not self._ended:
            return None
        return {split: Progress.read(at).at_end().position() for split, at in positions.items()}

    def not_waited_for(self, positions: Positions) -> Collection[SplitId]:
        """See ``abc.Sequenced``: files that were read, and with ``in_order`` those behind the one at hand."""
        unread = [split for split, at in positions.items() if not Progress.read(at).done]
        waited_for = {min(unread, key=self._levels.name)} if unread and self._in_order else set(unread)
        return positions.keys() - waited_for

    def ends(self, ctx: JobContext) -> Positions:
        return {self._levels.split(name): at.at_end().position() for name, at in self._found().items()}

    def reader(self, ctx: TaskContext, positions: Positions) -> FileReader:
        return FileReader(self._place, self._reading, self._levels, ctx, positions, in_order=self._in_order)

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Nobody watches the lag of a directory."""

    def _found(self) -> Mapping[str, Progress]:
        """The files that are there, as they would be read from their beginning."""
        with mapped(Retryable, f"list {self._place.text}"):
            return self._place.found(len(self._levels.names), self._reads)

    def _reads(self, name: str) -> bool:
        last = name.rpartition("/")[2]
        if not any(fnmatch.fnmatchcase(last, pattern) for pattern in self._files):
            return False
        if not name.isprintable():
            raise ConfigError(f"the name of {name!r} in {self._place.text} cannot be printed: give it another one")
        try:
            self._levels.columns(name)
        except ValueError as error:
            raise ConfigError(f"{self._place.text}: {error}: move it, or name others with files=") from None
        return True

    def _is_begun(self, split: SplitId, progress: Progress, found: Mapping[str, Progress]) -> bool:
        """Is anything of a known file in the results? If not, it may have changed: it is read as it is now.

        InputLost if it is not what it was, or gone before its end.
        """
        name = self._levels.name(split)
        path, now = f"{self._place.text}/{name}", found.get(name)
        if now is None and not progress.done and not self._place.has(name):
            raise InputLost(f"{path} is gone, and the job has read it up to row {progress.row} only: put it back")
        if now is not None and progress.begun:
            progress.expect_unchanged(path, now)
        return progress.begun


def _place(given: str | os.PathLike[str]) -> Place:
    """ConfigError if it is none."""
    if isinstance(given, str) and "://" in given:
        return Objects(Address.read(given))
    if not os.fspath(given):
        raise ConfigError("FileSource('') names no directory: for the one that the job is started in write '.'")
    return Directory(Path(os.path.abspath(os.path.expanduser(given))))
