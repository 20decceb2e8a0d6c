"""``DeltaSink``: rows of a Delta table, each exactly once.

Rule: a promise that the table cannot keep is refused in ``check``, before anything is read. deltalake is imported when
a sink is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.open_files import Roll, Shape
from kafka_eos.connectors.files.places import NETWORK
from kafka_eos.connectors.files.writer import FileWriter
from kafka_eos.connectors.rejecting import encoded
from kafka_eos.errors import ConfigError, RestartFromCheckpoint
from kafka_eos.extras import expect_extra
from kafka_eos.ids import token
from kafka_eos.interfaces import Codec, Committer, Guarantee, JobContext, Json, RejectRow, TaskContext
from kafka_eos.records import Batch, Headers
from kafka_eos.schemas import codec_for

if TYPE_CHECKING:
    from kafka_eos.connectors.files.formats.arrow import ArrowLayout

T = TypeVar("T")


class DeltaSink(Generic[T]):
    """Appends a stream of ``T`` to a Delta table, each value exactly once; all of an epoch is one commit.

    ``table``   its directory
    ``value``   the type of the values, a pydantic model, msgspec Struct or dataclass: its fields are columns. Without
                it rows are dicts of the table's columns
    ``create``  make the table at the start if it is not there, with the columns of ``value``
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        value: type[T] | None = None,
        create: bool = False,
    ) -> None:
        expect_extra("delta", "DeltaSink")
        from kafka_eos.connectors.delta.log import DeltaLog

        directory = _directory(table)
        self._log, self._table = DeltaLog(directory), str(directory)
        self._value, self._create = value, create
        if create and value is None:
            raise ConfigError("create=True needs value=Model: its fields are the columns of the table that is made")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "delta",
            "table": self._table,
            "mode": "append",
            "commit": "one commit of the table an epoch, with the epoch as its application transaction",
        }

    def __repr__(self) -> str:
        return f"DeltaSink({self._table!r})"

    def scope(self, ctx: JobContext) -> str:
        return f"delta:{self._table}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """At start; see ``interfaces.Sink``. Raises Retryable if the table cannot be reached."""
        token(ctx.job, "the job's name")
        if not self._log.exists() and self._create:
            from kafka_eos.connectors.files.formats.arrow import arrow_schema

            self._log.create(arrow_schema(self._value))
        self._found()
        if disk.filesystem(Path(self._table)).split(".")[0] not in NETWORK:
            return []
        return [f"{self._table} is on a network: exactly-once depends on its server keeping what fsync promised."]

    def writer(self, ctx: TaskContext) -> FileWriter:
        from kafka_eos.connectors.lake.staging import LakeStaging

        with self._log.mapped(RestartFromCheckpoint, "open a writer of"):
            layout, table, schema = self._found()
        staging = LakeStaging(self._log.store(), self._table, table, schema)
        return FileWriter(staging, self.scope(ctx.job), Shape(layout, "parquet", False, None, Roll(), False), ctx)

    def committer(self, ctx: JobContext) -> Committer:
        from kafka_eos.connectors.lake.committer import LakeCommitter

        return LakeCommitter(self._log)

    @property
    def audit_marked(self) -> bool:
        """For the audit: rows do not say where they come from."""
        return False

    @property
    def audit_codec(self) -> Codec[Any]:
        """For the audit: what tells rows."""
        return codec_for(Any)

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """For the audit: the table, and that it holds every row."""
        return self._table, False

    def audit_unfit(self) -> str | None:
        """For the audit: why rows cannot be compared; None, for they can."""
        return None

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """For the audit: of each row of the newest version what it says, as ``audit_rows`` tells it."""
        layout = self._layout
        for batch in self._log.batches(layout.schema.names):
            for said in layout.told_of(batch):
                yield None, said

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """For the audit: the rows that the writer stages, and what the table says of each."""
        layout = self._layout
        kept, block = encoded(lambda rows: layout.block(rows.values, None), batch, operator, reject)
        return kept, [(None, said, (), -1) for said in layout.told(block)]

    @cached_property
    def _layout(self) -> ArrowLayout:
        return self._found()[0]

    def _found(self) -> tuple[ArrowLayout, str, str]:
        """How rows lie in the table as it is now; its identity, and its columns in short. May raise ConfigError."""
        from kafka_eos.connectors.lake.rows import layout_of

        columns, table, schema = self._log.fit()
        return layout_of(columns, self._value, self._table), table, schema


def _directory(table: str | os.PathLike[str]) -> Path:
    """As an absolute path. ConfigError if it is none."""
    text = os.fspath(table)
    if not text:
        raise ConfigError("DeltaSink('') names no table: give its directory")
    if "://" in text:
        raise ConfigError(f"DeltaSink writes to tables in a directory, not to {text.partition('://')[0]}://")
    return Path(os.path.abspath(os.path.expanduser(text)))
