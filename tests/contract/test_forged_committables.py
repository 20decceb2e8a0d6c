"""Manifests that name output which is not of the job: whoever can write to the checkpoints forges them.

Real coordinators, sinks and systems. Rule of each test: nothing becomes visible, and nothing is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitStatus, Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import Sink
from kafka_eos.connectors.files import FileSink
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, KafkaEosError
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.lakes import DeltaLake
from tests.contract.test_restored_backups import Database, SqliteFile


class System(Protocol):
    """What the jobs write to."""

    def sink(self) -> Sink[Any]: ...

    def rows(self) -> list[int]: ...


class Directory:
    """A directory that several jobs write to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sink(self) -> Sink[Any]:
        return FileSink(self._path, value=dict)

    def rows(self) -> list[int]:
        lines = [line for file in sorted(self._path.glob("part-*")) for line in file.read_text().splitlines()]
        return [int(msgspec.json.decode(line)["id"]) for line in lines]


SYSTEMS: dict[str, Callable[[Path, Callable[[], str]], System]] = {
    "files": lambda home, _: Directory(home / "rows"),
    "delta": lambda home, _: DeltaLake(home),
    "postgres": lambda _, database: Database(database),
    "any database": lambda home, _: SqliteFile(home / "rows.db"),
}


@dataclass
class World:
    """Two jobs with one sink each, which write to the same system."""

    system: System
    home: Path
    open: list[Coordinator] = field(default_factory=list)

    def coordinator(self, job: str) -> Coordinator:
        pipeline = Pipeline(job)
        pipeline.source(ListSource([{"id": 1}]), name="numbers").sink(self.system.sink(), name="out")
        storage, patience = self.storage(job), Retrier(threading.Event(), print)
        self.open.append(Coordinator(pipeline.plan(), storage, History(storage, print), patience, {}, 2))
        return self.open[-1]

    def storage(self, job: str) -> LocalStorage:
        return LocalStorage(self.home / job)

    def decided(self, job: str, number: int) -> Manifest:
        """An epoch of a job with one row that is prepared."""
        coordinator = self.coordinator(job)
        coordinator.recovery.restore()
        epoch = coordinator.ownership.next_epoch()
        ctx = coordinator.ownership.load_identity()
        writer = self.system.sink().writer(TaskContext(ctx, 0, 1, "out", first_epoch=epoch.epoch))
        values = [{"id": number, "text": "x"}]
        writer.write(Batch(values, range(1), ListOrigin("in", "list", 0, 0, values)))
        committables = tuple(writer.seal(epoch)())
        writer.discard()
        return coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), committables))

    def forge(self, manifest: Manifest, **changes: Any) -> None:
        """Replace a manifest by one with other content, and with the right checksum."""
        storage = self.storage(manifest.job)
        storage.delete(manifest.name)
        records.publish(storage, replace(manifest, **changes))

    def refused(self, job: str, error: type[KafkaEosError]) -> str:
        with pytest.raises(error) as caught:
            self.coordinator(job).recovery.restore()
        return str(caught.value)

    def statuses(self, manifest: Manifest) -> set[CommitStatus]:
        committer = self.system.sink().committer(self.coordinator(manifest.job).ownership.load_identity())
        found = {probe.status for probe in committer.probe_all(manifest.committables)}
        committer.close()
        return found


@pytest.fixture(params=SYSTEMS)
def world(request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[], str]) -> Iterator[World]:
    world = World(SYSTEMS[request.param](tmp_path, database), tmp_path)
    yield world
    for coordinator in world.open:
        coordinator.close()


@pytest.fixture(params=["postgres", "any database"])
def tables(request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[], str]) -> Iterator[World]:
    world = World(SYSTEMS[request.param](tmp_path, database), tmp_path)
    yield world
    for coordinator in world.open:
        coordinator.close()


def test_output_of_another_job_is_not_committed(world: World) -> None:
    payments, orders = world.decided("payments", 7), world.decided("orders", 1)
    world.forge(orders, committables=payments.committables)

    said = world.refused("orders", CorruptCheckpoint)

    assert "payments" in said and "Nothing was committed and nothing was deleted" in said
    assert world.system.rows() == []
    assert world.statuses(payments) == world.statuses(orders) == {CommitStatus.PREPARED}

    world.forge(orders)
    world.coordinator("orders").recovery.restore()
    world.coordinator("payments").recovery.restore()

    assert sorted(world.system.rows()) == [1, 7]


def test_output_of_another_job_beside_own_output_is_not_decided(world: World) -> None:
    """A worker that reports it, or a file that it wrote, does not get it into a manifest."""
    payments = world.decided("payments", 7)
    coordinator = world.coordinator("orders")
    coordinator.recovery.restore()
    epoch = coordinator.ownership.next_epoch()

    with pytest.raises(CorruptCheckpoint, match="payments"):
        coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), payments.committables))

    assert world.statuses(payments) == {CommitStatus.PREPARED}


def test_output_of_another_incarnation_or_of_a_later_epoch_is_not_committed(world: World) -> None:
    orders = world.decided("orders", 1)
    storage = world.storage("orders")
    for forged in ({"epoch": orders.epoch - 1}, {"term": orders.term - 1}):
        storage.delete(orders.name)
        older = replace(orders, **forged)
        with pytest.raises(CorruptCheckpoint, match="names output of another owner"):
            world.open[-1].epochs.decide(older.id, EpochContents({"numbers": {}}, (), orders.committables))

    assert world.statuses(orders) == {CommitStatus.PREPARED}


def test_a_committed_epoch_with_output_of_another_job_is_not_even_asked_about(world: World) -> None:
    payments, orders = world.decided("payments", 7), world.decided("orders", 1)
    world.open[-1].epochs.commit(orders)
    world.forge(orders, committables=payments.committables)

    world.refused("orders", CorruptCheckpoint)

    assert world.statuses(payments) == {CommitStatus.PREPARED}


def changed(committables: Sequence[Committable], **changes: Json) -> tuple[Committable, ...]:
    return tuple(replace(each, payload={**each.payload, **changes}) for each in committables)


@pytest.mark.parametrize(
    "changes",
    [{"table": "accounts"}, {"schema": "pg_catalog"}, {"columns": ["text", "id"]}, {"key": ["id"]}],
    ids=lambda changes: next(iter(changes)),
)
def test_rows_for_another_table_than_the_sinks_are_not_committed(tables: World, changes: Mapping[str, Json]) -> None:
    orders = tables.decided("orders", 1)
    tables.forge(orders, committables=changed(orders.committables, **changes))

    said = tables.refused("orders", ConfigError)

    assert "no sink of the pipeline wrote" in said
    assert tables.system.rows() == []
    assert tables.statuses(orders) == {CommitStatus.PREPARED}


@pytest.mark.parametrize("field_name", ["id", "after"])
def test_staged_rows_of_another_job_under_the_own_name_are_not_committed(tables: World, field_name: str) -> None:
    """The payload names this job, and the stage of another one in the same database."""
    payments, orders = tables.decided("payments", 7), tables.decided("orders", 1)
    theirs = payments.committables[0].payload["id"]
    forged = {"id": theirs} if field_name == "id" else {"after": [theirs], "strategy": "stage"}
    tables.forge(orders, committables=changed(orders.committables, **forged))

    if field_name == "id":
        tables.refused("orders", CommittableLost)
    else:
        with suppress(KafkaEosError):  # a prepared transaction is no staging table
            tables.coordinator("orders").recovery.restore()

    assert 7 not in tables.system.rows()
    assert tables.statuses(payments) == {CommitStatus.PREPARED}
