"""Timers under fault: every window fires once, with all of its payments, whoever dies, with any number of workers."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.coordination.status_file import read_status
from kafka_eos.core.provenance import HEADER, PROCESSING_TIMERS, TIMERS, parse_provenance
from kafka_eos.savepoints import Snapshot
from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.running import running
from tests.chaos.storm import PAYMENTS, Steps, Storm, in_storms, rescaled
from tests.chaos.test_metrics import address, scrape
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]
Fired = tuple[str, int, int, int]
"""Key, end of the window, total, count."""

SIZE = 50
"""Of the app's windows."""
BASE = int(time.time()) * 1000
"""Where event time begins."""
STEPS: Steps = (
    (1, ("commit.before=kill@2", "timers.fired=kill@2", "sink.seal=kill@3")),
    (3, ("align.complete=kill@4", "recovery.opened=kill", "snapshot.uploaded=kill@5", "timers.fired=kill@3")),
    (2, ("worker.ack.after=kill@3", "manifest.published=kill@2")),
)
FEW: Steps = ((1, ("commit.before=kill@2",)), (2, ("timers.fired=kill@3", "snapshot.uploaded=kill@3")))


@pytest.mark.campaign
@pytest.mark.chaos
@in_storms(FEW, STEPS)
def test_windows_fire_once_in_a_storm_with_other_numbers_of_workers(
    new_job: NewJob, mode: str, backend: str, steps: Steps
) -> None:
    job = new_job(
        PAYMENTS,
        "windows.py",
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        TEST_BACKEND=backend,
        TEST_BASE=BASE,
        TEST_PAUSE=0.0002,
        TEST_PAUSE_AFTER=0.001,
    )
    rescaled(job, steps)
    job.environment["TEST_PAUSE_AFTER"] = "0"
    job.run()

    check(job)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("backend", "steps"),
    [
        pytest.param("rocksdb", FEW, id="few"),
        campaign("rocksdb", STEPS, named="rocksdb"),
        campaign("memory", STEPS, named="memory"),
    ],
)
def test_what_waits_for_the_clock_comes_once_in_a_storm_with_other_numbers_of_workers(
    new_job: NewJob, backend: str, steps: Steps
) -> None:
    job = new_job(PAYMENTS, "clocked.py", TEST_BACKEND=backend, TEST_PAUSE=0.0002)
    rescaled(job, steps)
    _until_all_is_out(job)

    messages = read(job.bootstrap, job.output)
    names = Counter(parse_provenance(dict(message.headers())[HEADER].decode()) for message in messages)
    assert Counter(ids(messages)) == Counter(ids(read(job.bootstrap, job.input)))
    assert max(names.values()) == 1
    assert {name.topic for name in names} == {PROCESSING_TIMERS}
    assert not open_transactions(job)


@pytest.mark.chaos
@pytest.mark.campaign
def test_at_least_once_no_timer_is_lost(new_job: NewJob) -> None:
    """Rows may pass barriers then, and are processed again: a payment may come twice, and none stays away."""
    job = new_job(PAYMENTS, "clocked.py", KAFKA_EOS_CHECKPOINT_MODE="at-least-once", TEST_PAUSE=0.0002)
    storm = Storm(job, PAYMENTS)
    with storm.through("timers.fired=kill@2", "align.complete=kill@3", KAFKA_EOS_PARALLELISM=2):
        storm.feed(500)
    _until_all_is_out(job)

    assert set(ids(read(job.bootstrap, job.output))) == set(ids(read(job.bootstrap, job.input)))


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("workers", [campaign(1), 3])
def test_a_timer_of_the_clock_fires_though_nothing_comes_also_after_a_stop(new_job: NewJob, workers: int) -> None:
    """The bounded run ends with all input processed, before the timers are due or not: it does not wait for them."""
    job = new_job(30, "clocked.py", TEST_AFTER=3, KAFKA_EOS_PARALLELISM=workers)
    job.run()

    _until_all_is_out(job)


def _until_all_is_out(job: Job) -> None:
    """Run until no payment waits for the clock any more."""
    due = set(ids(read(job.bootstrap, job.input)))
    with running(job) as run:
        run.until(lambda: set(ids(read(job.bootstrap, job.output))) == due, "hand on what waits for the clock")
        run.drain()


def ids(messages: list[Any]) -> list[int]:
    return [json.loads(message.value())["id"] for message in messages]


