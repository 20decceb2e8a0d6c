"""Rows that wait for a service, under fault: each answer enters once, whoever dies, with any number of workers."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.running import events, manifests, running
from tests.chaos.service import answer, serving
from tests.chaos.storm import Storm
from tests.chaos.test_savepoints import kafka_eos, second_incarnation, trigger
from tests.chaos.test_windows import Steps, name_of
from tests.marks import campaign

NewJob = Callable[..., Job]
Found = tuple[str, str, int, int]
"""Kind, account, id (of a window its end), answer (of a window the number of rows)."""

PAYMENTS = 100
ACCOUNTS = 1_000_000
"""Behind all numbers of payments: those of accounts."""
BASE = int(time.time()) * 1000
FEW: Steps = (
    (1, ("async-map.answered=kill@20", "commit.before=kill@2")),
    (2, ("in-flight.stored=kill@2", "async-map.answered=kill@9")),
)
STEPS: Steps = (
    *FEW,
    (3, ("align.complete=kill@4", "in-flight.replayed=kill", "async-map.answered=kill@5", "snapshot.uploaded=kill@5")),
    (1, ("worker.ack.after=kill@3", "in-flight.replayed=kill", "manifest.published=kill@2")),
)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        pytest.param("aligned", FEW, id="few"),
        campaign("aligned", STEPS, named="aligned"),
        campaign("unaligned", STEPS, named="unaligned"),
    ],
)
def test_each_answer_enters_once_in_a_storm_with_other_numbers_of_workers(
    new_job: NewJob, mode: str, steps: Steps
) -> None:
    with serving(slowest=0.02) as service:
        job = new_job(PAYMENTS, "asked.py", KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_BASE=BASE, TEST_SERVICE=service.url)
        storm = Storm(job, PAYMENTS)
        for workers, faults in steps:
            with storm.through(*faults, KAFKA_EOS_PARALLELISM=workers):
                storm.feed(200)
        job.run()

    messages = read(job.bootstrap, job.output)
    payments = [json.loads(message.value()) for message in read(job.bootstrap, job.input)]
    found, wanted = Counter(map(row, messages)), Counter(due(read(job.bootstrap, job.input)))
    assert (found - wanted, wanted - found) == (Counter(), Counter())
    assert {kind for kind, *_ in found} == {"ordered", "unordered", "kept", "counted", "failed"}
    assert max(Counter(map(name_of, messages)).values()) == 1
    assert {payment["id"] for payment in payments if payment["amount"]} <= set(service.asked)
    assert max(Counter(n for n in service.asked if n < ACCOUNTS).values()) > 2, "nobody was asked again"
    in_their_order(messages)
    assert not open_transactions(job)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(("mode", "workers"), [("aligned", 3), campaign("unaligned", 2), campaign("aligned", 1)])
def test_checkpoints_go_on_while_nobody_answers_and_so_does_a_savepoint_of_one(
    new_job: NewJob, mode: str, workers: int
) -> None:
    """The job dies then. Positions are behind the rows that wait, so whoever begins there has them from nobody else."""
    with serving(failing=0, slowest=0) as service:
        job = new_job(PAYMENTS, "asked.py", KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_BASE=BASE, TEST_SERVICE=service.url)
        service.held.clear()
        with running(job) as run:
            run.until(lambda: len(holding(job)) >= 3, "hold rows that wait in three checkpoints")
            first = list(service.asked)
        assert kafka_eos(job, "doctor", str(job.app), "--resolve")[0] == 0
        savepoint = trigger(job, job.directory / "savepoint")
        service.held.set()
        service.asked.clear()
        second = second_incarnation(job, savepoint, KAFKA_EOS_PARALLELISM=str(workers))
        second.run()

    assert first and set(first) <= set(service.asked), "they are asked for again"
    messages = read(job.bootstrap, job.output)
    found, wanted = Counter(map(row, messages)), Counter(due(read(job.bootstrap, job.input)))
    assert (found - wanted, wanted - found) == (Counter(), Counter())
    assert max(Counter(map(name_of, messages)).values()) == 1


@pytest.mark.chaos
def test_a_job_that_is_told_to_stop_waits_for_its_answers(new_job: NewJob) -> None:
    with serving(failing=0, slowest=0) as service:
        job = new_job(20, "asked.py", TEST_BASE=BASE, TEST_SERVICE=service.url)
        service.held.clear()
        with running(job) as run:
            run.until(lambda: holding(job), "hold rows that wait in a checkpoint")
            run.send(signal.SIGTERM)
            assert run.alive
            service.held.set()
            assert run.ended() == 0, run.log

    assert manifests(job)[-1].in_flight == ()
    assert Counter(map(row, read(job.bootstrap, job.output))) == Counter(due(read(job.bootstrap, job.input)))


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("payments", [20, campaign(400)])
def test_a_service_that_never_answers_ends_the_job_after_so_many_attempts_and_is_named(
    new_job: NewJob, payments: int
) -> None:
    """Epochs are committed meanwhile. They do not tell that it is back: of few payments they hold those that wait; of
    many they are empty, because the next barrier waits behind rows for which there is no room.
    """
    with serving(failing=0, slowest=0) as service:
        job = new_job(
            payments, "asked.py", TEST_BASE=BASE, TEST_SERVICE=service.url, TEST_TIMEOUT="5", TEST_TRIES="1",
            KAFKA_EOS_MAX_ENVIRONMENT_FAILURES="2",
        )  # fmt: skip
        service.held.clear()
        with running(job) as run:
            assert run.ended() != 0, run.log

    assert "3 failures in a row without" in run.log
    assert "(asked.py, line" in run.log and "within timeout=5 seconds" in run.log
    told = [event for event in events(job) if event["event"] in ("committed", "restarting")]
    rows = [event["in_a_row"] for event in told if event["event"] == "restarting"]
    assert rows == [1, 2, 3]
    assert payments > 20 or told[-2]["event"] == "committed", (
        "nothing was committed between two failures: this shows nothing"
    )


def holding(job: Job) -> list[int]:
    """Epochs that hold rows which wait."""
    return [event["epoch"] for event in events(job) if event["event"] == "decided" and event["in_flight_bytes"]]


def in_their_order(messages: list[Any]) -> None:
    """Of an account, whose records are in one partition, the rows come as the records did."""
    by_account: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: (message.partition(), message.offset())):
        said = json.loads(message.value())
        if said["kind"] == "ordered":
            by_account[said["account"]].append((said["count"], int(name_of(message).split("/")[3])))
    for places in by_account.values():
        assert [count for count, _ in places] == [*range(1, len(places) + 1)]
        assert [offset for _, offset in places] == sorted(offset for _, offset in places)


def row(message: Any) -> Found:
    said = json.loads(message.value())
    return said["kind"], said["account"], said["id"], said["count"] if said["kind"] == "counted" else said["answer"]


def due(messages: list[Any]) -> Iterator[Found]:
    """What the input makes; of windows those to whose end event time has come."""
    newest: dict[int, int] = defaultdict(int)
    inside: Counter[tuple[str, int]] = Counter()
    for message in messages:
        payment = json.loads(message.value())
        number, account = payment["id"], payment["account"]
        newest[message.partition()] = max(newest[message.partition()], number)
        if payment["amount"]:
            yield "ordered", account, number, answer(number)
            yield "kept", account, number, answer(ACCOUNTS + int(account.lstrip("a")))
            if payment["amount"] == 5:
                yield "failed", account, number, 0
            else:
                yield "unordered", account, number, answer(number)
                inside[account, (BASE + number) // 100 * 100 + 100 - BASE] += 1
    watermark = min(newest.values()) - 200 - 1
    yield from (("counted", account, end, n) for (account, end), n in inside.items() if end - 1 <= watermark)
