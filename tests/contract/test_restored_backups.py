"""Tables and databases that are put back to an older copy behind a job's back, at each moment of its life.

Real coordinators, sinks and systems; what workers would do is in the test's hands. Whole jobs that are killed:
``tests/chaos/test_missing_tables.py``.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql

from docs.examples.sqlite_sink import make_sink
from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import AtomicCommitter, Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import Sink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.lakes import DeltaLake, IcebergLake


class System(Protocol):
    """What a job writes to, and what a person does to it."""

    def sink(self) -> Sink[Any]: ...

    def keep(self, copy: Path) -> None: ...

    def put_back(self, copy: Path) -> None: ...

    def rows(self) -> list[int]: ...


class Database:
    """A database of PostgreSQL. A copy is another database; who puts it back ends all connections."""

    def __init__(self, make: Callable[[], str]) -> None:
        """``make`` makes an empty database."""
        self._make, self._conninfo, self._copies = make, make(), dict[Path, str]()
        self._ask("CREATE TABLE rows (id bigint NOT NULL, text text)")

    def sink(self) -> Sink[Any]:
        return PostgresSink(self._conninfo, "rows", columns=("id", "text"))

    def keep(self, copy: Path) -> None:
        self._copies[copy] = _name(self._make())
        self._copied(_name(self._conninfo), self._copies[copy])

    def put_back(self, copy: Path) -> None:
        self._copied(self._copies[copy], _name(self._conninfo))

    def rows(self) -> list[int]:
        return [row[0] for row in self._ask("SELECT id FROM rows ORDER BY id")]

    def _copied(self, old: str, new: str) -> None:
        elsewhere = psycopg.conninfo.make_conninfo(self._conninfo, dbname="postgres")
        with psycopg.connect(elsewhere, autocommit=True) as connection:
            for name in (old, new):
                end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                connection.execute(end, (name,))
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(new)))
            made = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(made.format(sql.Identifier(new), sql.Identifier(old)))

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._conninfo) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class SqliteFile:
    """A file of SQLite, which the sink for any database writes to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ask("CREATE TABLE rows (id INTEGER NOT NULL, text TEXT NOT NULL)")

    def sink(self) -> Sink[Any]:
        return make_sink(str(self._path))

    def keep(self, copy: Path) -> None:
        shutil.copy(self._path, copy)

    def put_back(self, copy: Path) -> None:
        shutil.copy(copy, self._path)

    def rows(self) -> list[int]:
        return [number for (number,) in self._ask("SELECT id FROM rows ORDER BY id")]

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(statement).fetchall()


def _name(conninfo: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"])


@dataclass
class World:
    """A job with one sink, on a real directory."""

    system: System
    home: Path
    open: list[Coordinator] = field(default_factory=list)

    def started(self) -> Coordinator:
        """A coordinator that has recovered; who held the job before is gone."""
        coordinator = self.coordinator()
        coordinator.recovery.restore()
        return coordinator

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline("orders")
        pipeline.source(ListSource([{"id": 1}]), name="numbers").sink(self.system.sink(), name="out")
        storage = LocalStorage(self.home / "orders")
        patience = Retrier(threading.Event(), print)
        self.open.append(Coordinator(pipeline.plan(), storage, History(storage, print), patience, {}, 2))
        return self.open[-1]

    def decided(self, coordinator: Coordinator, *ids: int, subtasks: int = 1) -> Manifest:
        """One more epoch, with these rows of each subtask; nothing of it is committed."""
        epoch, committables = coordinator.ownership.next_epoch(), list[Committable]()
        for subtask in range(subtasks if ids else 0):
            job = coordinator.ownership.load_identity()
            writer = self.system.sink().writer(TaskContext(job, subtask, 2, "out", first_epoch=epoch.epoch))
            values = [{"id": n, "text": str(n)} for n in ids]
            writer.write(Batch(values, range(len(values)), ListOrigin("in", "list", 0, 0, values)))
            committables += writer.seal(epoch)()
            writer.discard()
        return coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), tuple(committables)))

    def finished(self, coordinator: Coordinator, *ids: int) -> None:
        coordinator.epochs.commit(self.decided(coordinator, *ids))

    def refused(self) -> str:
        """What a start says that must not go on; it changes nothing that a second one looks at."""
        before, said = self.system.rows(), set[str]()
        for _ in range(2):
            with pytest.raises(
                ConfigError, match="an older copy of the sink or of the checkpoints was restored"
            ) as caught:
                self.started()
            said.add(str(caught.value))
        assert self.system.rows() == before
        assert len(said) == 1
        return said.pop()


SYSTEMS: dict[str, Callable[[Path, Callable[[], str]], System]] = {
    "delta": lambda home, _: DeltaLake(home),
    "iceberg": lambda home, _: IcebergLake(home / "lake"),
    "postgres": lambda _, database: Database(database),
    "any database": lambda home, _: SqliteFile(home / "rows.db"),
}


@pytest.fixture(params=SYSTEMS)
def world(request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[], str]) -> Iterator[World]:
    yield from _world(SYSTEMS[request.param](tmp_path, database), tmp_path)


def _world(system: System, home: Path) -> Iterator[World]:
    world = World(system, home)
    yield world
    for coordinator in world.open:
        coordinator.close()


