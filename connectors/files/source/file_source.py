"""``FileSource``: the files of a directory or a bucket, each read once, row by row; files that arrive later are found.

Rule: a file is one split, and never changes. Its size and modification time are stored in each of its positions. If a
file differs from its position, the job fails with InputLost: before the file is read, while it is read, and afterwards
as long as it exists.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, TypeVar, overload

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.sink import Sink
from kafka_eos.abc.source import Source
from kafka_eos.connectors.files.hive_partitions import PartitionLevels
from kafka_eos.connectors.files.os_errors import map_errors
from kafka_eos.connectors.files.s3.bucket import BucketAddress
from kafka_eos.connectors.files.source.locations import SourceBucket, SourceDirectory, SourceLocation
from kafka_eos.connectors.files.source.positions import FileProgress, get_file_name, name_split
from kafka_eos.connectors.files.source.reader import FileReader
from kafka_eos.connectors.files.source.row_formats import ReadFormat, read_format
from kafka_eos.core.errors import ConfigError, InputLost, LossCause, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Positions

T = TypeVar("T")

Until: TypeAlias = Literal["latest"]


class FileSource(Source[T]):
    """A source that reads the files of a directory as a stream of ``T``, including files that arrive later.

    - ``directory``: a path, or ``s3://bucket/prefix?endpoint=…&region=…`` for objects. Files in it are read, except
      those in subdirectories and those whose names begin with . or _.
    - ``value``: the type of the values; for JSON lines also a codec. Default: the format's own values, mostly dicts.
    - ``format``: "jsonl", "csv", "avro" or "parquet".
    - ``files``: a shell pattern of names: "part-*.parquet". Default: all names with the format's extension.
    - ``partitions``: the levels of subdirectories that contain the files: ("day", "hour") for
      ``day=2026-01-31/hour=5/``. They are columns of each row.
    - ``until``: "latest": only the files that exist at the job's first start. Default: unbounded.
    - ``in_order``: you guarantee that the order of names is the order of event times: no row of a file is late because
      of files with earlier names. Then the watermark advances file by file; otherwise it waits until each file was
      begun.
    - ``largest_part``: most bytes, decompressed, of what has to be in memory at once: a row of JSON lines or CSV
      (default: 16 MiB), an Avro block, or the largest page of each column of Parquet (default: 256 MiB). A larger one
      stops the job before it is decompressed.
    - ``allow_feedback``: the pipeline may write into the directory that it reads. Default: such a plan is refused,
      because rows usually circulate forever.

    Move files into the directory only when they are complete, and never change them. Raises ConfigError if ``value``
    and ``format`` do not match.
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
        largest_part: int | None = None,
        allow_feedback: bool = False,
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
        largest_part: int | None = None,
        allow_feedback: bool = False,
    ) -> None: ...

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: Any = None,
        format: str = "jsonl",  # noqa: A002 - the usual name
        files: str | None = None,
        partitions: Sequence[str] = (),
        until: Until | None = None,
        in_order: bool = False,
        largest_part: int | None = None,
        allow_feedback: bool = False,
    ) -> None:
        if until not in (None, "latest"):
            raise ConfigError(
                f'until={until!r}: FileSource accepts only "latest", which means the files that exist '
                "at the first start"
            )
        if largest_part is not None and largest_part < 1:
            raise ConfigError(f"largest_part must be at least one byte (got {largest_part!r})")
        if files is not None and "/" in files:
            raise ConfigError(
                f"files={files!r} must not contain a slash: it is a pattern of names in {os.fspath(directory)}"
            )
        self._place, self._levels = _place(directory), PartitionLevels.of(partitions)
        self._reading: ReadFormat = read_format(format, value, largest=largest_part, in_partitions=bool(partitions))
        self._files = (files,) if files is not None else self._reading.names
        self._ended, self._in_order = until is not None, in_order
        self._allow_feedback = allow_feedback
        self.value_type = value

    def find_feedback(self, sink: Sink[Any], *, refused: bool, ctx: JobContext | None) -> str | None:
        """Return why the pipeline would read the files that ``sink`` writes; None if it would not."""
        if self._ended or (self._allow_feedback and not refused):
            return None
        location = sink.find_location(ctx)
        if location is None or not self._reads_files_of(Dataset.at(location)):
            return None
        return (
            f"reads the files of {self._place.text}, to which the pipeline writes its rows: they would circulate "
            "forever. Write to another directory"
            + (
                "."
                if refused
                else "; if the loop is intended and ends by itself, pass allow_feedback=True to the source."
            )
        )

    def _reads_files_of(self, output: Dataset) -> bool:
        """Return whether files that a sink writes there, or into partition directories there, are read."""
        read = Dataset.at(self._place.text)
        if read.namespace != output.namespace:
            return False
        directory, written = PurePosixPath(read.name), PurePosixPath(output.name)
        if directory.is_relative_to(written):
            between = directory.relative_to(written)
        elif self._levels.names and written.is_relative_to(directory):
            between = written.relative_to(directory)
        else:
            return False
        return all("=" in part for part in between.parts)

    def describe(self) -> Mapping[str, Json]:
        description: dict[str, Json] = {
            "connector": "files",
            "directory": self._place.text,
            "files": ", ".join(self._files),
            "format": self._reading.name,
        }
        levels: dict[str, Json] = {"partitions": "/".join(self._levels.names)} if self._levels.names else {}
        ends: dict[str, Json] = {"until": "latest"} if self._ended else {}
        return description | levels | ends | ({"in_order": True} if self._in_order else {})

    def __repr__(self) -> str:
        return f"FileSource({self._place.text!r})"

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the directory."""
        return [Dataset.at(self._place.text)]

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Return the splits with their positions, see ``Source.discover``. Raise Retryable if the directory cannot be
        listed."""
        if self._ended and known and not self._place.there() and len(self.list_excluded_splits(known)) == len(known):
            return known  # everything was read, so the directory may be deleted
        found = self._found()
        if self._ended and known is None and not found:
            raise ConfigError(
                f"{self._place.text} has no file that matches {', '.join(self._files)}, and with "
                "until='latest' no later file would be read: create the files first, or name others "
                "with files="
            )
        there = {name_split(name): progress.position() for name, progress in found.items()}
        read = {split: at for split, at in (known or {}).items() if self._is_begun(split, FileProgress.read(at), found)}
        later = there.keys() - (known or there).keys() if self._ended else ()
        return {split: at for split, at in {**(known or {}), **there, **read}.items() if split not in later}

    def bounds(self, positions: Positions) -> Positions | None:
        """Return the end positions of a bounded source, or None."""
        if not self._ended:
            return None
        return {split: FileProgress.read(at).at_end().position() for split, at in positions.items()}

    def list_excluded_splits(self, positions: Positions) -> Collection[SplitId]:
        """Return splits excluded from the watermark: files that were read, and with ``in_order`` those after the
        current."""
        unread = [split for split, at in positions.items() if not FileProgress.read(at).done]
        waited_for = {min(unread, key=get_file_name)} if unread and self._in_order else set(unread)
        return positions.keys() - waited_for

    def get_end_positions(self, ctx: JobContext) -> Positions:
        return {name_split(name): at.at_end().position() for name, at in self._found().items()}

    def reader(self, ctx: TaskContext, positions: Positions) -> FileReader:
        return FileReader(self._place, self._reading, self._levels, ctx, positions, in_order=self._in_order)

    def _found(self) -> Mapping[str, FileProgress]:
        """Return the files that exist, with their start positions."""
        with map_errors(Retryable, f"list {self._place.text}"):
            return self._place.found(len(self._levels.names), self._reads)

    def _reads(self, name: str) -> bool:
        last = name.rpartition("/")[2]
        if not any(fnmatch.fnmatchcase(last, pattern) for pattern in self._files):
            return False
        if not name.isprintable():
            raise ConfigError(
                f"the file name {name!r} in {self._place.text} contains unprintable characters: rename the file"
            )
        try:
            self._levels.columns(name)
        except ValueError as error:
            raise ConfigError(f"{self._place.text}: {error}: move the file, or name others with files=") from None
        return True

    def _is_begun(self, split: SplitId, progress: FileProgress, found: Mapping[str, FileProgress]) -> bool:
        """Return whether rows of a known file were processed. If not, it may have changed, and is read as it is now.

        Raises InputLost if the file was changed, or deleted before its end was read.
        """
        name = get_file_name(split)
        path, now = f"{self._place.text}/{name}", found.get(name)
        if now is None and not progress.done and not self._place.has(name):
            text = f"{path} does not exist any more, but the job has read it only up to row {progress.row}: restore it"
            raise InputLost(text, LossCause.EXPIRED)
        if now is not None and progress.begun:
            progress.expect_unchanged(path, now)
        return progress.begun


def _place(given: str | os.PathLike[str]) -> SourceLocation:
    """Return the location of an argument. Raise ConfigError if it is not valid."""
    if isinstance(given, str) and "://" in given:
        return SourceBucket(BucketAddress.read(given))
    if not os.fspath(given):
        raise ConfigError("FileSource('') does not name a directory: for the working directory of the job use '.'")
    return SourceDirectory(Path(os.path.abspath(os.path.expanduser(given))))
