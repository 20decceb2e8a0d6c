"""Tables of a lake with a key: a value replaces the row of its key, also when a commit is cut off or overtaken."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.transaction import AddAction
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._lake import committer as committing
from kafka_eos.connectors._lake.file_names import CONTROL, LakeCommittable
from kafka_eos.connectors._lake.lake_staging import LakeStaging, StagedPart
from kafka_eos.connectors._lake.lake_table import CommitConflict
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, PoisonRecord, Retryable
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.lakes import DeltaLake, IcebergLake, Lake, LakeJob, at, commit, permit, statuses

Row = tuple[int, str | None]


class KeyedDelta(DeltaLake):
    """With a key; a text "-" deletes."""

    def sink(self) -> DeltaSink[Any]:
        return DeltaSink(self.where, key="id", delete=lambda row: row["text"] == "-")


class KeyedIceberg(IcebergLake):
    """The same."""

    def sink(self) -> IcebergSink[Any]:
        return IcebergSink(
            "shop.rows", catalog="test", properties=self.properties, key="id", delete=lambda row: row["text"] == "-"
        )


class Appended(DeltaLake):
    """A table that is there, without a key."""

    def __init__(self, where: Path) -> None:
        self.where = where


@pytest.fixture(params=[KeyedDelta, KeyedIceberg])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    make: Callable[[Path], Lake] = request.param
    return make(tmp_path)


@pytest.fixture
def lake_job(lake: Lake) -> LakeJob:
    return LakeJob(lake)


def staged(lake_job: LakeJob, term: int, epoch: int, rows: Sequence[Row], subtask: int = 0) -> Sequence[Committable]:
    writer = lake_job.writer(term, epoch, subtask)
    values = [{"id": n, "text": text} for n, text in rows]
    writer.write(Batch(values, range(len(values)), ListOrigin("in", "list", 0, 0, values)))
    return writer.seal(at(epoch, term))()


def rows(lake: Lake) -> list[Row]:
    assert isinstance(lake, DeltaLake | IcebergLake)
    table = lake.table().to_pyarrow_table() if isinstance(lake, DeltaLake) else lake.table().scan().to_arrow()
    return sorted((row["id"], row["text"]) for row in pa.table(table).to_pylist())


def test_the_last_value_of_a_key_is_its_row_within_an_epoch_and_over_epochs(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    versions = lake.versions()

    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a"), (2, "b"), (1, "c"), (3, None), (4, "x"), (4, "-")]))
    assert rows(lake) == [(1, "c"), (2, "b"), (3, None)]
    commit(committer, at(2, 1), staged(lake_job, 1, 2, [(2, "-"), (3, "d"), (5, "e"), (9, "-")]))

    assert rows(lake) == [(1, "c"), (3, "d"), (5, "e")]
    assert lake.versions() == versions + 2


def test_rows_of_several_writers_and_of_an_epoch_that_was_given_up_are_one_version(
    lake: Lake, lake_job: LakeJob
) -> None:
    """The older rows of a writer come before its newer ones, in whatever order they are named."""
    committer = lake_job.recovered(1)
    versions = lake.versions()
    given_up = staged(lake_job, 1, 1, [(1, "old"), (2, "only here")])
    committables = [
        *staged(lake_job, 1, 2, [(1, "new")]),
        *given_up,
        *staged(lake_job, 1, 2, [(3, "other")], subtask=1),
    ]

    assert commit(committer, at(2, 1), committables) == {CommitOutcome.COMMITTED}

    assert rows(lake) == [(1, "new"), (2, "only here"), (3, "other")]
    assert lake.versions() == versions + 1
    assert statuses(committer, committables) == {CommitStatus.COMMITTED}
    assert left(lake) == set()


def left(lake: Lake) -> set[str]:
    """What is staged, and data files that no version names."""
    assert isinstance(lake, DeltaLake | IcebergLake)
    staged = {path.name for path in lake.where.rglob(f"{CONTROL}/.staged*")}
    there = {path.name for path in lake.where.rglob("part-*.parquet")}
    if isinstance(lake, IcebergLake):
        return staged | there - {path.rpartition("/")[2] for path in named_by_iceberg(lake)}
    log = "".join(path.read_text() for path in (lake.where / "_delta_log").glob("*.json"))
    return staged | {name for name in there if name not in log}


def named_by_iceberg(lake: IcebergLake) -> set[str]:
    return {*lake.table().inspect.all_files().column("file_path").to_pylist()}


def test_files_that_cannot_have_a_key_of_the_epoch_are_neither_read_nor_written(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a"), (5, "b")]))
    (far,) = (path for path in lake.where.rglob("part-*.parquet"))
    content = far.read_bytes()
    far.write_bytes(b"")

    commit(committer, at(2, 1), staged(lake_job, 1, 2, [(6, "c"), (0, "d")][:1]))

    far.write_bytes(content)
    assert rows(lake) == [(1, "a"), (5, "b"), (6, "c")]


def test_what_others_have_written_is_replaced_by_its_key_and_kept_without_one(lake: Lake, lake_job: LakeJob) -> None:
    """Also rows that are there twice; a column that only others write stays as it was in rows that stay."""
    lake.widen()
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("more", pa.string())])
    theirs = pa.table({"id": [1, 1, 2], "text": ["a", "b", "c"], "more": ["x", "y", "z"]}, columns)
    if isinstance(lake, DeltaLake):
        write_deltalake(lake.where, theirs, mode="append")
    else:
        assert isinstance(lake, IcebergLake)
        lake.table().append(theirs)

    commit(lake_job.recovered(1), at(1, 1), staged(lake_job, 1, 1, [(1, "new")]))

    table = lake.table()
    found = table.to_pyarrow_table() if isinstance(table, DeltaTable) else table.scan().to_arrow()
    assert sorted(tuple(row.values()) for row in pa.table(found).to_pylist()) == [(1, "new", None), (2, "c", "z")]


def test_texts_with_ends_of_lines_of_unicode_in_the_log_keep_nobody_from_cleaning_up(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "text": ["a\u2028b\x85c"]}))
    lake_job = LakeJob(Appended(tmp_path))
    lake_job.recovered(1)
    staged(lake_job, 1, 1, [(2, "never decided")])

    lake_job.recovered(2)

    assert left(lake_job.lake) == set()


def test_times_that_spark_has_written_in_its_old_way_are_kept(tmp_path: Path) -> None:
    """With 96 bits, of which pyarrow makes nanoseconds since 1970 in 64: those end in 2262."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("until", pa.timestamp("us", "UTC"))])
    for_ever = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
    theirs = pa.table({"id": [1, 2], "text": ["a", "b"], "until": [for_ever, for_ever]}, schema)
    write_deltalake(tmp_path, theirs)
    (file,) = tmp_path.glob("*.parquet")
    pq.write_table(theirs, file, use_deprecated_int96_timestamps=True)
    lake = Appended(tmp_path)
    patched = DeltaSink[Any](tmp_path, key="id")
    lake.sink = lambda: patched  # type: ignore[method-assign]
    lake_job = LakeJob(lake)
    committer = lake_job.recovered(1)

    values = [{"id": 2, "text": "c", "until": None}]
    writer = lake_job.writer(1, 1, 0)
    writer.write(Batch(values, range(1), ListOrigin("in", "list", 0, 0, values)))
    commit(committer, at(1, 1), writer.seal(at(1, 1))())

    found = pa.table(DeltaTable(tmp_path).to_pyarrow_table()).to_pylist()
    assert {row["id"]: row["until"] for row in found} == {1: for_ever, 2: None}


