"""Jobs that send rows to a receiver which honours keys, killed between staging and sending and in the middle of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.chaos import harness
from tests.chaos.harness import Job, expected
from tests.chaos.running import audit_passes, running
from tests.marks import campaign
from tests.receiver import Receiver, flaky, receiving

SENDING = ("sink.prepare.after", "commit.before", "outbox.before", "outbox.between", "outbox.after", "commit.after")
AGAIN = (
    "outbox.between=kill",
    "outbox.between=kill@7",
    "recovery.probed=kill",
    "outbox.after=kill",
    "receipt.before=kill",
)
FLAKY = (
    "sink.prepare.after",
    "outbox.between",
    "worker.ack.before",
    "outbox.after",
    "commit.between",
    "receipt.before",
)
"""Steps of workers and of the supervisor."""
RECORDS = 150


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def sending(new_job: Callable[..., Job], receiver: Receiver) -> Callable[..., Job]:
    """``new_job`` that sends to the receiver."""

    def make(**environment: Any) -> Job:
        job = new_job(RECORDS, app="sends.py", TEST_URL=receiver.url, **environment)
        job.environment["TEST_OUTBOX"] = str(job.directory / "outbox")
        return job

    return make


def check(job: Job, receiver: Receiver) -> None:
    """The receiver has each total once, in the order of its account, and so has the topic; nothing waits any more."""
    wanted = expected(harness.read(job.bootstrap, job.input))
    in_kafka = [json.loads(message.value()) for message in harness.read(job.bootstrap, job.output)]
    arrived = [(row["account"], row["total"], row["id"]) for row in receiver.values()]

    assert sorted(arrived) == sorted(wanted)
    assert by_account(arrived) == by_account(wanted)
    assert sorted((row["account"], row["total"], row["id"]) for row in in_kafka) == sorted(wanted)
    waiting = [path.name for outbox in job.directory.glob("outbox*") for path in outbox.iterdir()]
    assert [name for name in waiting if not name.startswith((".committed.", ".incarnation."))] == []
    assert harness.open_transactions(job) == []


def by_account(rows: list[tuple[str, int, int]]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for account, _, number in rows:
        found[account].append(number)
    return found


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("script", "workers", "rows", "sender"),
    [
        pytest.param([f"{point}=kill" for point in SENDING[2:5]], 1, 1, "http", id="few"),
        campaign([f"{point}=kill" for point in SENDING], 1, 1, "http", named="sending-1"),
        campaign([f"{point}=kill" for point in SENDING], 3, 5, "http", named="sending-3"),
        campaign(AGAIN, 1, 1, "http", named="again-1"),
        campaign(AGAIN, 3, 1, "http", named="again-3"),
        campaign([f"{point}=kill" for point in SENDING], 3, 5, "own", named="own-sending-3"),
    ],
)
def test_a_receiver_that_honours_keys_has_each_row_once_whenever_the_job_dies(
    sending: Callable[..., Job], receiver: Receiver, script: list[str], workers: int, rows: int, sender: str
) -> None:
    """``sender``: of HttpSink, or one that the app brings along for IdempotentSink."""
    job = sending(KAFKA_EOS_PARALLELISM=workers, TEST_ROWS=rows, TEST_SENDER=sender)

    job.run(";".join(script))

    check(job, receiver)
    assert max(receiver.asked.values()) > 1, "nothing was sent twice, so nothing is shown"


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(("workers", "rows"), [(1, 1), (3, 5)])
def test_receivers_that_fail_now_and_then_have_each_row_once_whoever_dies(
    sending: Callable[..., Job], receiver: Receiver, workers: int, rows: int
) -> None:
    """One of HttpSink, one of IdempotentSink. They answer 500, reset connections and say nothing, taken or not."""
    with receiving() as other:
        receiver.script, other.script = flaky(workers), flaky(workers + 10)
        job = sending(
            KAFKA_EOS_PARALLELISM=workers,
            TEST_ROWS=rows,
            TEST_SENDER="both",
            TEST_OTHER_URL=other.url,
            TEST_TIMEOUT=0.5,
        )
        job.run(";".join(f"{point}=kill" for point in FLAKY))

        check(job, receiver)
        check(job, other)
        if workers == 1:  # once is enough: it takes longer than all the rest
            audit_passes(job)


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_receiver_that_is_in_trouble_holds_the_job_and_loses_nothing(
    sending: Callable[..., Job], receiver: Receiver
) -> None:
    receiver.script = lambda key, body: (503, {})
    job = sending()
    with running(job) as run:
        run.until(lambda: "responded 503" in run.log, "wait for the receiver")
        receiver.script = lambda key, body: None
        run.until_all_committed()
        run.drain()

    check(job, receiver)


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_row_that_the_receiver_will_never_take_stops_the_job_which_goes_on_when_it_does(
    sending: Callable[..., Job], receiver: Receiver
) -> None:
    receiver.script = lambda key, body: (422, {}) if body["id"] == 40 else None
    job = sending()
    with running(job) as run:
        assert run.ended() == 2, run.log[-3000:]
        assert "refuses a row: 422" in run.log and "Nothing is lost" in run.log
    receiver.script = lambda key, body: None

    job.run()

    check(job, receiver)


@pytest.mark.chaos
def test_a_receiver_that_ends_its_thread_ends_the_job_and_not_without_a_word(sending: Callable[..., Job]) -> None:
    with running(sending(TEST_SENDER="exits")) as run:
        assert run.ended() == 1, run.log[-3000:]
    assert "SystemExit enough, raised in a background thread" in run.log
