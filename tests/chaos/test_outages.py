"""The broker goes away in the middle of the work: stopped, killed, frozen, and between decision and commit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from kafka_eos.devbroker import Broker
from tests.chaos.harness import Job, feed
from tests.chaos.running import check_all, running

NewJob = Callable[..., Job]
pytestmark = pytest.mark.xdist_group("outages")
AWAY = 3.0
"""Seconds that a frozen broker stays frozen."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that nobody else uses; every test leaves it running."""
    own = Broker(tmp_path_factory.mktemp("outages") / "kafka").start()
    yield own
    own.kill()


def _restart(broker: Broker) -> None:
    broker.stop()
    broker.start()


def _kill(broker: Broker) -> None:
    broker.kill()
    broker.start()


def _freeze(broker: Broker) -> None:
    broker.pause()
    time.sleep(AWAY)
    broker.resume()


def test_the_job_outlives_its_broker(new_job: NewJob, broker: Broker) -> None:
    job = new_job(600, bootstrap=broker.bootstrap, TEST_PAUSE=0.002)
    with running(job) as run:
        worker = run.worker
        run.until_committed(1)
        for number, outage in enumerate((_restart, _kill, _freeze), start=1):
            feed(broker.bootstrap, job.input, range(number * 600, number * 600 + 600))
            outage(broker)
            run.until_all_committed()
        assert run.worker == worker, "an outage is no reason to replace the worker"
        run.drain()
    check_all(job)


@pytest.mark.campaign
def test_the_broker_dies_between_decision_and_commit(new_job: NewJob, broker: Broker) -> None:
    """SIGTERM then ends the job within its stop timeout, and the next start commits what was decided."""
    job = new_job(600, bootstrap=broker.bootstrap, KAFKA_EOS_STOP_TIMEOUT="2s")
    with running(job, "commit.before=stop@3") as run:
        run.until_stopped()
        broker.kill()
        run.send(signal.SIGCONT)
        run.send(signal.SIGTERM)

        # stop_timeout, the request that is under way, and the end of two processes
        assert run.ended(seconds=20.0) == 3, run.log
        assert "nothing is lost" in run.log
    broker.start()
    job.run()
    check_all(job)
