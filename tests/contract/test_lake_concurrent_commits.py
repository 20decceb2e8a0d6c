"""Several that commit to one table of a lake at the same moment: two jobs, and two processes of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors._lake.committer import LakeCommitter
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Term
from tests.contract.lakes import DeltaLake, IcebergLake, Lake, LakeJob, at, permit, statuses
from tests.contract.test_lake_upserts import KeyedDelta, KeyedIceberg, left
from tests.marks import campaign
from tests.waiting import PATIENCE

EPOCHS = range(1, 7)
KEYED = (KeyedDelta, KeyedIceberg)


class Other(LakeJob):
    """Of a job whose name begins like that of the first one."""

    def context(self, term: int) -> JobContext:
        return JobContext("orders-2", Term(term), {}, self.identity)


@pytest.fixture(params=[*KEYED, campaign(DeltaLake), campaign(IcebergLake)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    make: Callable[[Path], Lake] = request.param
    return make(tmp_path)


def until_answered(call: Callable[[], set[CommitOutcome]]) -> set[CommitOutcome]:
    """As the engine asks: again, as long as there is no answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except Retryable:
            assert time.monotonic() < deadline, "the table never had an answer"


def committed(committer: LakeCommitter, right: CommitPermit, committables: list[Committable]) -> set[CommitOutcome]:
    return until_answered(lambda: {*committer.commit_all(right, committables)})


def test_two_jobs_that_write_one_table_lose_and_double_nothing_of_each_other(lake: Lake) -> None:
    """Each meets the other's commits again and again; with a key both write one row of the same."""

    def written(lake_job: LakeJob, first: int) -> list[Committable]:
        committer, done = lake_job.recovered(1), list[Committable]()
        for epoch in EPOCHS:
            made = [
                *lake_job.prepared(1, epoch, [first + epoch, 0]),
                *lake_job.prepared(1, epoch, [first - epoch], subtask=1),
            ]
            assert committed(committer, permit(committer, at(epoch, 1), made), made) == {CommitOutcome.COMMITTED}
            done += made
        return done

    lake_jobs = [LakeJob(lake), Other(lake)]
    with ThreadPoolExecutor() as pool:
        done = [*pool.map(written, lake_jobs, [100, 1000])]

    own = sorted(first + sign * epoch for first in (100, 1000) for epoch in EPOCHS for sign in (1, -1))
    assert lake.rows() == [0] * (1 if isinstance(lake, KEYED) else 2 * len(EPOCHS)) + own
    for lake_job, committables in zip(lake_jobs, done, strict=True):
        committer = lake_job.committer()
        committer.register(lake_job.context(2))
        assert committer.abort_leftovers(lake_job.context(2)) == []
        assert statuses(committer, committables) == {CommitStatus.COMMITTED}
    assert left(lake) == set()


def test_two_processes_that_commit_the_same_epochs_at_once_commit_each_once(lake: Lake) -> None:
    lake_job, together = LakeJob(lake), Barrier(2)
    lake_job.recovered(1)
    epochs = {epoch: [*lake_job.prepared(1, epoch, [epoch, -epoch])] for epoch in EPOCHS}

    def both(_: int) -> list[set[CommitOutcome]]:
        committer, found = lake_job.committer(), list[set[CommitOutcome]]()
        for epoch, committables in epochs.items():
            right = permit(committer, at(epoch, 1), committables)
            together.wait(PATIENCE)
            try:
                found.append(committed(committer, right, committables))
            except BaseException:
                together.abort()  # so that the other one does not wait for it
                raise
            together.wait(PATIENCE)
        return found

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(both, range(2))

    assert {*map(len, (*one, *other))} == {1}
    assert [first | second for first, second in zip(one, other, strict=True)] == [
        {CommitOutcome.COMMITTED, CommitOutcome.ALREADY}
    ] * len(EPOCHS)
    assert lake.rows() == sorted(n for epoch in EPOCHS for n in (epoch, -epoch))
    assert lake_job.committer().list_staged(lake_job.context(1)) == []
    assert left(lake) == set()
