"""A broker that was just started names no broker: clients that forget it then do not stop the job for good."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.settings import free_ports
from tests.broker import kafka_kit as kit
from tests.chaos.harness import Job, create_topic, feed
from tests.chaos.metadata_proxy import ForgetfulProxy
from tests.chaos.running import check_all, running
from tests.waiting import PATIENCE, eventually

NewJob = Callable[..., Job]
DISCONNECTS, APART = 3, 1.5
"""Clients that reconnect within this many seconds and ask; one is not enough for each of them to forget."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForgetfulProxy, str]]:
    """A proxy, and the bootstrap servers of the broker behind it, which names the proxy as its address."""
    port, upstream = free_ports(2)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    broker = Broker(tmp_path_factory.mktemp("forgetful") / "kafka", upstream, advertised).start()
    with ForgetfulProxy(port, upstream) as between:
        yield between, f"127.0.0.1:{port}"
    broker.kill()


@contextmanager
def _forgetful(between: ForgetfulProxy) -> Iterator[None]:
    forgot = between.forgot
    between.forgetful = True
    yield
    eventually(lambda: between.forgot > forgot, "somebody asks for metadata")
    between.forgetful = False


@pytest.mark.campaign
def test_a_reader_goes_on_where_poll_was(proxy: tuple[ForgetfulProxy, str]) -> None:
    """What the forgetful client had fetched and not returned comes once, and so does what was written meanwhile."""
    between, bootstrap = proxy
    create_topic(bootstrap, "numbers", 1)
    kit.send(bootstrap, "numbers", *_numbers(0, 100))
    ctx = kit.job(bootstrap)
    source = KafkaSource("numbers", value=int)
    reader = source.reader(kit.task(ctx, "in"), source.discover(ctx, None))
    values: list[int] = []

    def read(until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < deadline, f"only these came: {values}"
            found = reader.poll(1, 0.05)
            values.extend(found.values if found is not None else ())

    read(lambda: len(values) == 10)
    with _forgetful(between):
        for _ in range(DISCONNECTS):
            between.disconnect()
            again = time.monotonic() + APART
            read(lambda again=again: time.monotonic() > again)
    kit.send(bootstrap, "numbers", *_numbers(100, 150))
    read(lambda: len(values) >= 150)

    assert values == list(range(150))
    reader.close()


def _numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.campaign
def test_a_job_goes_on(new_job: NewJob, proxy: tuple[ForgetfulProxy, str]) -> None:
    between, bootstrap = proxy
    job = new_job(600, bootstrap=bootstrap, TEST_PAUSE=0.002)
    with running(job) as run:
        run.until_output()
        with _forgetful(between):
            for _ in range(DISCONNECTS):
                between.disconnect()
                time.sleep(APART)
        feed(bootstrap, job.input, range(600, 1200))
        run.until_all_committed()
        run.drain()
    check_all(job)
