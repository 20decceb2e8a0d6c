"""Shared base of the sinks for lake tables: rows become staged data files, and the audit reads them back.

Rule: a guarantee that the table cannot keep is refused in ``check``, before anything is read. The library of a format
is imported when a sink is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.services import RejectRow
from kafka_eos.codecs.type_inspection import is_model, is_record, known_type
from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.lake_table import LakeTable, TableSpec
from kafka_eos.connectors._lake.partitions import partition_of
from kafka_eos.connectors._shared.key_columns import expect_distinct
from kafka_eos.connectors._shared.row_errors import encode_or_reject, map_rows
from kafka_eos.connectors._shared.table_audit import NoProvenance
from kafka_eos.connectors._shared.value_types import StreamTypedSink
from kafka_eos.connectors.files.file_names import partition
from kafka_eos.connectors.files.formats.record_fields import fields_of
from kafka_eos.connectors.files.os_errors import map_errors, refuse_permanent_errors
from kafka_eos.connectors.files.sink.open_files import FileOptions, Roll
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, KafkaEosError, Retryable
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_eos.connectors._lake.keyed_rows import UpsertLayout
    from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout

T = TypeVar("T")


class SinkTable(LakeTable, Protocol):
    """The operations that a sink needs of its table besides commits."""

    @property
    def needs(self) -> str:
        """Return what must be changed if the storage denies access."""

    def expect_reachable(self) -> None:
        """Check access at a start. Raise the storage's own error if the library would report it as no response."""

    def exists(self) -> bool: ...

    def create(self, schema: pa.Schema, by: Sequence[str]) -> None:
        """Create the table unless it exists, partitioned by these columns. Raise ConfigError if that is
        not possible."""

    def identity(self) -> str:
        """Return the identity of the table, under any of its names. A copy has another one."""

    def notices(self) -> Sequence[str]:
        """Return notices about the storage for a start."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the table's newest version."""

    def mapped(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        """Map errors: ``kind`` for a temporary error, ConfigError for a permanent one."""


class LakeSink(NoProvenance, StreamTypedSink[T]):
    """A sink for one lake table; each format has a subclass, which knows where the table is."""

    _connector: str
    """The format, as ``describe`` shows it."""
    _version: str
    """The format's name for a version of the table."""
    _commit_text: str
    """The description of one commit, as ``describe`` shows it."""
    _maintenance: str
    """The maintenance that keeps the number of files and versions low."""

    def __init__(
        self,
        table: SinkTable,
        scope: str,
        value: type[T] | None,
        create: bool,
        by: Sequence[str] = (),
        key: str | Sequence[str] = (),
        delete: Callable[[T], bool] | None = None,
    ) -> None:
        if isinstance(by, str):
            raise ConfigError(f"{type(self).__name__}(partition_by={by!r}): give a list, [{by!r}]")
        self._table = table
        self._scope = scope
        self._value = value
        self._create = create
        self._by = by
        self._key, self._delete = (key,) if isinstance(key, str) else tuple(key), delete
        if delete is not None and not self._key:
            raise ConfigError("delete=… needs key=(…): the columns that identify the row to delete")
        expect_distinct(self._key)
        self._parts = [self._column_of(each) for each in by]
        if by and not create:
            raise ConfigError(
                f"{type(self).__name__}: partition_by needs create=True; an existing table already "
                "defines its partitions"
            )
        self._expect_parts()

    def _column_of(self, by: str) -> str:
        """Return the column of a term of ``partition_by``."""
        return by

    def _take_type(self, tp: Any) -> None:
        known = known_type(tp)
        model = known if is_model(known) or is_record(known) else None
        if model is None and self._create:
            raise ConfigError(
                f"{self!r}: create=True needs the columns of the new table, and the type of the stream does not "
                "declare them: pass value=Model to the sink"
            )
        self._value = model
        self._expect_parts()

    def _expect_parts(self) -> None:
        """Raise ConfigError if values have no field for a column by which the table is partitioned."""
        if self._value is not None and self._parts:
            fields = fields_of(self._value, "")
            if unknown := [name for name in self._parts if name not in fields]:
                raise ConfigError(
                    f"{type(self).__name__}(partition_by=…): {self._value.__name__} has no field "
                    f"{', '.join(map(str, unknown))}"
                )

    def scope(self, ctx: JobContext) -> str:
        return self._scope

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``. Raise Retryable if the table cannot be reached."""
        ensure_name(ctx.job, "the job's name")
        with refuse_permanent_errors(self._table.needs):
            self._table.expect_reachable()
            if not self._table.exists() and self._create:
                self._make(ctx)
            self._found()
            if self._key:
                self._table.live()
            self._expect_writable(ctx)
        return self._table.notices()

    def _make(self, ctx: JobContext) -> None:
        if self._scope in ctx.written_scopes:
            raise ConfigError(
                f"{self._table.display_name} does not exist, but job {ctx.job!r} has written to it: a "
                "new empty table would hide that its rows are lost. Restore it with its "
                f"{self._table.log}. To continue with an empty table, create it yourself"
            )
        from kafka_eos.connectors.files.formats.arrow_layout import arrow_schema

        self._table.create(arrow_schema(self._value, "create the table yourself, and omit create=True"), self._by)

    def _expect_writable(self, ctx: JobContext) -> None:
        store, trial = self._table.store(), names.trial(ctx.job, ctx.term)
        with map_errors(Retryable, f"write beside the files of {self._table.display_name}"):
            store.create(trial)
            store.delete(trial)

    def get_target_identity(self) -> str:
        """Return the table's identity: the epoch in a table's log applies to all its sinks."""
        return self._table.identity()

    def get_committable_target(self, ctx: JobContext) -> str:
        return names.describe_key(self._key)

    def writer(self, ctx: TaskContext) -> FileWriter:
        from kafka_eos.connectors._lake.lake_staging import LakeStaging

        with self._table.mapped(EnvironmentFailed, "open a writer of"):
            layout, fit = self._found()
            staging = LakeStaging(self._table.store(), self._table.display_name, fit, self._key)
        by = None if self._key else partition_of(fit.partitions, self._value)
        return FileWriter(staging, self.scope(ctx.job), FileOptions(layout, "parquet", False, by, Roll(), False), ctx)

    def committer(self, ctx: JobContext) -> Committer:
        from kafka_eos.connectors._lake.committer import LakeCommitter

        return LakeCommitter(self._table)

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Return the table, and whether it has one row per key. For the audit."""
        return self._table.display_name, bool(self._key)

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each row of the newest version, encoded as ``audit_rows`` does. For the audit."""
        import pyarrow as pa

        from kafka_eos.connectors._lake.keyed_rows import encode_for_audit

        layout, _ = self._as_found
        for batch in self._table.batches(layout.schema.names):  # types may differ in their memory layout
            for key, content in encode_for_audit(layout, pa.Table.from_batches([batch]).cast(layout.schema)):
                assert content is not None  # only staged rows delete a key
                yield key, content

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """Return the rows that the writer stages, and each row's encoded content. For the audit."""
        from kafka_eos.connectors._lake.keyed_rows import encode_for_audit

        layout, fit = self._as_found
        by = None if self._key else partition_of(fit.partitions, self._value)

        def of(rows: Batch[Any]) -> pa.Table:
            if by is not None:
                map_rows(lambda value: partition(by(value)), rows.values)
            return layout.block(rows.values, None)

        kept, block = encode_or_reject(of, batch, operator, reject)
        return kept, [(key, content, (), -1) for key, content in encode_for_audit(layout, block)]

    @cached_property
    def _as_found(self) -> tuple[ArrowLayout | UpsertLayout, TableSpec]:
        return self._found()

    def _found(self) -> tuple[ArrowLayout | UpsertLayout, TableSpec]:
        """Return the row layout of the table now, and what files must match. May raise ConfigError."""
        from kafka_eos.connectors._lake.keyed_rows import UpsertLayout, expect_key
        from kafka_eos.connectors._lake.table_rows import layout_of

        fit = self._table.read_spec()
        layout = layout_of(fit, self._value, self._table.display_name)
        if not self._key:
            return layout, fit
        expect_key(self._key, layout.schema, self._table.display_name)
        return UpsertLayout(layout, fit, self._value, self._key, self._delete), fit

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        if not self._key:
            return (
                f"a {self._version} of the table for each epoch, and a file for each of its subtasks and partitions: a "
                f"short interval makes many of both; {self._maintenance}",
                "after a commit of another writer, a commit of the job is tried again",
            )
        return (
            f"a {self._version} of the table for each epoch: each commit reads the keys of the data files that may "
            "contain a key of the epoch, and rewrites each file that does. If the keys are spread over a large table, "
            "each commit rewrites that table",
            "each commit holds the keys of its epoch in memory",
            "after a commit of another writer, a commit of the job reads and rewrites again",
        )

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": self._connector,
            "table": self._table.display_name,
            "mode": self._mode(),
            "key": [*self._key],
            "commit": self._commit_text,
        }

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the table."""
        return [Dataset.at(self._table.display_name)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table.display_name!r})"

    def _mode(self) -> str:
        if not self._key:
            return "append"
        return "upsert" if self._delete is None else "upsert and delete"
