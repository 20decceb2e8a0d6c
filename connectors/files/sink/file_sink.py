"""FileSink: files in a directory, each epoch's rows visible exactly once.

Rule: what may break the promise of the directory, or of the format, is refused when the sink is made or checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.services import RejectRow
from kafka_eos.connectors._shared.row_errors import encoded
from kafka_eos.connectors.files.formats import Format, JsonLines, Layout, format_of
from kafka_eos.connectors.files.sink.locations import Directory, place_of
from kafka_eos.connectors.files.sink.open_files import Roll, Shape
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers, RawRecord


class FileSink:
    """Write values into files of ``directory``, one an epoch, subtask and operator, or more.

    ``directory``     a path, or ``s3://bucket/prefix?endpoint=…&region=…``; what follows ``?`` may be left out
    ``value``         the values' type. For JSON lines also a codec whose encoding holds no newline; default any value
                      that JSON can hold, dead letters included
    ``format``        "jsonl", "csv", "avro" or "parquet"; or ``Csv(…)``, ``Avro(…)``, ``Parquet(…)`` with options
    ``envelope``      each row tells where it comes from, so that the audit can prove the files too: lines are
                      ``{"provenance": "<term>.<epoch>/…", "value": …}``, other formats have a column more
    ``partition_by``  gives the partition of a value, as ``{"day": …}``: its file lies in ``day=…/``
    ``roll``          ends a file within an epoch: ``Roll(rows=…, size=…, seconds=…)``
    ``epoch_files``   write ``_epochs/<epoch>-….json`` when *all* sinks of the job have the epoch: it names the files

    Raises ConfigError if the format cannot hold the values.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        value: type[Any] | Codec[Any] | None = None,
        format: str | Format = "jsonl",  # noqa: A002 - what everybody calls it
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
        self.layout: Layout = self.format.layout(value, envelope)
        self._partition_by, self._roll, self._announced = partition_by, roll or Roll(), epoch_files

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def price(self) -> Sequence[str]:
        """See ``abc.Priced``."""
        told = "wait for _epochs/<epoch>-….json" if self._announced else "epoch_files=True tells when all are there"
        return (
            "a file at least for each subtask and epoch that has rows: a short interval makes many small ones",
            f"files of an epoch appear one after the other; {told}",
        )

    def describe(self) -> Mapping[str, Json]:
        lines = isinstance(self.format, JsonLines)
        said: dict[str, Json] = {
            "directory": self._place.text,
            "format": self.layout.codec.name if lines else self.format.extension.split(".")[0],
            "envelope": self.envelope,
            **self.format.describe(),
        }
        if self._partition_by is not None:
            said["partitioned"] = True
        return said | self._roll.describe() | ({"epoch_files": True} if self._announced else {})

    def scope(self, ctx: JobContext) -> str:
        return f"file:{self._place.text}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Try what commits need. Raises ConfigError if something fails, or if the directory is not that of before."""
        if isinstance(self._place, Directory) and self.scope(ctx) in ctx.known_in:
            self._place.expect_mark_of(ctx.job)
        return self._place.check(ctx)

    def advice(self, ctx: JobContext) -> str:
        """See ``abc.Advises``."""
        return f"Check {self._place.advice}"

    def writer(self, ctx: TaskContext) -> FileWriter:
        shape = Shape(
            self.layout, self.format.extension, self.envelope, self._partition_by, self._roll, self._announced
        )
        return FileWriter(self._place.staging(), self.scope(ctx.job), shape, ctx)

    def committer(self, ctx: JobContext) -> Committer:
        return self._place.committer()

    @property
    def directory(self) -> Path:
        """Where files are. ConfigError of a sink that writes to a bucket."""
        if not isinstance(self._place, Directory):
            raise ConfigError(f"{self._place.text} is no directory")
        return self._place.path

    def audit_files(self, ctx: JobContext, operator: str) -> tuple[str, str]:
        """For the audit: where files are, and what names of this sink's files match (groups: epoch and subtask)."""
        return self._place.text, self._place.pattern(ctx.job, operator)

    def audit_names(self) -> Sequence[str]:
        """For the audit: the files that are there, of other sinks too, as names below the place."""
        return self._place.names()

    @property
    def audit_lines(self) -> bool:
        """For the audit: are files lines as they are, in a directory, which need no reader?"""
        return self.format == JsonLines() and isinstance(self._place, Directory)

    def audit_read(self, name: str) -> Iterator[tuple[bytes, str | None]]:
        """For the audit: of each row of a file what it says, as ``audit_rows`` tells it, and its provenance."""
        with self._place.opened(name) as path:
            yield from self.layout.read(path)

    @property
    def audit_marked(self) -> bool:
        """For the audit: do rows say where they come from?"""
        return self.envelope

    @property
    def audit_codec(self) -> Codec[Any]:
        """For the audit: what encodes the values."""
        return self.layout.codec

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """For the audit: the rows that the writer writes, as a Kafka sink tells them; the value alone is set."""
        kept, written = self.written(batch, operator, reject)
        return kept, [(None, line.value, (), -1) for line in written]

    def written(self, batch: Batch[Any], operator: str, reject: RejectRow) -> tuple[Batch[Any], list[RawRecord]]:
        """For tests: the rows that the writer writes, and what they say as the values of records."""
        kept, block = encoded(lambda rows: self.layout.block(rows.values, None), batch, operator, reject)
        return kept, [RawRecord(self._place.text, -1, -1, -1, None, said, ()) for said in self.layout.told(block)]