def test_a_commit_whose_answer_is_lost_is_found_and_what_it_has_written_stays(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a"), (2, "b")]))
    committables = staged(lake_job, 1, 2, [(2, "c")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "hit", cut_off_at("lake.commit.after"))
        with pytest.raises(CutOff):
            commit(committer, at(2, 1), committables)
    versions = lake.versions()

    again = lake_job.committer()
    again.register(lake_job.context(2))
    assert commit(again, at(2, 1), committables) == {CommitOutcome.ALREADY}
    assert again.abort_leftovers(lake_job.context(2)) == []

    assert lake.versions() == versions + 1  # the fence
    assert rows(lake) == [(1, "a"), (2, "c")]
    assert left(lake) == set()


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_commit_that_is_refused_and_lands_all_the_same_has_its_files(
    looks: int, lake: Lake, lake_job: LakeJob
) -> None:
    """A bucket says so (409) of a request that is sent again while the first one is still under way."""
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a"), (2, "b")]))
    committables = staged(lake_job, 1, 2, [(2, "c")])
    table: Any = committer._table
    look, change, late = table.read_state, table.commit, list[Callable[[], None]]()

    def refused(*given: Any) -> None:
        def lands() -> None:
            table._newest = newest
            change(*given)

        newest, left_before = table._newest, [look] * looks
        late.append(lands)

        def looked(of: Any) -> Any:
            if left_before:
                left_before.pop()
            elif late:
                late.pop()()
            return look(of)

        table.read_state, table.commit = looked, change
        raise CommitConflict

    table.commit = refused
    assert commit(committer, at(2, 1), committables) <= {CommitOutcome.ALREADY, CommitOutcome.COMMITTED}
    while late:
        with pytest.raises((CommitConflict, Retryable)):  # another attempt was committed: its files have gone with that
            late.pop()()

    assert rows(lake) == [(1, "a"), (2, "c")]
    assert left(lake) == set()


def test_files_of_a_commit_that_was_cut_off_go_and_another_attempt_makes_its_own(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a"), (2, "b")]))
    committables = staged(lake_job, 1, 2, [(2, "c")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "hit", cut_off_at("lake.replaced"))
        with pytest.raises(CutOff):
            commit(committer, at(2, 1), committables)
    assert len(left(lake)) > 2
    assert statuses(lake_job.committer(), committables) == {CommitStatus.PREPARED}

    again = lake_job.committer()
    again.register(lake_job.context(2))
    assert commit(again, at(2, 1), committables) == {CommitOutcome.COMMITTED}

    assert rows(lake) == [(1, "a"), (2, "c")]
    assert left(lake) == set()


def test_an_old_supervisor_that_was_frozen_in_its_commit_changes_nothing(lake: Lake, lake_job: LakeJob) -> None:
    old = lake_job.recovered(1)
    commit(old, at(1, 1), staged(lake_job, 1, 1, [(1, "a")]))
    committables = staged(lake_job, 1, 2, [(1, "b")])

    def meanwhile(point: str) -> None:
        if point == "lake.replaced":
            new = lake_job.committer()
            new.register(lake_job.context(2))
            assert commit(new, at(2, 1), committables) == {CommitOutcome.COMMITTED}
            assert commit(new, at(3, 2), staged(lake_job, 2, 3, [(1, "c")])) == {CommitOutcome.COMMITTED}

    right = permit(old, at(2, 1), committables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "hit", once(meanwhile))
        with pytest.raises(Retryable):  # the newer term has removed what it wrote
            old.commit_all(right, committables)
    with pytest.raises(CommittableLost, match="a newer term has committed"):
        old.commit_all(right, committables)

    assert rows(lake) == [(1, "c")]
    assert left(lake) == set()


def test_a_commit_whose_files_another_one_of_the_epoch_has_removed_finds_the_epoch_committed(
    lake: Lake, lake_job: LakeJob
) -> None:
    """Two processes of one term commit at once. The first to end removes what all other attempts have written."""
    committer, faster = lake_job.recovered(1), lake_job.committer()
    committables = staged(lake_job, 1, 1, [(1, "a")])
    right = permit(committer, at(1, 1), committables)
    prepare = LakeStaging.prepare

    def overtaken(staging: LakeStaging, files: Sequence[StagedPart]) -> list[dict[str, Json]]:
        patch.undo()
        assert {*faster.commit_all(right, committables)} == {CommitOutcome.COMMITTED}
        return prepare(staging, files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeStaging, "prepare", overtaken)
        assert {*committer.commit_all(right, committables)} == {CommitOutcome.ALREADY}

    assert rows(lake) == [(1, "a")]
    assert left(lake) == set()


def test_a_commit_of_others_in_between_is_met_with_another_look_at_all_rows(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a"), (2, "b")]))

    def meanwhile(point: str) -> None:
        if point == "lake.replaced":
            values = pa.table({"id": [2, 3], "text": ["theirs", "theirs"]}, lake_columns())
            if isinstance(lake, DeltaLake):
                write_deltalake(lake.where, values, mode="append")
            else:
                assert isinstance(lake, IcebergLake)
                lake.table().append(values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "hit", once(meanwhile))
        assert commit(committer, at(2, 1), staged(lake_job, 1, 2, [(2, "c")])) == {CommitOutcome.COMMITTED}

    assert rows(lake) == [(1, "a"), (2, "c"), (3, "theirs")]
    assert left(lake) == set()


def lake_columns() -> pa.Schema:
    return pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


class CutOff(Exception):
    """The process ends here."""


def cut_off_at(point: str) -> Callable[[str], None]:
    def hit(name: str) -> None:
        if name == point:
            raise CutOff

    return hit


def once(act: Callable[[str], None]) -> Callable[[str], None]:
    """Not within itself, and not at a second attempt."""
    acted: list[str] = []

    def hit(name: str) -> None:
        if name == "lake.replaced" and not acted:
            acted.append(name)
            act(name)

    return hit


def test_what_is_staged_is_listed_and_removed_under_the_name_of_the_file_that_has_its_rows(
    lake: Lake, lake_job: LakeJob
) -> None:
    committer = lake_job.recovered(1)
    commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "a")]))
    staged(lake_job, 1, 2, [(1, "b")])
    (file,) = lake.where.rglob(f"{CONTROL}/.rows*")

    (item,) = committer.list_staged(lake_job.context(1))

    assert item.name == f"{CONTROL}/{file.name}"
    assert file.stat().st_size > 0
    assert lake_job.recovered(2).list_staged(lake_job.context(2)) == []
    assert staged(lake_job, 2, 3, [(1, "c")])
    assert [name.partition("/")[0] for name in lake_job.committer().abort_leftovers(lake_job.context(3))] == [CONTROL]


def test_a_staged_file_that_is_gone_is_lost(lake: Lake, lake_job: LakeJob) -> None:
    committer = lake_job.recovered(1)
    committables = staged(lake_job, 1, 1, [(1, "a")])
    for path in lake.where.rglob(f"{CONTROL}/.rows*"):
        path.unlink()

    assert statuses(committer, committables) == {CommitStatus.LOST}


def test_a_column_that_is_of_another_type_stops_the_commit_and_nothing_is_lost(
    lake: Lake, lake_job: LakeJob, tmp_path: Path
) -> None:
    committer = lake_job.recovered(1)
    committables = staged(lake_job, 1, 1, [(5, "a")])
    lake.keep(tmp_path / "kept")
    lake.retype()

    with pytest.raises(ConfigError, match=f"{lake.retyped}. The output stays staged"):
        commit(committer, at(1, 1), committables)

    lake.put_back(tmp_path / "kept")
    assert commit(lake_job.committer(), at(1, 1), committables) == {CommitOutcome.COMMITTED}
    assert rows(lake) == [(5, "a")]


@pytest.mark.campaign
def test_many_epochs_leave_few_files_and_few_manifests(tmp_path: Path) -> None:
    """Every epoch has some of the keys: a file that it touches is written again together with its rows."""
    lake = KeyedIceberg(tmp_path)
    lake_job = LakeJob(lake)
    committer = lake_job.recovered(1)
    for epoch in range(1, 61):
        commit(committer, at(epoch, 1), staged(lake_job, 1, epoch, [(epoch % 7, str(epoch)), (epoch % 5, str(epoch))]))

    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(lake.table().io)) <= 51
    assert len(lake.table().inspect.files()) == 1
    assert len(rows(lake)) == 7


