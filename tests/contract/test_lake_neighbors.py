"""Several jobs, incarnations and epochs stage files for one table; commits and cleanups touch only their own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._lake import committer as committing
from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.committer import LakeCommitter
from kafka_eos.core.errors import Bug, CommittableLost
from kafka_eos.core.ids import EpochId, Term
from tests.contract.lakes import COLUMNS, DeltaLake, LakeJob, at, commit, permit, statuses
from tests.contract.test_lake_concurrent_commits import Other
from tests.contract.test_lake_upserts import CutOff, KeyedDelta, cut_off_at, left, once, rows, staged

OF_OTHERS = pa.table({"id": [8], "text": ["of others"]}, COLUMNS)


class Nameless(LakeJob):
    """Of a job without an identity."""

    def context(self, term: int) -> JobContext:
        return JobContext("orders", Term(term), {})


class OtherNameless(LakeJob):
    """The same, of another job."""

    def context(self, term: int) -> JobContext:
        return JobContext("orders-2", Term(term), {})


@pytest.fixture
def lake(tmp_path: Path) -> KeyedDelta:
    return KeyedDelta(tmp_path)


def cut_off(committer: LakeCommitter, epoch: EpochId, committables: list[Committable]) -> None:
    """A commit that ends when its files are written and not named yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "hit", cut_off_at("lake.replaced"))
        with pytest.raises(CutOff):
            commit(committer, epoch, committables)


def test_a_commit_removes_what_other_attempts_at_it_have_written_and_nothing_else(lake: KeyedDelta) -> None:
    """Another incarnation left files of an epoch of the same number, and its own left files of the next epoch."""
    lake_job, another = LakeJob(lake), LakeJob(lake)
    committer = lake_job.recovered(1)
    cut_off(another.recovered(1), at(1, 1), [*staged(another, 1, 1, [(9, "theirs")])])
    first, second = [*staged(lake_job, 1, 1, [(1, "a")])], [*staged(lake_job, 1, 2, [(1, "b")])]
    cut_off(committer, at(2, 1), second)
    staged(lake_job, 1, 1, [(7, "of an attempt of a task that died")], subtask=1)
    kept = left(lake) - {names.LakeCommittable.read(first[0].payload).part.staged}
    cut_off(committer, at(1, 1), first)

    assert commit(committer, at(1, 1), first) == {CommitOutcome.COMMITTED}

    assert len(kept) == 7, "two files of each commit that was cut off, what it had read, and what died"
    assert left(lake) == kept
    assert rows(lake) == [(1, "a")]


def test_a_commit_that_meets_another_one_removes_its_own_files_alone(lake: KeyedDelta) -> None:
    lake_job, other = LakeJob(lake), Other(lake)
    committer, theirs = lake_job.recovered(1), [*staged(other, 1, 1, [(9, "theirs")])]
    cut_off(other.recovered(1), at(1, 1), theirs)
    assert commit(committer, at(1, 1), staged(lake_job, 1, 1, [(1, "old")])) == {CommitOutcome.COMMITTED}
    next_one = [*staged(lake_job, 1, 3, [(2, "next")])]
    kept = left(lake)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "hit", once(lambda _: write_deltalake(lake.where, OF_OTHERS, mode="append")))
        assert commit(committer, at(2, 1), staged(lake_job, 1, 2, [(1, "a")])) == {CommitOutcome.COMMITTED}

    assert left(lake) == kept
    assert commit(committer, at(3, 1), next_one) == {CommitOutcome.COMMITTED}
    assert commit(other.committer(), at(1, 1), theirs) == {CommitOutcome.COMMITTED}
    assert rows(lake) == [(1, "a"), (2, "next"), (8, "of others"), (9, "theirs")]


