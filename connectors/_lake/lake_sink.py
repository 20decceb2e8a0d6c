"""What the sinks for tables of a lake share: rows become staged data files, and the audit reads them back.

Rule: a promise that the table cannot keep is refused in ``check``, before anything is read. Libraries of a format are
imported when a sink is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.services import RejectRow
from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.lake_table import Fit, LakeTable
from kafka_eos.connectors._lake.partitions import partition_of
from kafka_eos.connectors._shared.row_errors import each_row, encoded
from kafka_eos.connectors._shared.table_audit import Unmarked
from kafka_eos.connectors.files.file_names import partition
from kafka_eos.connectors.files.formats.record_fields import fields_of
from kafka_eos.connectors.files.os_errors import expecting, mapped
from kafka_eos.connectors.files.sink.open_files import Roll, Shape
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.core.errors import ConfigError, KafkaEosError, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import token
from kafka_eos.core.records import Batch, Headers

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_eos.connectors._lake.keyed_rows import KeyedLayout
    from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout

T = TypeVar("T")


def replacing(version: str) -> tuple[str, ...]:
    """The price of a key."""
    return (
        f"a {version} of the table for each epoch: each commit reads the keys of the data files that may have one of "
        "the epoch's, and writes those that do again, whole; of keys all over a large table that is the table",
        "the commit holds the keys of its epoch in memory",
        "a commit of another writer makes one of the job read and write again",
    )


def expect_parts(by: Sequence[str], value: Any, create: bool, sink: str) -> None:
    """ConfigError if a table that the sink makes cannot be partitioned by these columns."""
    if by and not create:
        raise ConfigError(f"{sink}: partition_by is for create=True; a table that is there says it itself")
    if by and value is not None and (unknown := [name for name in by if name not in fields_of(value, "")]):
        raise ConfigError(f"{sink}(partition_by=…): {value.__name__} has no field {', '.join(map(str, unknown))}")


class SinkTable(LakeTable, Protocol):
    """What a sink asks of its table besides commits."""

    @property
    def needs(self) -> str:
        """What is to be changed if its place refuses this user."""

    def expect_reachable(self) -> None:
        """At a start. Raises what its place says of who looks, if the library would not tell that from no answer."""

    def exists(self) -> bool: ...

    def create(self, schema: pa.Schema, by: Sequence[str]) -> None:
        """If it is not there, partitioned by these columns. Raises ConfigError if that cannot be."""

    def identity(self) -> str:
        """Which table it is, by whatever name; another one than a copy of it."""

    def notices(self) -> Sequence[str]:
        """What a start has to say of the place where it is."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows that are there now."""

    def mapped(self, kind: type[KafkaEosError], what: str) -> AbstractContextManager[None]:
        """``kind`` for an error that may pass, ConfigError for one that will not."""


class LakeSink(Unmarked, Generic[T]):
    """A sink for one table of a lake; each format has its own, which says where the table is."""

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
        self._table, self._scope, self._value, self._create, self._by = table, scope, value, create, by
        self._key, self._delete = (key,) if isinstance(key, str) else tuple(key), delete
        if delete is not None and not self._key:
            raise ConfigError("delete=… needs key=(…): the columns that tell which row goes")
        if len(set(self._key)) < len(self._key):
            raise ConfigError(f"key: a name comes twice in {', '.join(self._key)}; say each column once")
        if create and value is None:
            raise ConfigError("create=True needs value=Model: its fields are the columns of the table that is made")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def scope(self, ctx: JobContext) -> str:
        return self._scope

    def check(self, ctx: JobContext) -> Sequence[str]:
        """At start; see ``abc.Sink``. Raises Retryable if the table cannot be reached."""
        token(ctx.job, "the job's name")
        with expecting(self._table.needs):
            self._table.expect_reachable()
            if not self._table.exists() and self._create:
                self._make(ctx)
            self._found()
            if self._key:
                self._table.expect_replaceable()
            self._expect_writable(ctx)
        return self._table.notices()

    def _make(self, ctx: JobContext) -> None:
        if self._scope in ctx.known_in:
            raise ConfigError(
                f"{self._table.text} is gone, and job {ctx.job!r} has written to it: an empty one in its place "
                f"would hide that its rows are lost. Bring it back, with its {self._table.log}. To go on with an empty "
                "one, make the table yourself"
            )
        from kafka_eos.connectors.files.formats.arrow_layout import arrow_schema

        self._table.create(arrow_schema(self._value, "make the table yourself, and leave create=True out"), self._by)

    def _expect_writable(self, ctx: JobContext) -> None:
        store, trial = self._table.store(), names.trial(ctx.job, ctx.term)
        with mapped(Retryable, f"write beside the files of {self._table.text}"):
            store.create(trial)
            store.delete(trial)

    def identity(self) -> str:
        """See ``abc.OneScope``: the epoch that a table's log names is that of all its sinks."""
        return self._table.identity()

    def writer(self, ctx: TaskContext) -> FileWriter:
        from kafka_eos.connectors._lake.staging import LakeStaging

        with self._table.mapped(RestartFromCheckpoint, "open a writer of"):
            layout, fit = self._found()
            staging = LakeStaging(self._table.store(), self._table.text, fit, self._key)
        by = None if self._key else partition_of(fit.partitions, self._value)
        return FileWriter(staging, self.scope(ctx.job), Shape(layout, "parquet", False, by, Roll(), False), ctx)

    def committer(self, ctx: JobContext) -> Committer:
        from kafka_eos.connectors._lake.committer import LakeCommitter

        return LakeCommitter(self._table)

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """For the audit: the table, and whether it holds one row a key."""
        return self._table.text, bool(self._key)

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """For the audit: key and value of each row of the newest version, as ``audit_rows`` tells them."""
        import pyarrow as pa

        from kafka_eos.connectors._lake.keyed_rows import told

        layout, _ = self._as_found
        for batch in self._table.batches(layout.schema.names):  # types may differ in how they lie in memory
            for key, said in told(layout, pa.Table.from_batches([batch]).cast(layout.schema)):
                assert said is not None  # only staged rows delete a key
                yield key, said

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """For the audit: the rows that the writer stages, and what the table says of each."""
        from kafka_eos.connectors._lake.keyed_rows import told

        layout, fit = self._as_found
        by = None if self._key else partition_of(fit.partitions, self._value)

        def of(rows: Batch[Any]) -> pa.Table:
            if by is not None:
                each_row(lambda value: partition(by(value)), rows.values)
            return layout.block(rows.values, None)

        kept, block = encoded(of, batch, operator, reject)
        return kept, [(key, said, (), -1) for key, said in told(layout, block)]

    @cached_property
    def _as_found(self) -> tuple[ArrowLayout | KeyedLayout, Fit]:
        return self._found()

    def _found(self) -> tuple[ArrowLayout | KeyedLayout, Fit]:
        """How rows lie in the table as it is now, and what files have to fit. May raise ConfigError."""
        from kafka_eos.connectors._lake.keyed_rows import KeyedLayout, expect_key
        from kafka_eos.connectors._lake.table_rows import layout_of

        fit = self._table.fit()
        layout = layout_of(fit, self._value, self._table.text)
        if not self._key:
            return layout, fit
        expect_key(self._key, layout.schema, self._table.text)
        return KeyedLayout(layout, fit, self._value, self._key, self._delete), fit

    def _mode(self) -> str:
        if not self._key:
            return "append"
        return "upsert" if self._delete is None else "upsert and delete"