class Visit(msgspec.Struct):
    day: datetime.date
    user: str
    n: int


MONDAY, TUESDAY = datetime.date(2024, 4, 29), datetime.date(2024, 4, 30)
JOB = JobContext("orders", Term(1), {})


def visits(where: Path, sink: DeltaSink[Visit], epoch: int, *found: Visit) -> list[tuple[datetime.date, str, int]]:
    writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(epoch)))
    writer.write(Batch(found, range(len(found)), ListOrigin("in", "list", 0, 0, found)))
    committables = writer.seal(at(epoch, 1))()
    assert commit(sink.committer(JOB), at(epoch, 1), committables) == {CommitOutcome.COMMITTED}  # type: ignore[arg-type]
    return sorted((row["day"], row["user"], row["n"]) for row in DeltaTable(where).to_pyarrow_table().to_pylist())


@pytest.mark.parametrize("user", ["u", "a/b=c%20 d ü ;,'\"#*"])
def test_a_row_whose_partition_is_another_one_now_leaves_the_old_one(tmp_path: Path, user: str) -> None:
    where = tmp_path / "visits"
    sink = DeltaSink(where, value=Visit, create=True, partition_by=["day", "user"], key=["user"])
    assert sink.check(JOB) == []

    visits(where, sink, 1, Visit(MONDAY, user, 1), Visit(MONDAY, "v", 1))
    found = visits(where, sink, 2, Visit(MONDAY, user, 2), Visit(TUESDAY, user, 3))

    assert found == [(MONDAY, "v", 1), (TUESDAY, user, 3)]


