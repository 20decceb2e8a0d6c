"""The broker goes away in the middle of the work: stopped, killed, frozen, and between decision and commit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_eos.devtools.broker import Broker
from tests.chaos.harness import Job, feed
from tests.chaos.running import check_all, running, storage
from tests.chaos.test_metrics import address, ask, scrape
from tests.marks import campaign

NewJob = Callable[..., Job]
pytestmark = pytest.mark.xdist_group("outages")
STATUS = (sys.executable, "-m", "kafka_eos", "status", "--checkpoint-dir")
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


@pytest.mark.parametrize(
    "outages",
    [pytest.param((_kill, _freeze), id="some"), campaign((_restart, _kill, _freeze), named="every")],
)
def test_the_job_outlives_its_broker(
    new_job: NewJob, broker: Broker, outages: tuple[Callable[[Broker], None], ...]
) -> None:
    job = new_job(600, bootstrap=broker.bootstrap, TEST_PAUSE=0.002)
    with running(job) as run:
        worker = run.worker
        run.until_output()
        for number, outage in enumerate(outages, start=1):
            feed(broker.bootstrap, job.input, range(number * 600, number * 600 + 600))
            outage(broker)
            run.until_all_committed()
        assert run.worker == worker, "an outage is no reason to replace the worker"
        run.drain()
    check_all(job)


@pytest.mark.campaign
def test_an_idle_job_says_that_its_broker_is_away(new_job: NewJob, broker: Broker) -> None:
    """No row asks for anything: readiness, status and metrics tell nevertheless, and take it back."""
    job = new_job(100, bootstrap=broker.bootstrap, KAFKA_EOS_HTTP_READY_WITHIN="2s")
    with running(job, "", "--http", "127.0.0.1:0") as run:
        url = address(run)
        run.until_all_committed()
        run.until(lambda: ask(url, "/readyz")[0] == 200, "become ready")
        run.until(lambda: scrape(url).get(("kafka_eos_lag_records",)) == 0, "report its lag")
        broker.kill()
        silent = f"kafka://{broker.bootstrap} has not responded for "
        run.until(lambda: ask(url, "/readyz")[1].startswith(silent), "say that it is not ready")
        code, figures = ask(url, "/readyz")[0], scrape(url)
        status = subprocess.run([*STATUS, str(job.checkpoints), job.name], capture_output=True, text=True)
        broker.start()
        run.until(lambda: ask(url, "/readyz")[0] == 200, "become ready again")
        later = scrape(url)
        run.drain()

    cluster = f"kafka://{broker.bootstrap}"
    assert code == 503
    assert silent in status.stdout, status
    assert figures["kafka_eos_dependency_silent_seconds", cluster] >= 2
    assert ("kafka_eos_lag_records",) in figures, "no alert is raised by a figure that vanishes"
    assert later["kafka_eos_dependency_silent_seconds", cluster] == 0
    check_all(job)


def test_a_checkpoint_store_that_is_away_is_waited_for(new_job: NewJob, tmp_path: Path) -> None:
    """Its directory is gone for a while, as a mount would be; the workers' own disk is another one."""
    job = new_job(600, TEST_PAUSE=0.002, KAFKA_EOS_STATE_DIR=tmp_path / "local")
    home = job.checkpoints / job.name
    with running(job) as run:
        run.until_committed(1)
        worker = run.worker
        home.rename(tmp_path / "away")
        run.until(lambda: run.log.count("the checkpoint store does not respond") > 2, "wait for its store", 120)
        assert not home.exists(), "the job made another store where its own had been"
        (tmp_path / "away").rename(home)

        feed(job.bootstrap, job.input, range(600, 900))
        run.until_all_committed()
        assert run.worker == worker, "an outage is no reason to replace the worker"
        run.drain()
    storage(job).prepare_run()  # as the next start does: nobody could remove a file that the outage cut off
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

        assert run.ended() == 3, run.log  # the broker is still away
        assert "nothing is lost" in run.log
    broker.start()
    job.run()
    check_all(job)
