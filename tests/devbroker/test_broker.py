"""The development broker: what a test or a user may rely on when it is started, stopped, killed and found again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from kafka_eos._util.jvm.jars import RELEASES
from kafka_eos.cli import app
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.readiness import is_ready, wait_until
from kafka_eos.devtools.broker.settings import free_ports
from tests.marks import campaign
from tests.producers import in_order

SECONDS = 60.0


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = in_order(bootstrap)
    producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, SECONDS)]
    finally:
        consumer.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "kafka", daemon=True)
    yield broker
    broker.kill()


@pytest.mark.parametrize("end", [campaign(Broker.stop), Broker.kill])
def test_a_broker_that_ended_comes_back_with_its_port_and_its_data(
    broker_factory: Callable[..., Broker], end: Callable[[Broker], None]
) -> None:
    broker = broker_factory()
    bootstrap, first = broker.bootstrap, broker.pid
    create_topic(bootstrap, "kept")
    write(bootstrap, "kept", b"before")
    unpacked = broker.directory / "tmp" / "library.so"
    unpacked.touch()
    end(broker)
    assert not broker.running
    broker.start()
    write(bootstrap, "kept", b"after")

    assert (broker.bootstrap, read(bootstrap, "kept", 2)) == (bootstrap, [b"before", b"after"])
    assert broker.pid != first
    assert not unpacked.exists(), "what a killed broker had unpacked stays for ever"


def test_a_paused_broker_is_alive_but_silent_until_resumed(broker_factory: Callable[..., Broker]) -> None:
    """And a second one in its directory is refused."""
    broker = broker_factory()
    with pytest.raises(ConfigError, match="runs in .* already"):
        Broker(broker.directory).start()
    assert is_ready(broker.port)
    broker.pause()
    # A signal is on its way for a moment: what had begun to answer may still do so.
    assert wait_until(lambda: not is_ready(broker.port, timeout=0.5), SECONDS)
    assert broker.running
    broker.resume()

    assert wait_until(lambda: is_ready(broker.port), SECONDS)


@pytest.mark.campaign
def test_a_paused_broker_can_be_stopped(broker_factory: Callable[..., Broker]) -> None:
    broker = broker_factory()
    broker.pause()
    broker.stop()

    assert not broker.running


def test_a_daemon_is_found_again_by_its_directory_and_never_by_its_process_id(daemon: Broker) -> None:
    started = CliRunner().invoke(app, ["broker", "start", "--directory", str(daemon.directory), "--port", "0"])
    found = Broker.attach(daemon.directory)

    assert found is not None, started.output
    assert started.stdout.splitlines() == [
        f"broker {found.bootstrap} is up (process {daemon.pid}, data in {daemon.directory})",
        f"export KAFKA_EOS_BOOTSTRAP_SERVERS={found.bootstrap}",
    ]
    found.stop()
    assert (daemon.running, Broker.attach(daemon.directory)) == (False, None)

    state = daemon.directory / "broker.json"
    state.write_text(state.read_text().replace('"pid": ', f'"pid": {os.getpid()}, "was": '))

    assert Broker.attach(daemon.directory) is None
    daemon.stop()  # would end this process, had it believed the file


@pytest.mark.campaign
def test_a_daemon_outlives_who_started_it_and_others_do_not(tmp_path: Path) -> None:
    brokers = {daemon: Broker(tmp_path / f"daemon-{daemon}") for daemon in (True, False)}
    script = "import sys; from pathlib import Path; from kafka_eos.devtools.broker import Broker\n" + "\n".join(
        f"Broker(Path({str(broker.directory)!r}), daemon={daemon}).start()" for daemon, broker in brokers.items()
    )
    try:
        child = subprocess.run([sys.executable, "-c", script + "\nimport os; os.kill(os.getpid(), 9)"], check=False)
        assert child.returncode == -signal.SIGKILL

        assert wait_until(lambda: not brokers[False].running, SECONDS)
        assert brokers[True].running
    finally:
        for broker in brokers.values():
            broker.kill()


def test_a_setting_the_broker_refuses_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "kafka", overrides={"transaction.state.log.segment.bytes": "many"})

    with pytest.raises(ConfigError, match="transaction.state.log.segment.bytes"):
        broker.start()
    assert not broker.running


@pytest.mark.campaign
def test_a_broker_that_ends_while_it_starts_is_told_with_the_end_of_its_log(
    broker_factory: Callable[..., Broker],
) -> None:
    broker = broker_factory()
    broker.stop()
    identity = broker.directory / "data" / "meta.properties"
    identity.write_text(identity.read_text().replace("node.id=1", "node.id=99"))

    with pytest.raises(ConfigError, match=r"(?s)ended while it started.*99"):
        broker.start()


@pytest.mark.campaign
@pytest.mark.parametrize("release", list(RELEASES)[1:])
def test_a_broker_of_another_release_keeps_its_release(tmp_path: Path, release: str) -> None:
    broker = Broker(tmp_path / "kafka", release=release).start()
    create_topic(broker.bootstrap, "kept")
    broker.kill()
    again = Broker(tmp_path / "kafka")
    try:
        again.start()
        write(again.bootstrap, "kept", b"after")

        assert (again.release, read(again.bootstrap, "kept", 1)) == (release, [b"after"])
    finally:
        again.kill()


def test_a_release_that_cannot_be_fetched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Kafka 2\.8 is available; choose one of: 4\.3, 4\.4, 4\.0, 3\.9"):
        Broker(tmp_path / "kafka", release="2.8")


def test_a_port_of_another_program_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(ConfigError, match=f"port {port} .* is in use"):
            Broker(tmp_path / "kafka", port=port).start()


def test_two_ended_transactions_need_no_more_than_one_broker(bootstrap: str, topic: Callable[..., str]) -> None:
    """The shared broker has what exactly-once needs of one: transactions of any age, topics only on demand."""
    name = topic(partitions=2)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 2147483647,
        }
    )
    producer.init_transactions(SECONDS)
    for value in (b"one", b"two"):
        producer.begin_transaction()
        producer.produce(name, value, partition=0)
        producer.commit_transaction(SECONDS)

    assert read(bootstrap, name, 2) == [b"one", b"two"]


def test_free_ports_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody listens on yet can be bound twice."""
    free = free_ports(2)
    chosen = iter([free[0], *free])
    monkeypatch.setattr("kafka_eos.devtools.broker.settings.secrets.choice", lambda ports: next(chosen))

    assert free_ports(2) == free
