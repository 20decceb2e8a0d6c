"""A job in Avro whose schema registry is stopped under load: good records wait for it, bad ones are written aside."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.avro_witness import record, send, told, written
from tests.chaos.harness import Job, create_topic, open_transactions, read
from tests.chaos.running import running, signal_worker
from tests.closable_port import Door
from tests.registry_server import RegistryServer
from tests.scripted_http_server import HALF, RESET, Answer, Answering, Request, Slowly
from tests.waiting import PATIENCE

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


@pytest.mark.campaign
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

    assert all("schema registry" in reason and "does not respond" in reason for reason in reasons), reasons
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

    assert all("schema registry" in reason and "does not respond" in reason for reason in reasons), reasons
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
    assert "has no schema 4711" in said
    assert "not in the wire format of a schema registry" in said
    assert "No default value" in said
    assert "it is cut off" in said
    assert open_transactions(job) == []


UNKNOWN = (404, b'{"error_code": 40403, "message": "Schema not found"}')
AWAY: dict[str, Answer] = {
    "500": (500, b'{"error_code": 50001, "message": "no store"}'),
    "502": (502, b"<html>bad gateway</html>"),
    "408": (408, b""),
    "429": (429, b"slow down"),
    "a page": (200, b"<html>we are back soon</html>"),
    "nothing": (200, b""),
    "no schema": (200, b"{}"),
    "no content": (204, b""),
    "half": HALF,
    "reset": RESET,
    "slow": Slowly(1.5),
}
"""What answers instead of the registry, by name."""


@pytest.mark.campaign
@pytest.mark.chaos
def test_whatever_answers_instead_of_the_registry_each_record_of_each_new_schema_is_read_once(
    new_job: NewJob, registry: RegistryServer
) -> None:
    """The schema changes before each fault, and the worker is killed after some. Schemas of others come late, or never:
    in a transaction that is aborted.
    """
    with Answering(lambda request: None, behind=registry.url) as between:
        job = new_job(0, app="avro.py", TEST_REGISTRY=between.url)
        letters = f"{job.name}-letters"
        job.environment["TEST_LETTERS"] = letters
        create_topic(job.bootstrap, letters, 1)
        ids = itertools.count(0, 10)
        send(job.bootstrap, job.input, _of_a_new_schema(registry, job, "first", next(ids)))
        with running(job) as started:
            started.until_all_committed()
            for number, (name, answer) in enumerate(AWAY.items()):
                before = started.count("restarting")
                between.answer = lambda request, answer=answer: answer
                send(job.bootstrap, job.input, _of_a_new_schema(registry, job, f"f{number}", next(ids)))
                started.until(lambda seen=before: started.count("restarting") > seen, f"wait for {name}")
                if number % 4 == 3:
                    signal_worker(started.worker, signal.SIGKILL)
                between.answer = lambda request: None
                started.until_all_committed()
            _send_and_abort(job, _of_a_new_schema(registry, job, "aborted", 0))
            waits = started.count("restarting")
            between.answer = _late(2)
            send(job.bootstrap, job.input, _of_a_new_schema(registry, job, "late", next(ids)))
            started.until_all_committed()
            late = started.count("restarting") - waits
            reasons = [event["reason"] for event in started.events("restarting")]
            started.drain()

    assert late == 0, reasons
    assert read(job.bootstrap, letters) == []
    outputs = [told(registry.url, message.value()) for message in read(job.bootstrap, job.output)]
    assert Counter(row["id"] for row in outputs) == Counter(range(10 * (len(AWAY) + 2)))
    assert open_transactions(job) == []


def _of_a_new_schema(registry: RegistryServer, job: Job, field: str, first: int) -> list[bytes]:
    schema = record("com.shop.PaymentMade", **{field: "int"}, id="int", account="string", amount="int")
    return written(registry.url, job.input, schema, payments(range(first, first + 10), **{field: 1}))


def _late(times: int) -> Callable[[Request], Answer | None]:
    """The registry's own answers, but that it does not know a schema when it is asked so often."""
    left = itertools.count(times, -1)
    return lambda request: UNKNOWN if "/schemas/ids/" in request.path and next(left) > 0 else None


def _send_and_abort(job: Job, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": job.bootstrap, "transactional.id": f"{job.name}-aborted"})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for value in values:
        producer.produce(job.input, value)
    assert producer.flush(PATIENCE) == 0
    producer.abort_transaction(PATIENCE)
