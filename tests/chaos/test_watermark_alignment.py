"""Topics of which one is a day ahead are read together: what waits for the slow one does not grow with the fast one."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kafka_eos.core.provenance import HEADER, parse_provenance
from kafka_eos.savepoints import Snapshot
from tests.chaos.harness import Job, create_topic, feed, open_transactions, read
from tests.chaos.running import running
from tests.chaos.storm import Storm
from tests.marks import campaign

NewJob = Callable[..., Job]
DAY = 86_400_000
END = range(3 * DAY, 3 * DAY + 20)
"""Ids of a last payment of each account, and so of each partition: with them all that was before is over."""
PAYMENTS = 2000
BATCH = 50
"""Of the app."""
DRIFT = 60_000
BASE = int(time.time()) * 1000 - 4 * DAY
Window = tuple[str, int, tuple[int, ...]]


def two_topics(new_job: NewJob, fast: Iterable[range], **environment: object) -> Job:
    job = new_job(0, "together.py", TEST_BASE=BASE, TEST_DRIFT=DRIFT / 1000, **environment)
    job.environment["TEST_FAST"] = f"{job.name}-fast"
    create_topic(job.bootstrap, job.environment["TEST_FAST"], 3)
    for ids in fast:
        feed(job.bootstrap, job.environment["TEST_FAST"], ids)
    return job


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("workers", [campaign(1), 3])
def test_the_fast_topic_waits_and_no_more_of_it_is_open_than_a_batch_of_each_partition(
    new_job: NewJob, workers: int
) -> None:
    job = two_topics(new_job, [range(DAY, DAY + PAYMENTS), END], KAFKA_EOS_PARALLELISM=workers, TEST_PAUSE=0.0005)
    feed(job.bootstrap, job.input, range(PAYMENTS))
    feed(job.bootstrap, job.input, END)
    job.run()

    assert committed(job) == due(job)
    found = [seen for seen in map(Looked, snapshots(job)) if seen.waits]
    assert found, "no checkpoint was taken while one waited"
    assert max(len(seen.ahead) for seen in found) <= 3 * BATCH
    assert max(seen.read_ahead for seen in found) <= BATCH


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("mode", "backend"),
    [("unaligned", "memory"), campaign("aligned", "rocksdb"), campaign("unaligned", "rocksdb")],
)
def test_who_dies_while_topics_wait_for_each_other_loses_nothing_with_any_number_of_workers(
    new_job: NewJob, mode: str, backend: str
) -> None:
    job = two_topics(
        new_job,
        [range(DAY, DAY + 500), END],
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        TEST_IDLE_AFTER=3600,
        TEST_BACKEND=backend,
        TEST_PAUSE=0.0002,
    )
    storm = Storm(job, 0)
    for workers, faults in (
        (2, ("sink.seal=kill@2", "align.complete=kill@4")),
        (1, ("commit.before=kill@2",)),
        (3, ("recovery.opened=kill", "snapshot.uploaded=kill@5")),
    ):
        with storm.through(*faults, KAFKA_EOS_PARALLELISM=workers):
            storm.feed(500)
    seen = [Looked(each) for each in snapshots(job)]
    feed(job.bootstrap, job.input, END)
    job.run()

    assert committed(job) == due(job)
    assert 0 < max(each.read_ahead for each in seen) <= BATCH
    assert not open_transactions(job)


@pytest.mark.chaos
def test_a_topic_that_has_nothing_more_holds_nobody_back_in_a_run_that_goes_on(new_job: NewJob) -> None:
    job = two_topics(new_job, [range(DAY, DAY + PAYMENTS)], KAFKA_EOS_PARALLELISM=2)
    feed(job.bootstrap, job.input, range(100))
    with running(job) as run:
        run.until_all_committed()
        fast = job.environment["TEST_FAST"]
        run.until(lambda: read_up_to(job) >= DAY + PAYMENTS - 1, f"read {fast} to its end")


class Looked:
    """At one checkpoint: how far each topic was, how many records of a fast partition were read, and what was open."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.slow = newest(snapshot, "slow-times")
        self.newest_ahead = max(newest(snapshot, "fast-times").values(), default=-1)
        self.read_ahead = max((int(at["offset"]) for at in snapshot.sources.get("fast", {}).values()), default=0)
        open_ = [ids for _, ids in snapshot.read("windows", "windows")] if holds(snapshot, "windows") else []
        self.ahead = [ids for ids in open_ if ids[0] >= DAY]

    @property
    def waits(self) -> bool:
        """Is the fast topic ahead, and a partition of the slow one not at its end?"""
        return self.newest_ahead >= DAY and min(self.slow.values(), default=0) < min(END)


def snapshots(job: Job) -> list[Snapshot]:
    directory = job.checkpoints / job.name
    epochs = {int(Path(name).name.partition("-")[0]) for name in (directory / "manifests").glob("*.json")}
    return [Snapshot.open(directory, epoch) for epoch in sorted(epochs)]


def holds(snapshot: Snapshot, operator: str) -> bool:
    return operator in snapshot.operators() and bool(snapshot.states(operator))


def newest(snapshot: Snapshot, operator: str) -> dict[str, int]:
    """By partition, the newest event time, as an id."""
    if not holds(snapshot, operator):
        return {}
    return {split: time - BASE for split, time in snapshot.read(operator)}


def read_up_to(job: Job) -> int:
    found = snapshots(job)
    return max(newest(found[-1], "fast-times").values(), default=-1) if found else -1


def committed(job: Job) -> list[Window]:
    messages = read(job.bootstrap, job.output)
    names = {parse_provenance(dict(message.headers())[HEADER].decode()).identity for message in messages}
    assert len(names) == len(messages), "a window has fired twice"
    rows = [json.loads(message.value()) for message in messages]
    return sorted((row["key"], row["start"], tuple(row["ids"])) for row in rows)


def due(job: Job) -> list[Window]:
    """Every window that is over when both topics have been read to their ends."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic in (job.input, job.environment["TEST_FAST"]):
        for message in read(job.bootstrap, topic):
            payment = json.loads(message.value())
            if payment["id"] not in END:
                found[payment["account"], payment["id"] // 50 * 50].append(payment["id"])
    return sorted((account, start, tuple(sorted(ids))) for (account, start), ids in found.items())