def test_rows_are_added_and_replaced_in_one_epoch_by_two_sinks(tmp_path: Path) -> None:
    lake = KeyedDelta(tmp_path)
    lake_job = LakeJob(lake)
    committer = lake_job.recovered(1)
    keyed = staged(lake_job, 1, 1, [(1, "a")])
    appended = LakeJob(Appended(lake.where), lake_job.identity).prepared(1, 1, [1, 8], subtask=1)

    assert commit(committer, at(1, 1), [*keyed, *appended]) == {CommitOutcome.COMMITTED}

    assert rows(lake) == [(1, "1"), (1, "a"), (8, "8")]


def test_a_row_without_a_value_in_its_key_or_in_a_column_that_must_have_one_is_refused(
    lake: Lake, lake_job: LakeJob
) -> None:
    lake_job.recovered(1)
    with pytest.raises(PoisonRecord, match="column 'id': it may not be null"):
        staged(lake_job, 1, 1, [(None, "a")])  # type: ignore[list-item]
    writer, values = lake_job.writer(1, 1), [{"id": 1, "text": "a", "other": 1}]
    writer, values = lake_job.writer(1, 1), [{"id": 1, "text": "a", "other": 1}]
    with pytest.raises(PoisonRecord, match="no column for other"):
        writer.write(Batch(values, range(1), ListOrigin("in", "list", 0, 0, values)))


