"""Tables of a lake on this machine, and a job that writes one without an engine: the steps in a test's hands."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.sink import Sink, Writer
from kafka_eos.connectors._lake.committer import LakeCommitter
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.rest_catalog import RestCatalog

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


class Lake(Protocol):
    """A table of one format, ``where`` it is, and what others may do to it."""

    where: Path
    retyped: str
    """What a commit says of ``retype``."""

    def sink(self) -> Sink[Any]: ...

    def keep(self, copy: Path) -> None:
        """A copy of all that there is of it."""

    def put_back(self, copy: Path) -> None:
        """As it was then."""

    def rows(self) -> list[int]: ...

    def versions(self) -> int:
        """How many commits its log has."""

    def others_append(self) -> None:
        """A writer that is not ours commits an empty change."""

    def others_delete(self) -> None:
        """A writer that is not ours removes all rows; older versions have them still."""

    def compact_and_forget(self) -> None:
        """Rewrite all data files as one, and forget every older version, with its files."""

    def replace(self) -> None:
        """Drop the table and make an empty one of the same name."""

    def widen(self) -> None:
        """A new column that may be null."""

    def forbid(self) -> None:
        """A rule that files of ours do not keep."""

    def retype(self) -> None:
        """Another type for ``text``: nothing of what is staged fits any more."""


class DeltaLake:
    """Delta."""

    retyped = "its column text is int64 now, and was string"

    def __init__(self, home: Path) -> None:
        self.where = home / "table"
        DeltaTable.create(self.where, COLUMNS)

    def sink(self) -> DeltaSink[Any]:
        return DeltaSink(self.where)

    def keep(self, copy: Path) -> None:
        shutil.copytree(self.where, copy)

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.where)
        shutil.copytree(copy, self.where)

    def table(self) -> DeltaTable:
        return DeltaTable(self.where)

    def rows(self) -> list[int]:
        return sorted(pa.table(self.table().to_pyarrow_table()).column("id").to_pylist())

    def versions(self) -> int:
        return self.table().version() + 1

    def others_append(self) -> None:
        table = self.table()
        table.create_write_transaction([], "append", table.schema())

    def others_delete(self) -> None:
        self.table().delete()

    def compact_and_forget(self) -> None:
        self.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        self.table().optimize.compact()
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        self.table().create_checkpoint()
        self.table().cleanup_metadata()

    def replace(self) -> None:
        shutil.rmtree(self.where / "_delta_log")
        DeltaTable.create(self.where, COLUMNS)

    def widen(self) -> None:
        self.table().alter.add_columns(DeltaTable.create(self.where.with_name("wide"), NEW).schema().fields)

    def forbid(self) -> None:
        self.table().alter.add_constraint({"some": "id > 0"})

    def retype(self) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.where, pa.table({"id": [1], "text": [2]}), mode="overwrite", schema_mode="overwrite")


NEW = pa.schema([pa.field("more", pa.string())])


class IcebergLake:
    """Iceberg, with a catalog in SQLite."""

    retyped = "its column text was dropped or replaced"

    def __init__(self, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self._catalog, self.where = home / "catalog.db", home / "warehouse/shop/rows"
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{self._catalog}?timeout=0.2",
            "warehouse": f"file://{home}/warehouse",
        }
        self.catalog().create_namespace("shop")
        self.catalog().create_table("shop.rows", COLUMNS)

    def sink(self) -> IcebergSink[Any]:
        return IcebergSink("shop.rows", catalog="test", properties=self.properties)

    def catalog(self) -> Catalog:
        return load_catalog("test", **self.properties)

    def table(self) -> Table:
        return self.catalog().load_table("shop.rows")

    def keep(self, copy: Path) -> None:
        shutil.copytree(self.where, copy)
        shutil.copy(self._catalog, copy / "catalog.db")

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.where)
        shutil.copytree(copy, self.where)
        with sqlite3.connect(copy / "catalog.db") as kept, sqlite3.connect(self._catalog) as now:
            kept.backup(now)

    def rows(self) -> list[int]:
        return sorted(self.table().scan().to_arrow().column("id").to_pylist())

    def versions(self) -> int:
        return self.table().last_sequence_number

    def others_append(self) -> None:
        self.table().append(COLUMNS.empty_table())

    def others_delete(self) -> None:
        self.table().delete("true")

    def compact_and_forget(self) -> None:
        table = self.table()
        table.overwrite(table.scan().to_arrow())
        newest = table.refresh().metadata.current_snapshot_id
        others = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != newest]
        table.maintenance.expire_snapshots().by_ids(others).commit()
        for path in (self.where / "data").glob("part-*"):
            path.unlink()
        assert len(table.refresh().snapshots()) == 1

    def replace(self) -> None:
        self.catalog().drop_table("shop.rows")
        self.catalog().create_table("shop.rows", COLUMNS)

    def widen(self) -> None:
        with self.table().update_schema() as change:
            change.add_column("more", StringType())

    def forbid(self) -> None:
        with self.table().update_spec() as change:
            change.add_identity("id")

    def retype(self) -> None:
        with self.table().update_schema(allow_incompatible_changes=True) as change:
            change.delete_column("text")
        with self.table().update_schema() as change:
            change.add_column("text", LongType())


@dataclass
class LakeJob:
    """One incarnation of a job that writes ``lake``, term by term."""

    lake: Lake
    identity: JobIdentity = field(default_factory=JobIdentity.new)

    def context(self, term: int) -> JobContext:
        return JobContext("orders", Term(term), {}, self.identity)

    def recovered(self, term: int) -> LakeCommitter:
        """A committer of a term that has begun: it holds the incarnation, and has removed what older ones left."""
        committer = self.committer()
        committer.register(self.context(term))
        committer.abort_leftovers(self.context(term))
        return committer

    def committer(self) -> LakeCommitter:
        made = self.lake.sink().committer(self.context(0))
        assert isinstance(made, LakeCommitter)
        return made

    def writer(self, term: int, epoch: int, subtask: int = 0) -> Writer[Any]:
        return self.lake.sink().writer(TaskContext(self.context(term), subtask, 2, "out", first_epoch=Epoch(epoch)))

    def prepared(self, term: int, epoch: int, ids: Sequence[int], subtask: int = 0) -> Sequence[Committable]:
        return self.sealed(self.writer(term, epoch, subtask), term, epoch, ids)

    def sealed(self, writer: Writer[Any], term: int, epoch: int, ids: Sequence[int]) -> Sequence[Committable]:
        values = [{"id": n, "text": str(n)} for n in ids]
        writer.write(Batch(values, range(len(values)), ListOrigin("in", "list", 0, 0, values)))
        return writer.seal(at(epoch, term))()


class RestLake(IcebergLake):
    """Iceberg, through a REST catalog above that one."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.server = RestCatalog(self.catalog)

    def sink(self) -> IcebergSink[Any]:
        return IcebergSink("shop.rows", catalog="test", properties=self.server.properties)