@pytest.mark.campaign
@pytest.mark.chaos
def test_a_silent_partition_holds_back_a_job_that_waits_for_it_and_no_other(new_job: NewJob) -> None:
    """All is in one of three partitions. Who does not wait fires while the job runs; who waits, not even at its end."""
    job = new_job(0, "windows.py", TEST_BASE=BASE, KAFKA_EOS_PARALLELISM=2)
    _feed_one_account(job, 400)
    job.run()
    assert read(job.bootstrap, job.output) == []

    job.environment["TEST_IDLE"] = "0.5"
    with running(job) as run:
        run.until_output()
        run.drain()

    found = Counter(map(row, read(job.bootstrap, job.output)))
    ends_of = [("a0", end) for end in range(SIZE, 400, SIZE)] + [("b0", end) for end in range(SIZE, 400, SIZE)]
    assert found == {(key, end, SIZE, SIZE): 1 for key, end in ends_of}
    shown: Any = read_status(job.checkpoints / job.name)
    decided = shown["last"]["decided"]
    assert list(decided["watermarks"]["payments-timestamps"].values()) == [BASE + 398]
    assert decided["state_bytes_by_operator"].keys() == {"payments-timestamps", "windows", "branches"}
    assert sum(decided["state_bytes_by_operator"].values()) == decided["state_bytes"]
    stored = Snapshot.open(job.checkpoints / job.name)
    assert decided["pending_timers"] == {name: timers_in(stored, name) for name in ("windows", "branches")}
    assert decided["pending_timers"]["windows"] > 0
    counted = re.findall(r"([\d,]+) pending timers? \(", job.log.read_text())
    assert int(counted[-1]) == sum(decided["pending_timers"].values())


def timers_in(stored: Snapshot, operator: str) -> int:
    return sum(1 for _ in stored.read(operator, "event-timers"))


@pytest.mark.campaign
@pytest.mark.chaos
def test_the_last_windows_close_with_the_clock_once_though_the_worker_is_killed_as_they_do(new_job: NewJob) -> None:
    job = new_job(PAYMENTS, "windows.py", TEST_BASE=BASE, TEST_SILENCE=1, KAFKA_EOS_PARALLELISM=2)
    """What the function counts is shown, and does not fall with the restart."""
    wanted = Counter(due(read(job.bootstrap, job.input), until=PAYMENTS + 2 * SIZE))

    with running(job, "timers.fired=kill@2", "--http", "127.0.0.1:0") as run:
        url = address(run)
        paid = run.until(
            lambda: scrape(url).get(("kafka_eos_user_counter_total", "paid", "windows")), "count what is paid"
        )
        run.until(lambda: len(read(job.bootstrap, job.output)) >= wanted.total(), "close the last windows")
        assert scrape(url)["kafka_eos_user_counter_total", "paid", "windows"] >= paid > 0
        run.drain()

    check(job, until=PAYMENTS + 2 * SIZE)
    assert job.fired == ["timers.fired"]
    assert wanted.total() > len(due(read(job.bootstrap, job.input)))


def _feed_one_account(job: Job, payments: int) -> None:
    producer = in_order(job.bootstrap)
    for n in range(payments):
        producer.produce(job.input, json.dumps({"id": n, "account": "a0", "amount": 1}).encode(), key="a0")
    assert producer.flush(PATIENCE) == 0


def check(job: Job, until: int | None = None) -> None:
    messages = read(job.bootstrap, job.output)
    found = Counter(row(message) for message in messages)
    names = Counter(parse_provenance(dict(message.headers())[HEADER].decode()) for message in messages)

    assert found == Counter(due(read(job.bootstrap, job.input), until))
    assert max(names.values()) == 1
    assert {name.topic for name in names} == {TIMERS}
    assert not open_transactions(job)


def row(message: Any) -> Fired:
    said = json.loads(message.value())
    return said["key"], said["end"] - BASE, said["total"], said["count"]


def due(payments: list[Any], until: int | None = None) -> list[Fired]:
    """Every window that event time has come to the end of: at the end of the input, or ``until`` then."""
    newest: dict[int, int] = defaultdict(int)
    sums: dict[tuple[str, int], list[int]] = defaultdict(list)
    branches: dict[tuple[str, int], list[int]] = defaultdict(list)
    for message in payments:
        payment = json.loads(message.value())
        newest[message.partition()] = max(newest[message.partition()], payment["id"])
        if payment["amount"] > 0:
            sums[payment["account"], (payment["id"] // SIZE + 1) * SIZE].append(payment["amount"])
    watermark = min(newest.values()) - 1 if until is None else until
    for (account, end), amounts in sums.items():
        if end - 1 <= watermark:
            branches[f"b{int(account[1:]) % 4}", end] += amounts
    first = [(key, end, sum(each), len(each)) for (key, end), each in sums.items() if end - 1 <= watermark]
    return first + [(key, end, sum(each), len(each)) for (key, end), each in branches.items() if end <= watermark]
