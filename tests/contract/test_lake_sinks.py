"""Lake sinks beyond the contract of every sink: traps of a log that others write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.file_names import CONTROL
from kafka_eos.connectors._lake.lake_table import CommitConflict, CommitMetadata, DataFile, LakeIncarnation
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.core.errors import Bug, CommittableLost, ConfigError, CorruptCheckpoint, Fenced
from kafka_eos.core.ids import Term
from tests.contract.lakes import DeltaLake, IcebergLake, Lake, LakeJob, RestLake, at, commit, permit, statuses
from tests.marks import campaign


@pytest.fixture(params=[DeltaLake, IcebergLake, campaign(RestLake)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    make: Callable[[Path], Lake] = request.param
    made = make(tmp_path)
    with made.server.serving() if isinstance(made, RestLake) else nullcontext():
        yield made


@pytest.fixture
def lake_job(lake: Lake) -> LakeJob:
    return LakeJob(lake)


def data_files(lake: Lake) -> set[str]:
    return {path.name for path in lake.where.rglob("part-*.parquet")}


def notes(lake: Lake) -> set[str]:
    return {path.name for path in lake.where.rglob(f"{CONTROL}/.staged*")}


def test_all_that_writers_have_staged_for_an_epoch_is_one_commit(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    versions = lake.versions()
    committables = [*lake_job.prepared(1, 1, [1, 2]), *lake_job.prepared(1, 1, [3], subtask=1)]

    assert commit(committer, at(1, 1), committables) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [1, 2, 3]
    assert lake.versions() == versions + 1
    assert notes(lake) == set()


@pytest.fixture
def synced(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced from now on, below the place of the table."""
    found: list[str] = []

    def fsync(fd: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{fd}").removeprefix(f"{lake.where}/"))

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.mark.parametrize("lake", [DeltaLake], indirect=True)
def test_a_commit_of_a_delta_table_is_on_the_disk_when_it_is_answered(
    lake: Lake, lake_job: LakeJob, synced: list[str]
) -> None:
    """The file that it names before it, its entry in the log and the checkpoint that the log may get after it."""
    committer = lake_job.recovered(1)
    synced.clear()
    committables = lake_job.prepared(1, 1, [1])
    assert synced[-2:] == [*data_files(lake), str(lake.where)]
    synced.clear()

    commit(committer, at(1, 1), committables)

    assert synced[0] == f"_delta_log/{lake.versions() - 1:020}.json"
    assert synced[1:3] == ["_delta_log", str(lake.where)]
    DeltaTable(lake.where).create_checkpoint()
    lake_job.committer()._table.make_durable()
    assert {"_delta_log/_last_checkpoint", f"_delta_log/{lake.versions() - 1:020}.checkpoint.parquet"} <= {*synced}


def test_entries_of_a_delta_log_go_when_the_checkpoint_that_has_them_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = DeltaLake(tmp_path)
    settings = {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "4"}
    lake.table().alter.set_table_properties(settings)
    lake_job, log, real = LakeJob(lake), lake.where / "_delta_log", os.fsync
    committer = lake_job.recovered(1)
    there: list[set[str]] = []

    def fsync(fd: int) -> None:
        if ".checkpoint" in os.readlink(f"/proc/self/fd/{fd}"):
            there.append({path.name for path in log.glob("*.json")})
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    commit(committer, at(1, 1), lake_job.prepared(1, 1, [1]))

    entries = {f"{version:020}.json" for version in range(lake.versions())}
    assert there == [entries]
    assert len([*log.glob("*.json")]) < len(entries)
    assert lake.rows() == [1]
    lake.table().alter.set_table_properties({"delta.enableExpiredLogCleanup": "false"})
    for epoch in range(2, 6):
        commit(committer, at(epoch, 1), lake_job.prepared(1, epoch, [epoch]))
    assert len(there) > 1
    assert {path.name for path in log.glob("*.json")} >= {
        f"{version:020}.json" for version in range(len(entries), lake.versions())
    }


@pytest.mark.parametrize("lake", [IcebergLake], indirect=True)
def test_a_catalog_hears_of_an_iceberg_table_s_files_when_they_are_on_the_disk(
    lake: IcebergLake, lake_job: LakeJob, synced: list[str]
) -> None:
    committer = lake_job.recovered(1)
    synced.clear()
    committables = lake_job.prepared(1, 1, [1])
    (name,) = data_files(lake)
    assert synced[-2:] == [f"data/{name}", "data"]
    synced.clear()

    commit(committer, at(1, 1), committables)

    table = lake.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    named = [manifest.manifest_path, snapshot.manifest_list, table.metadata_location]
    files = [path.removeprefix(f"file://{lake.where}/") for path in named]
    assert synced[:6] == [each for file in files for each in (file, "metadata")]


def test_a_committable_alone_is_not_committed(lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    (committable,) = lake_job.prepared(1, 1, [1])

    with pytest.raises(Bug, match="commits all of epoch 1/1 at once"):
        committer.commit(permit(committer, at(1, 1), [committable]), committable)


def test_what_was_committed_is_known_when_others_have_compacted_and_forgotten_everything(
    lake: Lake, lake_job: LakeJob
) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1, 2])
    right = permit(committer, at(1, 1), committables)
    committer.commit_all(right, committables)
    lake.compact_and_forget()

    again = lake_job.recovered(2)

    assert statuses(again, committables) == {CommitStatus.COMMITTED}
    assert {*again.commit_all(right, committables)} == {CommitOutcome.ALREADY}
    assert lake.rows() == [1, 2]
    assert commit(again, at(2, 2), lake_job.prepared(2, 2, [3])) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [1, 2, 3]