def at(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def permit(committer: LakeCommitter, epoch: EpochId, committables: Sequence[Committable]) -> CommitPermit:
    decision = authorize(epoch, committer.probe_all(committables), 0.0)
    assert isinstance(decision, CommitAuthorized), decision
    return decision.permit


def commit(committer: LakeCommitter, epoch: EpochId, committables: Sequence[Committable]) -> set[CommitOutcome]:
    return {*committer.commit_all(permit(committer, epoch, committables), committables)}


def statuses(committer: LakeCommitter, committables: Sequence[Committable]) -> set[CommitStatus]:
    return {probe.status for probe in committer.probe_all(committables)}


def gone(call: Callable[[], object]) -> None:
    with suppress(FileNotFoundError):
        call()


def expect_fences(lake: Lake, *, keyed: bool) -> None:
    """A new term finishes what an older one has decided, removes what that has not, and fences it."""
    lake_job = LakeJob(lake)
    old = lake_job.recovered(1)
    assert commit(old, at(1, 1), lake_job.prepared(1, 1, [1, 2])) == {CommitOutcome.COMMITTED}
    decided, orphans = lake_job.prepared(1, 2, [2, 3]), lake_job.prepared(1, 3, [4])
    assert statuses(old, [*decided, *orphans]) == {CommitStatus.PREPARED}
    right = permit(old, at(2, 1), decided)

    new = lake_job.committer()
    new.register(lake_job.context(2))
    assert {*new.commit_all(right, decided)} == {CommitOutcome.COMMITTED}
    assert len(new.abort_leftovers(lake_job.context(2))) == 1

    assert {*new.commit_all(right, decided)} == {CommitOutcome.ALREADY}
    with pytest.raises(Fenced):
        old.register(lake_job.context(1))
    assert statuses(new, orphans) == {CommitStatus.LOST}
    assert lake.rows() == ([1, 2, 3] if keyed else [1, 2, 2, 3])
