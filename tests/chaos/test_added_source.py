"""A source that a job did not have before begins where it was first met, however often the job dies then."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.chaos.harness import Job, create_topic, feed, read
from tests.chaos.running import running

NewJob = Callable[..., Job]


@pytest.mark.campaign
def test_latest_is_asked_once(new_job: NewJob) -> None:
    job = new_job(100, app="grown.py")
    job.run()
    second = f"{job.name}-second"
    create_topic(job.bootstrap, second, 2)
    feed(job.bootstrap, second, range(50))
    job.environment["TEST_SECOND"] = second

    with running(job, "recovery.opened=stop") as run:
        run.until(lambda: job.fired, "stop the worker before it reads")
        feed(job.bootstrap, second, range(1000, 1080))
    job.run()

    ids = sorted(json.loads(m.value())["id"] for m in read(job.bootstrap, job.output))
    assert ids == [*range(100), *range(1000, 1080)]
