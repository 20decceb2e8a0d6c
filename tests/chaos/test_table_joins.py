"""Tables under fault: no row is joined before the table is whole, whoever dies, and with any number of workers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_eos.cli.savepoints import write_offline_savepoint
from kafka_eos.config.settings import Settings
from kafka_eos.savepoints import Snapshot
from tests.chaos.harness import ACCOUNTS, Job, create_topic, feed, open_transactions, read
from tests.chaos.running import running
from tests.chaos.storm import Storm
from tests.chaos.test_windows import name_of
from tests.producers import in_order
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]
Found = tuple[str, int, int]
"""Account, id of the payment, version; -1 for none."""

PAYMENTS = 300
VERSIONS = 80
EVERY = 3
"""Milliseconds between two versions, where the time of a payment is its number."""
BASE = time.time_ns() // 1_000_000
THEN = 999
"""What is as of a time has versions from here on."""
HALF_READ = "commit.before=kill@3"
"""The supervisor dies when some of the table is in a decided epoch."""


@pytest.mark.chaos
@pytest.mark.campaign
@pytest.mark.parametrize(("mode", "backend"), [("unaligned", "rocksdb"), ("aligned", "rocksdb"), ("aligned", "memory")])
def test_rows_wait_for_the_whole_table_through_deaths_and_other_numbers_of_workers(
    new_job: NewJob, mode: str, backend: str
) -> None:
    job, table = begun(
        new_job, KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_BACKEND=backend, KAFKA_EOS_PARALLELISM=3, TEST_BASE=BASE
    )
    with running(job, HALF_READ) as run:
        assert run.ended() == -9
    storm = Storm(job, PAYMENTS, [HALF_READ])
    # Where bootstrap.done acts, the table was not whole at any of the deaths before it.
    with storm.through("worker.ack.before=kill@2", "bootstrap.done=kill", KAFKA_EOS_PARALLELISM=2):
        storm.feed()
    job.environment["KAFKA_EOS_PARALLELISM"] = "1"
    job.run()
    wanted = Counter(due(range(storm.fed), table))

    change = {f"a{n}": None if n % 2 else VERSIONS for n in range(5)}
    upsert(job, [change], VERSIONS + 1)
    job.run()
    feed(job.bootstrap, job.input, range(storm.fed, storm.fed + 100))
    job.run()
    wanted += Counter(due(range(storm.fed, storm.fed + 100), {**table, **change}))

    messages = read(job.bootstrap, job.output)
    rows = [row(message) for message in messages]
    found = Counter(each for each in rows if each[2] < THEN)
    assert (found - wanted, wanted - found) == (Counter(), Counter())
    # Event time comes to the last version of the table at least.
    then = Counter(each for each in rows if each[2] >= THEN and each[1] < VERSIONS * EVERY - EVERY)
    assert then == Counter(due_then(range(VERSIONS * EVERY - EVERY)))
    assert max(Counter(map(name_of, messages)).values()) == 1
    assert not open_transactions(job)
    stored = {key: said["version"] for key, said in Snapshot.open(job.checkpoints / job.name).read("rated", "table")}
    assert stored == {key: version for key, version in {**table, **change}.items() if version is not None}


@pytest.mark.chaos
@pytest.mark.campaign
def test_a_savepoint_of_a_table_that_is_half_read_goes_on_there(new_job: NewJob) -> None:
    job, table = begun(new_job, KAFKA_EOS_PARALLELISM=2)
    with running(job) as run:
        run.until(lambda: run.count("committed") >= 2, "commit some of the table")
        run.drain()
    assert not read(job.bootstrap, job.output), "the table was whole before the savepoint"
    savepoint = job.directory / "savepoint"
    write_offline_savepoint(Settings.resolve(code={"checkpoint_dir": job.checkpoints}), job.name, savepoint)
    job.environment |= {"TEST_CHECKPOINTS": str(job.directory / "second"), "KAFKA_EOS_PARALLELISM": "1"}
    # What has come to the table since is newer than its end.
    upsert(job, [{"b0": 1}])

    with running(job, "", "--from", str(savepoint), "--until-caught-up") as run:
        assert run.ended() == 0, run.log[-6000:]

    assert Counter(map(row, read(job.bootstrap, job.output))) == Counter(due(range(PAYMENTS), table))


@pytest.mark.chaos
@pytest.mark.campaign
def test_a_table_that_a_job_did_not_have_is_read_before_the_stream_goes_on(new_job: NewJob) -> None:
    job, table = begun(new_job, TEST_WITHOUT="1")
    job.run()
    assert len(read(job.bootstrap, job.output)) == PAYMENTS
    feed(job.bootstrap, job.input, range(PAYMENTS, 2 * PAYMENTS))
    del job.environment["TEST_WITHOUT"]

    job.run()

    found = Counter(map(row, read(job.bootstrap, job.output)))
    found -= Counter((f"a{n % ACCOUNTS}", n, -2) for n in range(PAYMENTS))
    assert found == Counter(due(range(PAYMENTS, 2 * PAYMENTS), table))


@pytest.mark.chaos
@pytest.mark.campaign
def test_a_table_that_transactions_write_is_whole_at_its_last_committed_row(new_job: NewJob) -> None:
    """Behind that are control records, an aborted transaction and an open one; a partition is empty."""
    job = new_job(PAYMENTS, "lookups.py", TEST_PAUSE=0, KAFKA_EOS_PARALLELISM=2)
    job.environment["TEST_TABLE"] = f"{job.name}-table"
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    (made,) = admin.create_topics([NewTopic(job.environment["TEST_TABLE"], 3, config=compacted)]).values()
    made.result(PATIENCE)
    table: dict[str, int | None] = {f"a{n}": None if n > 9 else 1 for n in range(15)}
    for version in range(2):
        transact(job, {f"a{n}": version for n in range(15)}).commit_transaction()
    transact(job, {key: None for key, version in table.items() if version is None}).commit_transaction()
    transact(job, {f"a{n}": 77 for n in range(20)}).abort_transaction()
    later = transact(job, {f"a{n}": 88 for n in range(5)})

    job.run()
    wanted = Counter(due(range(PAYMENTS), table))
    assert Counter(map(row, read(job.bootstrap, job.output))) == wanted

    later.commit_transaction()
    job.run()
    feed(job.bootstrap, job.input, range(PAYMENTS, PAYMENTS + 100))
    job.run()
    wanted += Counter(due(range(PAYMENTS, PAYMENTS + 100), {**table, **{f"a{n}": 88 for n in range(5)}}))
    assert Counter(map(row, read(job.bootstrap, job.output))) == wanted


def transact(job: Job, change: Mapping[str, int | None]) -> Producer:
    """A transaction with these rows, of keys of two partitions, that is still open."""
    producer = Producer({"bootstrap.servers": job.bootstrap, "transactional.id": f"{job.name}-{uuid4().hex}"})
    producer.init_transactions()
    producer.begin_transaction()
    for key, version in change.items():
        value = None if version is None else json.dumps({"version": version})
        producer.produce(job.environment["TEST_TABLE"], value, key=key, partition=int(key[1:]) % 2)
    assert producer.flush(PATIENCE) == 0
    return producer


def begun(new_job: NewJob, **environment: Any) -> tuple[Job, Mapping[str, int | None]]:
    """A job with payments, and a table that some versions of each account have come to; and what it says in the end."""
    job = new_job(PAYMENTS, "lookups.py", TEST_PAUSE=0.004, **environment)
    job.environment["TEST_TABLE"] = f"{job.name}-table"
    create_topic(job.bootstrap, job.environment["TEST_TABLE"], 3)
    versions: list[Mapping[str, int | None]] = [{f"a{n}": v for n in range(15)} for v in range(VERSIONS)]
    versions.append({f"a{n}": None for n in range(10, 15)})
    upsert(job, versions)
    return job, {key: version for changes in versions for key, version in changes.items()}


def upsert(job: Job, changes: list[Mapping[str, int | None]], first: int = 0) -> None:
    producer = in_order(job.bootstrap)
    for number, some in enumerate(changes, first):
        for key, version in some.items():
            value = None if version is None else json.dumps({"version": version})
            producer.produce(job.environment["TEST_TABLE"], value, key=key, timestamp=BASE + number * EVERY)
    assert producer.flush(PATIENCE) == 0


def due_then(ids: range) -> Iterator[Found]:
    for n in ids:
        known = n % ACCOUNTS < 15
        yield f"a{n % ACCOUNTS}", n, 1000 + (n // EVERY if known else -1)


def row(message: Any) -> Found:
    found = json.loads(message.value())
    return found["key"], found["id"], found["version"]


def due(ids: range, table: Mapping[str, int | None]) -> Iterator[Found]:
    for n in ids:
        key = f"a{n % ACCOUNTS}"
        version = table.get(key)
        yield key, n, -1 if version is None else version
        if version is not None:
            yield key, n, version
