"""Broadcast state under fault: all workers have the same rules, whoever dies, and with any number of workers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kafka_eos.cli.savepoints import write_offline_savepoint
from kafka_eos.config.settings import Settings
from kafka_eos.savepoints import Snapshot
from tests.chaos.harness import ACCOUNTS, Job, create_topic, feed, open_transactions, read
from tests.chaos.running import running
from tests.chaos.storm import Storm
from tests.chaos.test_table_joins import HALF_READ, upsert

NewJob = Callable[..., Job]
Found = tuple[str, int, int, int]
"""Account, id of the payment, version (-1 for none), number of rules; with keys the number of its account's payments"""

OF_KEYS = 1000
"""As in the app."""
PAYMENTS = 300
VERSIONS = 25
KEYS = 15
CHANGES = ((3, "commit.before=kill"), (2, "align.complete=kill@5"))
"""Changes of the rules while payments come: number of workers, and the fault that they meet."""


@pytest.mark.chaos
@pytest.mark.campaign
@pytest.mark.parametrize(
    ("mode", "backend"),
    [("unaligned", "rocksdb"), ("aligned", "rocksdb"), ("unaligned", "memory")],
)
def test_all_workers_have_the_same_rules_through_deaths_and_other_numbers_of_workers(
    new_job: NewJob, mode: str, backend: str
) -> None:
    job, rules = begun(new_job, KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_BACKEND=backend, KAFKA_EOS_PARALLELISM=3)
    with running(job, HALF_READ) as run:
        assert run.ended() == -9
    storm, version = Storm(job, PAYMENTS, [HALF_READ]), VERSIONS
    with storm.through("worker.ack.before=kill@2", KAFKA_EOS_PARALLELISM=2):
        storm.feed()
    # What is not read yet when rules change may meet the newer ones: so all of it is read before.
    job.run()
    known = storm.fed
    # Rules and payments come at once now, so which payment meets which version is chance.
    for workers, fault in CHANGES:
        version += 1
        upsert(job, [{f"a{n}": version for n in range(ACCOUNTS)}], version)
        with storm.through(fault, KAFKA_EOS_PARALLELISM=workers):
            storm.feed()
    job.environment["KAFKA_EOS_PARALLELISM"] = "1"
    job.run()
    changed = {f"a{n}": None if n % 2 else version + 1 for n in range(5)}
    upsert(job, [changed], version + 1)
    job.environment["KAFKA_EOS_PARALLELISM"] = "3"
    job.run()
    last = storm.fed
    feed(job.bootstrap, job.input, range(last, last + 100))
    job.run()
    rules |= {f"a{n}": version for n in range(ACCOUNTS)} | changed

    found = [row(message) for message in read(job.bootstrap, job.output)]
    assert Counter(each[1] for each in found) == dict.fromkeys(range(last + 100), 2)
    in_order(found)
    before = {f"a{n}": VERSIONS - 1 for n in range(KEYS - 5)}
    assert Counter(plain(found, range(known))) == Counter(due(range(known), before))
    assert Counter(plain(found, range(last, last + 100))) == Counter(due(range(last, last + 100), rules))
    assert not open_transactions(job)
    kept = {key: version for key, version in rules.items() if version is not None}
    for operator in ("plain-broadcast", "keyed-broadcast"):
        stored = list(Snapshot.open(job.checkpoints / job.name).read(operator, "rates"))
        assert sorted((key, said["version"]) for key, said in stored) == sorted(kept.items())


@pytest.mark.chaos
@pytest.mark.campaign
def test_a_savepoint_goes_on_with_the_rules_in_another_number_of_workers(new_job: NewJob) -> None:
    job, rules = begun(new_job, KAFKA_EOS_PARALLELISM=2, TEST_PAUSE=0)
    job.run()
    savepoint = job.directory / "savepoint"
    write_offline_savepoint(Settings.resolve(code={"checkpoint_dir": job.checkpoints}), job.name, savepoint)
    job.environment |= {"TEST_CHECKPOINTS": str(job.directory / "second"), "KAFKA_EOS_PARALLELISM": "3"}
    feed(job.bootstrap, job.input, range(PAYMENTS, 2 * PAYMENTS))

    with running(job, "", "--from", str(savepoint), "--until-caught-up") as run:
        assert run.ended() == 0, run.log[-6000:]

    found = [row(message) for message in read(job.bootstrap, job.output)]
    assert Counter(plain(found, range(2 * PAYMENTS))) == Counter(due(range(2 * PAYMENTS), rules))
    in_order(found)


@pytest.mark.chaos
def test_a_function_that_tells_workers_different_things_stops_the_job(new_job: NewJob) -> None:
    job, _ = begun(new_job, KAFKA_EOS_PARALLELISM=2, TEST_PAUSE=0, TEST_ODD=1)

    with running(job, "", "--until-caught-up") as run:
        assert run.ended() not in (0, -9)

    said = " ".join(run.log.split())
    assert "broadcast state 'rates' of operator 'keyed-broadcast' differs between workers" in said
    assert not read(job.bootstrap, job.output)


def begun(new_job: NewJob, **environment: Any) -> tuple[Job, dict[str, int | None]]:
    """A job with payments, and rules that there are some versions of; and what they are in the end."""
    job = new_job(PAYMENTS, "rules.py", **{"TEST_PAUSE": 0.004, **environment})
    job.environment["TEST_TABLE"] = f"{job.name}-table"
    create_topic(job.bootstrap, job.environment["TEST_TABLE"], 3)
    versions: list[Mapping[str, int | None]] = [{f"a{n}": v for n in range(KEYS)} for v in range(VERSIONS)]
    versions.append({f"a{n}": None for n in range(KEYS - 5, KEYS)})
    upsert(job, versions)
    return job, {key: version for changes in versions for key, version in changes.items()}


def row(message: Any) -> Found:
    found = json.loads(message.value())
    return found["key"], found["id"], found["version"], found["rules"]


def plain(found: list[Found], ids: range) -> Iterator[Found]:
    return (each for each in found if each[1] in ids and each[2] < OF_KEYS - 1)


def in_order(found: list[Found]) -> None:
    """Within a key no rule is older than one that was met before, and its payments are counted without a gap."""
    versions, counts = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for key, _, version, count in found:
        if version >= OF_KEYS - 1:
            versions[key].append(version)
            counts[key].append(count)
    # A rule that is taken away is no older one: that happens once, at the end.
    assert all(seen == sorted(seen) for key, seen in versions.items() if key not in ("a1", "a3"))
    assert all(seen == list(range(1, len(seen) + 1)) for seen in counts.values())


def due(ids: range, rules: Mapping[str, int | None]) -> Iterator[Found]:
    there = sum(version is not None for version in rules.values())
    for n in ids:
        version = rules.get(f"a{n % ACCOUNTS}")
        yield f"a{n % ACCOUNTS}", n, -1 if version is None else version, there