def test_a_deletion_needs_its_key_alone(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("must", pa.string(), nullable=False)])
    DeltaTable.create(tmp_path / "t", columns)
    sink = DeltaSink[Any](tmp_path / "t", key="id", delete=lambda row: row["must"] is None)
    writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    values = [{"id": 1, "must": "a"}, {"id": 2, "must": "b"}, {"id": 1, "must": None}]
    writer.write(Batch(values, range(3), ListOrigin("in", "list", 0, 0, values)))
    commit(sink.committer(JOB), at(1, 1), writer.seal(at(1, 1))())  # type: ignore[arg-type]

    assert DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist() == [{"id": 2, "must": "b"}]


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ({"delta.appendOnly": "true"}, "it accepts appends only"),
        ({"delta.enableChangeDataFeed": "true"}, "it has a change data feed"),
        ({}, "it may have deletion vectors"),
    ],
)
def test_a_table_whose_files_cannot_be_written_again_is_refused_at_the_start(
    tmp_path: Path, configuration: dict[str, str], why: str
) -> None:
    DeltaTable.create(tmp_path / "t", lake_columns(), configuration=configuration)
    if not configuration:
        DeltaTable(tmp_path / "t").alter.add_feature(TableFeatures.DeletionVectors, True)

    assert DeltaSink[Any](tmp_path / "t").check(JOB) == []
    with pytest.raises(ConfigError, match=why):
        DeltaSink[Any](tmp_path / "t", key="id").check(JOB)


def test_a_table_with_a_file_that_pyiceberg_does_not_read_is_refused_at_the_start(tmp_path: Path) -> None:
    lake = KeyedIceberg(tmp_path)
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=f"file://{lake.where}/data/other.avro", file_format=FileFormat.AVRO,
        partition=Record(), record_count=1, file_size_in_bytes=100, spec_id=0,
    )  # fmt: skip
    with lake.table().transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)

    assert IcebergLake.sink(lake).check(JOB) == []
    with pytest.raises(ConfigError, match=r"other\.avro is in AVRO, .* Rewrite it as Parquet"):
        lake.sink().check(JOB)


def test_keys_that_tell_no_row_are_refused(tmp_path: Path) -> None:
    columns = pa.schema([("x", pa.float64()), ("kafka_eos_deleted", pa.bool_())])
    DeltaTable.create(tmp_path / "t", lake_columns())
    DeltaTable.create(tmp_path / "floats", columns.remove(1))
    DeltaTable.create(tmp_path / "own", columns)

    for sink, why in (
        (lambda: DeltaSink[Any](tmp_path / "t", key=["id", "id"]), "a column is named twice"),
        (lambda: DeltaSink[Any](tmp_path / "t", delete=bool), "delete=… needs key="),
        (lambda: DeltaSink[Any](tmp_path / "t", key="user").check(JOB), "user is not a column of the sink"),
        (
            lambda: DeltaSink[Any](tmp_path / "floats", key="x").check(JOB),
            "x is double in .*; a key column must hold bools",
        ),
        (lambda: DeltaSink[Any](tmp_path / "own", key="x").check(JOB), "the sink's own name"),
    ):
        with pytest.raises(ConfigError, match=why):
            sink()