def test_a_commit_on_its_way_when_a_newer_term_begins_never_lands(lake: Lake, lake_job: LakeJob) -> None:
    """The old supervisor was frozen between its look at the log and its commit."""
    old = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1, 2])
    right, table = permit(old, at(1, 1), committables), old._table
    orders = LakeIncarnation("orders", lake_job.identity)
    seen = table.read_state(orders)
    (staged_file,) = (names.LakeCommittable.read(each.payload) for each in committables)
    new = lake_job.committer()
    new.register(lake_job.context(2))

    with pytest.raises(CommitConflict):
        table.commit(seen, orders, CommitMetadata(1, at(1, 1)), [DataFile(staged_file.file, staged_file.size, 2)])
    new.abort_leftovers(lake_job.context(2))
    with pytest.raises((Fenced, CommittableLost)):
        old.commit_all(right, committables)
    assert lake.rows() == []
    assert data_files(lake) == set()


def test_an_old_supervisor_that_looks_again_finds_the_newer_term(lake: Lake, lake_job: LakeJob) -> None:
    old = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1, 2])
    right = permit(old, at(1, 1), committables)
    lake_job.committer().register(lake_job.context(2))

    with pytest.raises(Fenced, match="term 2 of job 'orders' writes to .*; this is term 1"):
        old.commit_all(right, committables)
    with pytest.raises(Fenced):
        old.register(lake_job.context(1))
    assert lake.rows() == []


def test_a_newer_term_finishes_what_an_older_one_has_decided(lake: Lake, lake_job: LakeJob) -> None:
    old = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1, 2])
    right = permit(old, at(1, 1), committables)
    new = lake_job.committer()
    new.register(lake_job.context(2))

    assert {*new.commit_all(right, committables)} == {CommitOutcome.COMMITTED}
    assert new.abort_leftovers(lake_job.context(2)) == []
    assert lake.rows() == [1, 2]


def test_a_number_that_comes_again_after_going_back_is_another_epoch(lake: Lake, lake_job: LakeJob) -> None:
    old = lake_job.recovered(1)
    first = lake_job.prepared(1, 1, [1])
    commit(old, at(1, 1), first)
    lost = lake_job.prepared(1, 2, [2])
    new = lake_job.recovered(2)
    assert statuses(new, lost) == {CommitStatus.LOST}

    again = lake_job.prepared(2, 2, [2])
    assert commit(new, at(2, 2), again) == {CommitOutcome.COMMITTED}

    assert statuses(new, again) == {CommitStatus.COMMITTED}
    assert statuses(new, lost) == {CommitStatus.UNKNOWN}
    assert lake.rows() == [1, 2]