def test_a_recovery_removes_what_older_terms_of_its_own_incarnation_have_staged(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake_job, another, other = LakeJob(lake), LakeJob(lake), Other(lake)
    lake_job.recovered(1)
    lake_job.recovered(2)
    another.recovered(1)
    other.recovered(1)
    old, current = lake_job.prepared(1, 1, [1]), lake_job.prepared(2, 2, [2])
    foreign = [another.prepared(1, 1, [3]), other.prepared(1, 1, [4])]

    (removed,) = lake_job.committer().abort_leftovers(lake_job.context(2))

    assert removed == names.LakeCommittable.read(old[0].payload).file
    for each, made in ((lake_job, current), (another, foreign[0]), (other, foreign[1])):
        committer = each.committer()
        assert statuses(committer, made) == {CommitStatus.PREPARED}
        epoch = names.LakeCommittable.read(made[0].payload).part.epoch
        assert commit(committer, epoch, made) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [2, 3, 4]


def test_what_is_staged_is_listed_by_job_and_an_incarnation_by_its_newest_term(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake_job, another, other = LakeJob(lake), LakeJob(lake), Other(lake)
    for each in (lake_job, another, other):
        each.recovered(1)
    made = [lake_job.prepared(2, 3, [1]), lake_job.prepared(1, 1, [2]), another.prepared(1, 1, [3])]
    commit(lake_job.committer(), at(1, 1), made[1])
    other.prepared(1, 1, [4])
    committer = lake_job.committer()

    listed = committer.list_staged(lake_job.context(1))
    signs = {sign.identity: (sign.term, sign.committed) for sign in committer.list_incarnations(lake_job.context(1))}

    assert {(item.name, item.identity, item.term) for item in listed} == {
        (
            names.LakeCommittable.read(each.payload).file,
            of.identity,
            names.LakeCommittable.read(each.payload).part.epoch.term,
        )
        for (each,), of in ((made[0], lake_job), (made[2], another))
    }
    assert signs == {lake_job.identity: (at(3, 2).term, at(1, 1).epoch), another.identity: (at(1, 1).term, None)}


def test_an_incarnation_of_which_several_terms_have_something_staged_is_told_by_the_newest(tmp_path: Path) -> None:
    lake_job = LakeJob(DeltaLake(tmp_path))
    lake_job.recovered(1)
    for term in (2, 3, 1):
        lake_job.prepared(term, term, [term])

    (sign,) = lake_job.committer().list_incarnations(lake_job.context(1))

    assert sign.term == at(3, 3).term


def test_an_incarnation_that_is_taken_over_leaves_others_theirs(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake_job, another, other = LakeJob(lake), LakeJob(lake), Other(lake)
    for each in (lake_job, another, other):
        each.recovered(1)
    (gone,), kept, foreign = lake_job.prepared(1, 1, [1]), another.prepared(1, 1, [2]), other.prepared(1, 1, [3])

    removed = another.committer().retire(another.context(1), lake_job.identity)

    assert removed == [names.LakeCommittable.read(gone.payload).file]
    assert commit(another.committer(), at(1, 1), kept) == {CommitOutcome.COMMITTED}
    assert commit(other.committer(), at(1, 1), foreign) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [2, 3]


def test_a_permit_of_an_older_epoch_commits_no_part_of_a_later_one(tmp_path: Path) -> None:
    lake_job = LakeJob(DeltaLake(tmp_path))
    committer = lake_job.recovered(1)
    older, later = lake_job.prepared(1, 1, [1]), lake_job.prepared(1, 2, [2])
    right = permit(committer, at(1, 1), older)

    for made in ([*later, *older, *older], [*older, *later, *older], [*older, *older, *later]):
        with pytest.raises(Bug, match="a permit for epoch 1/1 cannot commit"):
            committer.commit_all(right, made)

    assert lake_job.lake.rows() == []


def test_an_epoch_of_which_a_file_is_lost_is_not_committed_in_part(tmp_path: Path) -> None:
    lake_job = LakeJob(DeltaLake(tmp_path))
    committer = lake_job.recovered(1)
    made = [lake_job.prepared(1, 1, [n], subtask=n)[0] for n in range(2)]
    right, file = permit(committer, at(1, 1), made), names.LakeCommittable.read(made[0].payload).file
    (lake_job.lake.where / file).unlink()

    for order in (made, made[::-1]):
        with pytest.raises(CommittableLost, match=f"epoch 1/1: {file} was removed"):
            committer.commit_all(right, order)

    assert lake_job.lake.rows() == []


def test_a_job_without_an_identity_ends_its_own_and_not_that_of_another_one(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    job, other = Nameless(lake), OtherNameless(lake)
    (aborted,), foreign = job.prepared(1, 1, [1]), other.prepared(1, 1, [2])
    committer = job.committer()

    assert committer.abort_leftovers(job.context(2)) == [names.LakeCommittable.read(aborted.payload).file]
    (retired,) = job.prepared(2, 1, [3])
    assert committer.retire(job.context(3), None) == [names.LakeCommittable.read(retired.payload).file]

    assert commit(other.committer(), at(1, 1), foreign) == {CommitOutcome.COMMITTED}
    assert lake.rows() == [2]
