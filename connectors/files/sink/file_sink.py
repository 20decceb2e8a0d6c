"""``FileSink``: files in a directory or bucket, each epoch's rows visible exactly once.

Rule: settings that would break the guarantee of the location, or of the format, are refused when the sink is created or
checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kafka_eos.abc.auditable import AuditableFiles, SupportsLocalRun
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.services import RejectRow
from kafka_eos.codecs.type_inspection import known_type
from kafka_eos.connectors._shared.row_errors import encode_or_reject
from kafka_eos.connectors._shared.value_types import StreamTypedSink
from kafka_eos.connectors.files.formats import FileLayout, Format, JsonLines, format_of
from kafka_eos.connectors.files.formats.json_lines import json_value
from kafka_eos.connectors.files.sink.locations import SinkDirectory, place_of
from kafka_eos.connectors.files.sink.open_files import FileOptions, Roll
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers, RawRecord


class FileSink(AuditableFiles, SupportsLocalRun, StreamTypedSink[Any]):
    """A sink that writes values into files of ``directory``, at least one per epoch, subtask and operator with rows.

    - ``directory``: a path, or ``s3://bucket/prefix?endpoint=…&region=…``; the part after ``?`` is optional.
    - ``value``: the type of the values, by default that of the stream. For JSON lines also a codec whose encoding
      contains no newline; if the type is unknown, any value that comes back equal from JSON, including dead letters.
    - ``format``: "jsonl", "csv", "avro" or "parquet"; or ``Csv(…)``, ``Avro(…)``, ``Parquet(…)`` with options.
    - ``envelope``: each row contains its origin, so that the audit can also verify the files: lines are
      ``{"provenance": "<job>.<term>.<epoch>/…", "value": …}``, other formats have an additional column.
    - ``partition_by``: a function that returns the partition of a value, such as ``{"day": …}``: its file is in
      ``day=…/``.
    - ``roll``: ends a file within an epoch: ``Roll(rows=…, size=…, seconds=…)``.
    - ``epoch_files``: write ``_epochs/<epoch>-….json``, which lists the files, once *all* sinks have committed the
      epoch.

    Raises ConfigError if the format cannot store the values.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: type[Any] | Codec[Any] | None = None,
        format: str | Format = "jsonl",  # noqa: A002 - the usual name
        envelope: bool = False,
        partition_by: Callable[[Any], Mapping[str, object]] | None = None,
        roll: Roll | None = None,
        epoch_files: bool = False,
    ) -> None:
        if not callable(partition_by or dict):
            raise ConfigError(
                f"partition_by= is a function such as lambda row: {{'day': row.day}}, not {partition_by!r}"
            )
        if not isinstance(roll, Roll | None):
            raise ConfigError(f"roll= is Roll(rows=…, size=…, seconds=…), not {roll!r}")
        self._place = place_of(directory)
        self.envelope, self.format = envelope, format_of(format)
        self._value = value
        if value is not None or not self.format.needs_type:
            self.layout  # noqa: B018 - raises for values that the format cannot store
        self._partition_by = partition_by
        self._roll = roll or Roll()
        self._announced = epoch_files

    @cached_property
    def layout(self) -> FileLayout:
        """The layout of the rows. Raises ConfigError if the format needs the type of the values, and it is unknown."""
        return self.format.layout(self._value, self.envelope)

    def _take_type(self, tp: Any) -> None:
        lines = isinstance(self.format, JsonLines)
        if lines or self.format.needs_type:
            self._value = json_value(tp) if lines else known_type(tp)
            self.__dict__.pop("layout", None)
            self.layout  # noqa: B018 - raises for values that the format cannot store

    def find_location(self, ctx: JobContext | None) -> str:
        """Return the directory or the address of the bucket, as ``explain`` shows it."""
        return self._place.text

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        hint = (
            "wait for _epochs/<epoch>-….json" if self._announced else "epoch_files=True announces when all are visible"
        )
        return (
            "at least one file per subtask and epoch with rows: a short interval makes many small ones",
            f"files of an epoch appear one after the other; {hint}",
        )

    def describe(self) -> Mapping[str, Json]:
        lines = isinstance(self.format, JsonLines)
        description: dict[str, Json] = {
            "directory": self._place.text,
            "format": self.layout.codec.name if lines else self.format.extension.split(".")[0],
            "envelope": self.envelope,
            **self.format.describe(),
        }
        if self._partition_by is not None:
            description["partitioned"] = True
        return description | self._roll.describe() | ({"epoch_files": True} if self._announced else {})

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the directory."""
        return [Dataset.at(self._place.text)]

    def scope(self, ctx: JobContext) -> str:
        return f"file:{self._place.text}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Test the operations that commits need. Raise ConfigError if one fails, or if the directory was replaced."""
        if isinstance(self._place, SinkDirectory) and self.scope(ctx) in ctx.written_scopes:
            self._place.expect_registration_of(ctx.job)
        return self._place.check(ctx)

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a location that does not respond."""
        return f"Check {self._place.advice}"

    def writer(self, ctx: TaskContext) -> FileWriter:
        shape = FileOptions(
            self.layout, self.format.extension, self.envelope, self._partition_by, self._roll, self._announced
        )
        return FileWriter(self._place.staging(), self.scope(ctx.job), shape, ctx)

    def committer(self, ctx: JobContext) -> Committer:
        return self._place.committer()

    @property
    def directory(self) -> Path:
        """Return the directory of the files. Raise ConfigError for a sink that writes to a bucket."""
        if not isinstance(self._place, SinkDirectory):
            raise ConfigError(f"{self._place.text} is not a directory")
        return self._place.path

    def audit_files(self, jobs: Collection[str], operator: str) -> tuple[str, str]:
        """Return the location, and a pattern of this sink's file names (groups: epoch and subtask). For the audit."""
        return self._place.text, self._place.pattern(jobs, operator)

    def audit_names(self) -> Sequence[str]:
        """Return the names of all committed files, of other sinks too, relative to the location. For the audit."""
        return self._place.names()

    @property
    def audit_lines(self) -> bool:
        """Return whether the files are plain lines in a directory, which need no reader. For the audit."""
        return self.format == JsonLines() and isinstance(self._place, SinkDirectory)

    def audit_read(self, name: str) -> Iterator[tuple[bytes, str | None]]:
        """Yield each row of a file, encoded as ``audit_rows`` does, and its provenance. For the audit."""
        with self._place.opened(name) as path:
            yield from self.layout.read(path)

    @property
    def audit_has_provenance(self) -> bool:
        """Return whether rows contain their origin. For the audit."""
        return self.envelope

    @property
    def audit_codec(self) -> Codec[Any]:
        """Return the codec of the values. For the audit."""
        return self.layout.codec

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """Return the rows that the writer writes, in the form of a Kafka sink's records with only a value. For the
        audit."""
        kept, written = self.written(batch, operator, reject)
        return kept, [(None, line.value, (), -1) for line in written]

    def written(self, batch: Batch[Any], operator: str, reject: RejectRow) -> tuple[Batch[Any], list[RawRecord]]:
        """Return the rows that the writer writes, and their contents as the values of records. For tests."""
        kept, block = encode_or_reject(lambda rows: self.layout.block(rows.values, None), batch, operator, reject)
        return kept, [
            RawRecord(self._place.text, -1, -1, -1, None, content, ())
            for content in self.layout.encode_for_audit(block)
        ]
