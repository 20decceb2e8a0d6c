"""A job that is not told how many workers to have: one for each core that it may use, on every machine anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafka_eos._util.cpu_quota import usable_cores
from tests.chaos.harness import Job, create_topic, feed
from tests.chaos.running import check_all, manifests

NewJob = Callable[..., Job]


@pytest.mark.campaign
def test_a_job_has_a_worker_for_each_core_and_goes_on_where_there_are_fewer(new_job: NewJob) -> None:
    """The input has one partition, so all workers but one have nothing to read; they own keys, and answer barriers."""
    job = new_job(0, KAFKA_EOS_PARALLELISM="")  # what is empty is not set
    job.input = f"{job.name}-narrow"
    create_topic(job.bootstrap, job.input, 1)
    for turn, most in enumerate((3, 2)):
        feed(job.bootstrap, job.input, range(turn * 200, turn * 200 + 200))
        with pinned(most) as cores:
            job.run()
        assert manifests(job)[-1].parallelism == cores

    assert f"with {cores} worker" in job.tail()
    check_all(job)


@contextmanager
def pinned(most: int) -> Iterator[int]:
    """On so many cores at most, for processes that are started meanwhile too; how many may be used of them."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(mine)[:most])
    try:
        yield usable_cores()
    finally:
        os.sched_setaffinity(0, mine)
