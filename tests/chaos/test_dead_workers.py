"""A dead worker takes all workers back to the last decided epoch, and the living ones keep their interpreters.

The plan has no exchange: what one worker does has nothing to do with the others, and they go back all the same.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Mapping

import pytest

from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.running import running, signal_worker
from tests.marks import campaign
from tests.producers import in_order

NewJob = Callable[..., Job]


@pytest.mark.parametrize(
    "faults",
    [
        "sink.flush.before=kill@2;recovery.restored=kill;source.capture.after=kill@4",
        campaign("sink.prepare.after=kill@3;worker.ack.before=kill@3"),
        campaign("worker.ack.after=kill@3"),
    ],
)
def test_a_dead_worker_takes_all_back(new_job: NewJob, faults: str) -> None:
    job = new_job(3000, "straight.py", KAFKA_EOS_PARALLELISM=3, TEST_PAUSE=0.002)
    with running(job, faults) as run:
        run.until(lambda: len(job.fired) == faults.count(";") + 1, "fail as planned")
        run.until(lambda: run.last("progress").get("lag") == 0, "read everything")
        run.drain()

    assert run.events("restarting")
    _check(job)


def test_those_that_live_keep_their_interpreters_and_take_another_term(new_job: NewJob) -> None:
    """A term of its own orders what the dead worker left behind everything that is decided: no queue does."""
    job = new_job(1500, "straight.py", KAFKA_EOS_PARALLELISM=3, TEST_PAUSE=0.002)
    with running(job) as run:
        run.until_committed()
        signal_worker(run.worker, signal.SIGKILL)
        run.until(lambda: len(run.events("running")) == 2, "begin again")
        before, after = run.events("running")
        run.until(lambda: run.last("progress").get("lag") == 0, "read everything")
        run.drain()

    assert after["term"] > before["term"]
    assert after["workers"][1:] == before["workers"][1:]
    assert after["workers"][0] != before["workers"][0]
    _check(job)


@pytest.mark.campaign
def test_one_that_had_caught_up_has_to_do_so_again(new_job: NewJob) -> None:
    """A bounded run ends when all of its workers have read to the end, not when each once had."""
    job = new_job(0, "straight.py", KAFKA_EOS_PARALLELISM=3, TEST_INTERVAL=60, TEST_PAUSE=0.005)
    feed_partitions(job, {0: 200, 1: 600, 2: 600})
    with running(job, "", "--until-caught-up") as run:
        worker = run.worker
        run.until(lambda: run.last("progress").get("records_in", 0) > 900, "read most of it")
        signal_worker(worker, signal.SIGKILL)

        assert run.ended() == 0, run.log[-6000:]

    assert run.events("restarting")
    _check(job)


def feed_partitions(job: Job, counts: Mapping[int, int]) -> None:
    """That many payments into each partition."""
    producer = in_order(job.bootstrap)
    for number, partition in enumerate(itertools.chain.from_iterable([p] * n for p, n in counts.items())):
        payment = {"id": number, "account": "a", "amount": 1}
        producer.produce(job.input, json.dumps(payment).encode(), partition=partition)
    assert producer.flush(30) == 0


def _check(job: Job) -> None:
    sent = sorted(p["id"] for p in (json.loads(m.value()) for m in read(job.bootstrap, job.input)) if p["amount"] > 0)
    assert sorted(json.loads(m.value())["id"] for m in read(job.bootstrap, job.output)) == sent
    lines = [line for part in job.files.glob("part-*") for line in part.read_bytes().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == sent
    assert open_transactions(job) == []