def test_an_epoch_that_was_given_up_goes_with_the_next_one(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    writer = lake_job.writer(1, 1)
    committables = [*lake_job.sealed(writer, 1, 1, [1]), *lake_job.sealed(writer, 1, 2, [2])]

    assert commit(committer, at(2, 1), committables) == {CommitOutcome.COMMITTED}
    assert statuses(committer, committables) == {CommitStatus.COMMITTED}
    assert lake.rows() == [1, 2]


def test_commits_of_others_in_between_are_met_with_another_look(lake: Lake, lake_job: LakeJob) -> None:
    """Neither is lost, whoever was first."""
    committer, other = lake_job.recovered(1), LakeJob(lake)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(committer, at(1, 1), committables)
    lake.others_append()
    commit(other.recovered(1), at(1, 1), other.prepared(1, 1, [7]))

    assert {*committer.commit_all(right, committables)} == {CommitOutcome.COMMITTED}
    assert lake.rows() == [1, 7]


def test_a_table_in_place_of_the_old_one_stops_the_job_until_that_is_back(
    lake: Lake, lake_job: LakeJob, tmp_path: Path
) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    kept = tmp_path / "kept"
    lake.keep(kept)
    lake.replace()

    (probe,) = lake_job.committer().probe_all(committables)
    assert probe.status is CommitStatus.UNKNOWN
    assert "the table was dropped or replaced. Restore the old one" in probe.detail

    lake.put_back(kept)
    assert commit(committer, at(1, 1), committables) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [1]


def test_a_log_that_knows_nothing_of_the_incarnation_tells_nothing(
    lake: Lake, lake_job: LakeJob, tmp_path: Path
) -> None:
    """A backup from before the job's first start was put back: it may have had the commit.

    The next start leaves its fence before it asks, which does not make up for what is gone.
    """
    older = tmp_path / "older"
    lake.keep(older)
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    commit(committer, at(1, 1), committables)
    lake.put_back(older)

    for asked in (lake_job.committer, lambda: lake_job.recovered(2), lambda: lake_job.recovered(3)):
        (probe,) = asked().probe_all(committables)

        assert probe.status is CommitStatus.UNKNOWN
        assert "has no entry of this job" in probe.detail
    assert statuses(lake_job.committer(), lake_job.prepared(3, 2, [2])) == {CommitStatus.PREPARED}


def test_a_staged_file_that_a_clean_up_has_taken_is_lost_and_not_committed(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(committer, at(1, 1), committables)
    for name in data_files(lake):
        (path,) = lake.where.rglob(name)
        path.unlink()

    assert statuses(committer, committables) == {CommitStatus.LOST}
    with pytest.raises(CommittableLost, match="no commit of .* names it"):
        committer.commit_all(right, committables)
    assert lake.rows() == []


def test_an_incarnation_that_was_taken_over_commits_nothing_any_more(lake: Lake, lake_job: LakeJob) -> None:
    old, heir = lake_job.recovered(1), LakeJob(lake)
    committables = lake_job.prepared(1, 1, [1])
    right = permit(old, at(1, 1), committables)
    orders = LakeIncarnation("orders", lake_job.identity)
    seen = old._table.read_state(orders)

    new = heir.recovered(1)
    signs = {sign.identity: sign.state for sign in new.list_incarnations(heir.context(1))}
    assert signs == {lake_job.identity: IncarnationState.OPEN, heir.identity: IncarnationState.ENDED}
    assert len(new.retire(heir.context(1), lake_job.identity)) == 1
    versions = lake.versions()
    assert new.retire(heir.context(1), lake_job.identity) == []
    assert lake.versions() == versions, "it is ended once"

    with pytest.raises(CommitConflict):
        old._table.commit(seen, orders, CommitMetadata(1, at(1, 1)))
    with pytest.raises((Fenced, CommittableLost)):
        old.commit_all(right, committables)
    with pytest.raises(Fenced, match="took over"):
        lake_job.committer().register(lake_job.context(2))
    signs = {sign.identity: sign.state for sign in new.list_incarnations(heir.context(1))}
    assert signs == {lake_job.identity: IncarnationState.OVER, heir.identity: IncarnationState.ENDED}
    assert lake.rows() == []
    assert data_files(lake) == notes(lake) == set()


def test_a_term_leaves_its_fence_once(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(3)
    versions = lake.versions()

    committer.register(lake_job.context(3))

    assert lake.versions() == versions


def test_orphans_go_and_what_a_commit_names_stays(lake: Lake, lake_job: LakeJob) -> None:
    """Also when the process died after the commit and before it could remove the note."""
    old = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    commit(old, at(1, 1), committables)
    kept = data_files(lake)
    (committed,) = (names.LakeCommittable.read(each.payload) for each in committables)
    old._table.store().create(names.build_entry_name(committed.part))
    open_ = lake_job.writer(1, 2)
    lake_job.prepared(1, 2, [2], subtask=1)

    removed = lake_job.recovered(2).abort_leftovers(lake_job.context(3))

    assert data_files(lake) == kept
    assert notes(lake) == set()
    assert removed == []  # the recovery itself had removed them
    assert lake.rows() == [1]
    open_.discard()


def test_what_an_older_version_names_stays_when_others_have_removed_it_from_the_newest(
    lake: Lake, lake_job: LakeJob
) -> None:
    """The process died after the commit, with its note there; before the next start others deleted the rows."""
    committables = lake_job.prepared(1, 1, [1])
    commit(lake_job.recovered(1), at(1, 1), committables)
    (committed,) = (names.LakeCommittable.read(each.payload) for each in committables)
    lake_job.committer()._table.store().create(names.build_entry_name(committed.part))
    lake.others_delete()

    lake_job.recovered(2)

    assert lake.rows() == []
    assert data_files(lake) == {committed.file}
    assert notes(lake) == set()


def test_what_a_task_that_died_has_staged_of_an_epoch_that_was_committed_goes_too(
    lake: Lake, lake_job: LakeJob
) -> None:
    """Another attempt of the task has staged the same rows, and those were committed."""
    committer = lake_job.recovered(1)
    died = lake_job.writer(1, 1, subtask=1)
    died.write(_batch())
    committables = lake_job.prepared(1, 1, [1])
    commit(committer, at(1, 1), committables)
    assert len(data_files(lake)) == 2

    lake_job.recovered(2)

    (committed,) = (names.LakeCommittable.read(each.payload).file for each in committables)
    assert data_files(lake) == {committed}
    assert notes(lake) == set()
    assert lake.rows() == [1]
    died.discard()


def test_a_writer_that_finds_its_note_gone_leaves_no_file(lake: Lake, lake_job: LakeJob) -> None:
    lake_job.recovered(1)
    zombie = lake_job.writer(1, 1)
    zombie.write(_batch())
    lake_job.recovered(2)

    with pytest.raises(Fenced, match=r"does not exist: a newer term of job 'orders' removed it"):
        zombie.seal(at(1, 1))()

    assert data_files(lake) == notes(lake) == set()


def _batch():  # type: ignore[no-untyped-def]
    from kafka_eos.core.records import Batch
    from kafka_eos.testing.list_source import ListOrigin

    values = [{"id": 1, "text": "1"}]
    return Batch(values, range(1), ListOrigin("in", "list", 0, 0, values))


def test_a_new_column_that_may_be_null_changes_nothing(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [1])
    lake.widen()

    assert commit(committer, at(1, 1), committables) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [1]


def test_a_column_of_another_type_stops_the_commit_and_nothing_is_lost(
    lake: Lake, lake_job: LakeJob, tmp_path: Path
) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [5])
    right = permit(committer, at(1, 1), committables)
    kept = tmp_path / "kept"
    lake.keep(kept)
    lake.retype()

    with pytest.raises(ConfigError, match=f"{lake.retyped}. The output stays staged"):
        committer.commit_all(right, committables)

    lake.put_back(kept)
    assert {*lake_job.committer().commit_all(right, committables)} == {CommitOutcome.COMMITTED}
    assert lake.rows() == [5]


def test_a_table_that_asks_more_of_files_than_when_they_were_staged_stops_the_commit(
    lake: Lake, lake_job: LakeJob
) -> None:
    committer = lake_job.recovered(1)
    committables = lake_job.prepared(1, 1, [5])
    lake.forbid()

    with pytest.raises(ConfigError, match="cannot write to .*constraints|partitioned by id now, and was by nothing"):
        commit(committer, at(1, 1), committables)
    assert lake.rows() == []


@pytest.mark.parametrize(
    "change", [{"staged": "../x"}, {"staged": ".open.orders.1.1.0.out"}, {"size": True}, {"more": 1}]
)
def test_a_payload_from_elsewhere_is_refused(lake_job: LakeJob, change: dict[str, object]) -> None:
    committer = lake_job.recovered(1)
    (committable,) = lake_job.prepared(1, 1, [1])
    forged: Committable = replace(committable, payload={**committable.payload, **change})  # type: ignore[dict-item]

    with pytest.raises(CorruptCheckpoint, match="not a committable of a lake table"):
        committer.probe(forged)


def test_a_place_that_cannot_be_a_table_is_refused_with_the_sink(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for given, why in (("", "does not name a table"), ("gs://bucket/sales", "in s3://bucket/prefix, not in gs://")):
        with pytest.raises(ConfigError, match=why):
            DeltaSink(given)
    for name, why in (
        ("file", "is a file: name the table's directory"),
        ("nothing", "no Delta table at .*create=True"),
    ):
        with pytest.raises(ConfigError, match=why):
            DeltaSink(tmp_path / name).check(JobContext("orders", Term(1), {}))


class Order(msgspec.Struct):
    user: str
    amount: int


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"user": pa.int64()}, "no column amount .*; its column user is an integer .*, and the field is a text"),
        ({"user": pa.string(), "amount": pa.int64(), "x": None}, "its column x may not be null, and no field"),
    ],
)
def test_a_table_that_rows_do_not_fit_into_is_refused(
    tmp_path: Path, columns: dict[str, pa.DataType | None], why: str
) -> None:
    fields = [pa.field(name, tp or pa.string(), nullable=tp is not None) for name, tp in columns.items()]
    DeltaTable.create(tmp_path, pa.schema(fields))

    with pytest.raises(ConfigError, match=why):
        DeltaSink(tmp_path, value=Order).check(JobContext("orders", Term(1), {}))


class Priced(msgspec.Struct):
    user: str
    price: Decimal


def test_a_field_without_a_counterpart_leaves_the_others_compared(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "a", pa.schema([("user", pa.int64()), ("price", pa.decimal128(10, 2))]))

    with pytest.raises(ConfigError, match="its column user is an integer .*, and the field is a text"):
        DeltaSink(tmp_path / "a", value=Priced).check(JobContext("orders", Term(1), {}))
    with pytest.raises(
        ConfigError, match="Priced.price: Decimal has no single counterpart .*; create the table yourself"
    ):
        DeltaSink(tmp_path / "b", value=Priced, create=True).check(JobContext("orders", Term(1), {}))


def test_a_table_with_constraints_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([("user", pa.string()), ("amount", pa.int64())]))
    DeltaTable(tmp_path).alter.add_constraint({"some": "amount > 0"})

    with pytest.raises(ConfigError, match=r"it has constraints, .*: drop delta\.constraints\.some"):
        DeltaSink(tmp_path, value=Order).check(JobContext("orders", Term(1), {}))