@pytest.mark.parametrize("ids", [(3,), ()], ids=["with rows", "without rows"])
def test_a_copy_that_is_put_back_while_an_epoch_has_no_receipt_is_noticed(
    world: World, tmp_path: Path, ids: tuple[int, ...]
) -> None:
    """The job was killed between the decision and the receipt: what the copy lacks is of the epochs before."""
    first = world.started()
    world.finished(first, 1)
    world.system.keep(tmp_path / "older")
    world.finished(first, 2)
    world.decided(first, *ids)
    world.system.keep(tmp_path / "newer")
    world.system.put_back(tmp_path / "older")

    world.refused()
    world.system.put_back(tmp_path / "newer")
    world.started()

    assert world.system.rows() == [1, 2, *ids]


def test_a_copy_that_is_put_back_while_the_job_runs_is_noticed_by_its_next_attempt(
    world: World, tmp_path: Path
) -> None:
    """No process is started anew, as when a standby of the server takes over that lacks the newest commits."""
    first = world.started()
    world.finished(first, 1)
    world.system.keep(tmp_path / "older")
    world.finished(first, 2)
    world.system.put_back(tmp_path / "older")

    world.refused()


def test_a_copy_lacks_what_it_had_before_epochs_without_rows(world: World, tmp_path: Path) -> None:
    """The copy is younger than the start, and the manifest of the epoch with rows is gone: two are kept."""
    coordinator = world.started()
    world.finished(coordinator, 1)
    world.system.keep(tmp_path / "older")
    world.finished(coordinator, 2)
    for _ in range(3):
        world.finished(coordinator)
        coordinator.drop_old_epochs()
    world.system.keep(tmp_path / "newer")
    world.system.put_back(tmp_path / "older")

    world.refused()
    world.system.put_back(tmp_path / "newer")
    world.finished(world.started(), 3)
    world.started()

    assert world.system.rows() == [1, 2, 3]


def test_a_copy_of_before_the_first_start_is_no_new_table(world: World, tmp_path: Path) -> None:
    world.system.keep(tmp_path / "older")
    coordinator = world.started()
    world.finished(coordinator, 1)
    world.finished(coordinator)
    world.system.put_back(tmp_path / "older")

    world.refused()


def test_checkpoints_that_are_put_back_alone_are_noticed(world: World, tmp_path: Path) -> None:
    """They would have rows written twice that are there already."""
    coordinator = world.started()
    world.finished(coordinator)
    shutil.copytree(tmp_path / "orders", tmp_path / "older")
    world.finished(coordinator, 1)
    (tmp_path / "orders").rename(tmp_path / "newer")
    (tmp_path / "older").rename(tmp_path / "orders")

    assert "already" in world.refused()
    shutil.rmtree(tmp_path / "orders")
    (tmp_path / "newer").rename(tmp_path / "orders")
    world.finished(world.started(), 2)

    assert world.system.rows() == [1, 2]


def test_an_epoch_that_was_committed_in_part_goes_on(world: World) -> None:
    """Its first commit has taken away the traces of the epoch before, which nobody misses."""
    first = world.started()
    world.finished(first, 1)
    manifest = world.decided(first, 2, subtasks=2)
    committer = world.system.sink().committer(first.ownership.load_identity())
    decision = authorize(manifest.id, committer.probe_all(manifest.committables), 0.0)
    assert isinstance(decision, CommitAuthorized) and len(manifest.committables) == 2
    some = manifest.committables if isinstance(committer, AtomicCommitter) else manifest.committables[:1]
    committer.commit_all(decision.permit, some)
    committer.close()

    world.started()

    assert world.system.rows() == [1, 2, 2]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from _world(DeltaLake(tmp_path) if request.param == "delta" else IcebergLake(tmp_path / "lake"), tmp_path)


def test_a_table_that_was_made_anew_is_gone_on_with_for_good(lake: World) -> None:
    """Epochs without rows remember those of the old one, which nobody looks for in the new one."""
    coordinator = lake.started()
    lake.finished(coordinator, 1)
    assert isinstance(lake.system, DeltaLake | IcebergLake)
    lake.system.replace()

    for _ in range(3):
        lake.finished(lake.started())
    lake.finished(lake.started(), 2)
    lake.started()

    assert lake.system.rows() == [2]


@pytest.mark.parametrize("starts", [False, True], ids=["a moment ago", "an earlier start"])
def test_a_log_that_is_put_back_while_the_job_runs_takes_no_commit(lake: World, tmp_path: Path, starts: bool) -> None:
    """The log alone: all data files are there, so nothing else would keep the commit from being made."""
    coordinator = lake.started()
    lake.finished(coordinator, 1)
    lake.system.keep(tmp_path / "older")
    lake.finished(coordinator, 2)
    if starts:
        coordinator = lake.started()
    manifest = lake.decided(coordinator, 3)
    lake.system.keep(tmp_path / "newer")
    put_back_log(lake.system, tmp_path / "older")

    with pytest.raises(RestartFromCheckpoint, match="an older copy"):
        coordinator.epochs.commit(manifest)
    assert lake.system.rows() == [1]
    lake.refused()
    put_back_log(lake.system, tmp_path / "newer")
    lake.started()

    assert lake.system.rows() == [1, 2, 3]


def put_back_log(system: System, copy: Path) -> None:
    assert isinstance(system, DeltaLake | IcebergLake)
    now = copy.with_name(f"beside-{copy.name}")
    shutil.copytree(system.where, now, ignore=shutil.ignore_patterns("_delta_log"))
    system.put_back(copy)
    shutil.copytree(now, system.where, dirs_exist_ok=True)