def test_a_committable_with_a_key_is_read_back_and_none_that_was_altered(lake: Lake, lake_job: LakeJob) -> None:
    lake_job.recovered(1)
    (committable,) = staged(lake_job, 1, 1, [(1, "a")])
    staged_file = LakeCommittable.read(committable.payload)

    assert staged_file.key == ("id",)
    assert staged_file.payload() == committable.payload
    for wrong in ({"key": [1]}, {"key": "id"}, {"version": 2}, {"partition": "a=b"}, {"staged": "../x"}):
        with pytest.raises(CorruptCheckpoint):
            LakeCommittable.read({**committable.payload, **wrong})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["at", "kafka_eos_at", "key0", ".x", "[x]"])
def test_a_key_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Arrow takes some names for a path to a field within a column."""
    DeltaTable.create(tmp_path, pa.schema([(name, pa.string()), ("n", pa.int64())]))
    sink = DeltaSink[Any](tmp_path, key=name)
    for epoch in (1, 2):
        writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(epoch)))
        values = [{name: "u", "n": n} for n in (epoch, epoch * 10)]
        writer.write(Batch(values, range(2), ListOrigin("in", "list", 0, 0, values)))
        commit(sink.committer(JOB), at(epoch, 1), writer.seal(at(epoch, 1))())  # type: ignore[arg-type]

    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{name: "u", "n": 20}]


def test_a_key_that_was_an_int_when_files_were_written_is_found_as_a_long(tmp_path: Path) -> None:
    lake = KeyedIceberg(tmp_path)
    lake.catalog().drop_table("shop.rows")
    lake.catalog().create_table("shop.rows", pa.schema([("id", pa.int32()), ("text", pa.string())]))
    table = lake.table()
    table.append(pa.table({"id": pa.array([1, 7], pa.int32()), "text": ["a", "b"]}))
    with table.update_schema() as change:
        change.update_column("id", LongType())
    lake_job = LakeJob(lake)

    assert commit(lake_job.recovered(1), at(1, 1), staged(lake_job, 1, 1, [(7, "c")])) == {CommitOutcome.COMMITTED}

    assert rows(lake) == [(1, "a"), (7, "c")]


HARD = ["\U00020bb7\u91ce", "\U0010ffff" * 40, "\ud7ff" * 20, "\U0001f600" * 33, "x" * 300, "", "a\x00b"]
"""Characters that JSON escapes twice, and texts that are cut where their last character cannot be raised by one."""


def put(sink: Any, epoch: int, text: str) -> None:
    writer = sink.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(epoch)))
    values = [{"id": epoch, "text": text}]
    writer.write(Batch(values, range(1), ListOrigin("in", "list", 0, 0, values)))
    commit(sink.committer(JOB), at(epoch, 1), writer.seal(at(epoch, 1))())


@pytest.mark.parametrize("kind", [DeltaLake, IcebergLake])
def test_any_text_may_be_a_key_and_is_found_again(kind: Callable[[Path], Lake], tmp_path: Path) -> None:
    lake = kind(tmp_path)
    sink: Any = DeltaSink(lake.where, key="text")
    if isinstance(lake, IcebergLake):
        sink = IcebergSink("shop.rows", catalog="test", properties=lake.properties, key="text")

    for epoch, text in enumerate([*HARD, *HARD], 1):
        put(sink, epoch, text)

    assert [text for _, text in rows(lake)] == HARD


def test_bounds_that_another_writer_has_escaped_hide_no_row(tmp_path: Path) -> None:
    """deltalake reads some characters behind U+FFFF, as JSON escapes them, as others."""
    lake, text = DeltaLake(tmp_path), HARD[0]
    pq.write_table(pa.table({"id": [0], "text": [text]}), lake.where / "others.parquet")
    told = json.dumps({"numRecords": 1, "minValues": {"text": text}, "maxValues": {"text": text}})
    added = AddAction("others.parquet", (lake.where / "others.parquet").stat().st_size, {}, 0, True, told)
    lake.table().create_write_transaction([added], "append", lake.table().schema())

    put(DeltaSink[Any](lake.where, key="text"), 1, text)

    assert rows(lake) == [(1, text)]
