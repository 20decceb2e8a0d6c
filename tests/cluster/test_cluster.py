"""A real pipeline on three brokers, while they die, freeze, restart and hand over: output is exact, nothing is open."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from tests.chaos.feeding import feeding
from tests.chaos.harness import Job
from tests.chaos.running import Running, check_all, has_output, running, standing
from tests.cluster.brokers import Brokers
from tests.waiting import eventually

NewJob = Callable[..., Job]
Fault = Callable[[Brokers, Job, Running], None]
pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(1200), pytest.mark.cluster]
SETTINGS = {"TEST_PAUSE": 0.001, "KAFKA_EOS_PARALLELISM": 2}


def test_the_coordinator_dies_between_pre_commit_and_commit(new_job: NewJob, cluster: Brokers) -> None:
    """The supervisor that decided goes on, and commits with whoever coordinates now."""
    job = new_job(600, **SETTINGS)
    with standing(job, "commit.before", lambda: has_output(job)) as run:
        coordinator = cluster.coordinator(f"{job.name}.")
        coordinator.kill()
        run.send(signal.SIGCONT)
        with feeding(job):
            run.until_committed(2)
        coordinator.start()
        cluster.until_whole()
        run.until_all_committed()
        run.drain()
    check_all(job)


@pytest.mark.parametrize("dies", ["supervisor", "all"])
def test_coordinator_and_job_die_between_pre_commit_and_commit(new_job: NewJob, cluster: Brokers, dies: str) -> None:
    """The next start finishes what was decided, with another coordinator, or with the brokers that come back."""
    job = new_job(600, **SETTINGS)
    with standing(job, "commit.before", lambda: has_output(job)):
        coordinator = cluster.coordinator(f"{job.name}.")
        for broker in [coordinator] if dies == "supervisor" else list(cluster.brokers.values()):
            broker.kill()
    if dies == "all":
        cluster.start()

    job.run()

    cluster.start()
    check_all(job)


def _two_die(cluster: Brokers, job: Job, run: Running) -> None:
    """At once: what is left can neither take writes nor elect anybody."""
    away = sorted(cluster.brokers)[:2]
    for node in away:
        cluster.brokers[node].kill()
    cluster.start(*away)


def _one_freezes(cluster: Brokers, job: Job, run: Running) -> None:
    """The coordinator, until the others have fenced it and the job has gone on without it."""
    frozen = cluster.coordinator(f"{job.name}.")
    node = next(node for node, broker in cluster.brokers.items() if broker is frozen)
    frozen.pause()
    eventually(lambda: node not in _members(cluster), "the frozen broker is fenced")
    run.until_committed(2)
    frozen.resume()


def _members(cluster: Brokers) -> set[int]:
    """Members, or all while nobody can say."""
    try:
        return cluster.members()
    except KafkaException:
        return set(cluster.brokers)


def _each_restarts(cluster: Brokers, job: Job, run: Running) -> None:
    for broker in cluster.brokers.values():
        broker.stop()
        broker.start()
        cluster.until_whole()


def _leaders_move(cluster: Brokers, job: Job, run: Running) -> None:
    """Those of the topics and of the coordinators, twice."""
    for _ in range(2):
        cluster.move_leaders((job.input, job.output, "__transaction_state", "__consumer_offsets"))
        run.until_committed(2)


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(_two_die, id="two-of-three-die"),
        pytest.param(_one_freezes, id="one-is-frozen-and-fenced"),
        pytest.param(_each_restarts, id="rolling-restart"),
        pytest.param(_leaders_move, id="leaders-move"),
    ],
)
def test_the_job_outlives(new_job: NewJob, cluster: Brokers, fault: Fault, mode: str) -> None:
    job = new_job(600, KAFKA_EOS_CHECKPOINT_MODE=mode, **SETTINGS)
    with running(job) as run:
        with feeding(job):
            run.until_committed(1)
            fault(cluster, job, run)
            cluster.until_whole()
            run.until_committed(1)
        run.until_all_committed()
        run.drain()
    check_all(job)
