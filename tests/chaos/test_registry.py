"""A job in Avro whose schema registry is stopped under load: good records wait for it, bad ones are written aside."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.avro_witness import record, send, told, written
from tests.chaos.harness import Job, create_topic, open_transactions, read
from tests.chaos.running import running
from tests.door import Door
from tests.registry_server import RegistryServer

NewJob = Callable[..., Job]

OLD = record("com.shop.PaymentMade", account="string", id="int", amount="int", terminal=["null", "string"])
NEW = record("com.shop.PaymentMade", currency=("string", "EUR"), id="long", amount="long", account="string")
BROKEN = record("com.shop.Refund", id="long", amount="long")


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[RegistryServer]:
    server = RegistryServer(tmp_path / "registry").start()
    yield server
    server.kill()


def payments(ids: range, **more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "account": f"a{n % 5}", "amount": n % 7 + 1, **more} for n in ids]


@pytest.mark.chaos
def test_a_registry_that_goes_away_under_load_is_waited_for_and_nothing_is_dead_lettered(
    new_job: NewJob, registry: RegistryServer
) -> None:
    """Records of a known schema go on. The job waits at the first record of a new one, and goes on there."""
    with Door(registry.port) as door:
        job = new_job(0, app="avro.py", TEST_REGISTRY=f"http://127.0.0.1:{door.port}/apis/ccompat/v7")
        letters = f"{job.name}-letters"
        job.environment["TEST_LETTERS"] = letters
        create_topic(job.bootstrap, letters, 1)
        old = written(registry.url, job.input, OLD, payments(range(100), terminal="t1"))
        new = written(registry.url, job.input, NEW, payments(range(100, 150), currency="SEK"))
        send(job.bootstrap, job.input, old[:50])
        with running(job) as started:
            started.until_all_committed()
            door.close()
            send(job.bootstrap, job.input, [*old[50:], *new])
            started.until(lambda: started.count("restarting") >= 2, "wait for the registry")
            reasons = [event["reason"] for event in started.events("restarting")]
            door.open()
            started.until_all_committed()
            started.drain()

    assert all("schema registry" in reason and "does not answer" in reason for reason in reasons), reasons
    assert read(job.bootstrap, letters) == []
    outputs = [told(registry.url, message.value()) for message in read(job.bootstrap, job.output)]
    assert Counter(row["id"] for row in outputs) == Counter(range(150))
    assert {row["currency"] for row in outputs if row["id"] >= 100} == {"SEK"}


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_registry_that_is_stopped_under_load_is_waited_for(new_job: NewJob, own_registry: RegistryServer) -> None:
    job = new_job(0, app="avro.py", TEST_REGISTRY=own_registry.url)
    letters = f"{job.name}-letters"
    job.environment["TEST_LETTERS"] = letters
    create_topic(job.bootstrap, letters, 1)
    old = written(own_registry.url, job.input, OLD, payments(range(200), terminal="t1"))
    new = written(own_registry.url, job.input, NEW, payments(range(200, 300), currency="SEK"))
    broken = written(own_registry.url, f"{job.input}-broken", BROKEN, [{"id": 1, "amount": 1}])
    unknown = b"\0\0\0\x12\x67" + old[0][5:]
    send(job.bootstrap, job.input, old[:100])
    with running(job) as started:
        started.until_all_committed()
        own_registry.signal(signal.SIGSTOP)
        send(job.bootstrap, job.input, old[100:])
        started.until_all_committed()  # nothing new has to be asked
        send(job.bootstrap, job.input, new)
        started.until(lambda: started.count("restarting") >= 3, "wait for the registry")
        reasons = [event["reason"] for event in started.events("restarting")]
        aside = read(job.bootstrap, letters)
        own_registry.signal(signal.SIGCONT)
        started.until_all_committed()
        send(job.bootstrap, job.input, [*broken, unknown, old[0][:-1], b"{}"])
        started.until_all_committed()
        started.drain()

    assert all("schema registry" in reason and "does not answer" in reason for reason in reasons), reasons
    assert aside == []
    outputs = [told(own_registry.url, message.value()) for message in read(job.bootstrap, job.output)]
    assert Counter(row["id"] for row in outputs) == Counter(range(300))
    assert {row["currency"] for row in outputs if row["id"] < 200} == {"EUR"}
    assert {row["currency"] for row in outputs if row["id"] >= 200} == {"SEK"}
    assert max(row["total"] for row in outputs if row["account"] == "a0") == sum(
        p["amount"] for p in payments(range(300)) if p["account"] == "a0"
    )
    refused = read(job.bootstrap, letters)
    said = " | ".join(sorted(dict(letter.headers())["dead_letter.message"].decode() for letter in refused))
    assert len(refused) == 4, said
    assert "does not know schema 4711" in said
    assert "not in the wire format of a schema registry" in said
    assert "No default value" in said
    assert "it is cut off" in said
    assert open_transactions(job) == []
