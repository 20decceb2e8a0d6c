"""Windows of rows with a time to live, whoever dies, with any number of workers, behind a savepoint: each row is in the
windows that plain Python puts it in, and of what has expired nothing is left.

Payments come in generations of one moment each, and all of one are committed before the next one is written: so which
keys have expired depends on no order of partitions.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.chaos.harness import ACCOUNTS, Job, open_transactions, read
from tests.chaos.soak import audit
from tests.chaos.test_savepoints import kafka_eos, second_incarnation, trigger
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]
Found = tuple[str, str, int, int, tuple[int, ...]]
"""Kind, account, start and end of the window, ids of its payments."""

SECONDS = 5
MOMENTS = (0, 2, 22, 24, 44)
"""When the payments of each generation are, in seconds: two of them are together, and the next ones far behind."""
FEW = 8
"""Accounts that have payments in the last generation."""
BEGIN = (int(time.time()) - 1800) * 1000


@pytest.mark.chaos
@pytest.mark.parametrize("backend", [campaign("rocksdb"), campaign("memory")])
def test_rows_that_expire_are_in_the_windows_that_plain_python_puts_them_in(new_job: NewJob, backend: str) -> None:
    job = new_job(0, "expiring_windows.py", TEST_BACKEND=backend, TEST_SECONDS=SECONDS, TEST_PAUSE=0.003)
    _run(job, 0, 1, "commit.before=kill@2;sink.seal=kill@2")
    _run(job, 1, 3, "align.complete=kill@3;snapshot.uploaded=kill@4;recovery.opened=kill")
    assert audit(job).startswith(("PASS", "PARTIAL"))
    second = second_incarnation(job, trigger(job, job.directory / "savepoint"))
    _run(second, 2, 2, "manifest.published=kill@2;worker.ack.after=kill@2")
    _run(second, 3, 2, "commit.after=kill@2")
    _run(second, 4, 3, "")

    payments = read(second.bootstrap, second.input)
    assert Counter(map(_row, read(second.bootstrap, second.output))) == Counter(_due(payments))
    assert audit(second).startswith(("PASS", "PARTIAL"))
    assert not open_transactions(second)
    held = _read_offline(second)
    alive = {account: runs[-1] for account, runs in _runs(payments).items() if int(account[1:]) < FEW}
    assert {account: tuple(ids) for account, (_, (ids,)) in held["ever"].items()} == alive
    assert {account: number for account, (number, _) in held["threes"].items()} == {
        account: rest for account, run in alive.items() if (rest := len(run) % 3)
    }


def _run(job: Job, generation: int, workers: int, faults: str) -> None:
    """Write a generation, and let the job read all of it under ``faults``."""
    (job.directory / "failpoints.log").unlink(missing_ok=True)
    chance, moment = Random(generation), BEGIN + MOMENTS[generation] * 1000
    accounts = ACCOUNTS if moment < BEGIN + MOMENTS[-1] * 1000 else FEW
    producer = in_order(job.bootstrap)
    for n in range(generation * 1000, generation * 1000 + 400):
        account = f"a{chance.randrange(accounts)}"
        payment = json.dumps({"id": n, "account": account}).encode()
        producer.produce(job.input, payment, key=account, timestamp=moment + chance.randrange(500))
    assert producer.flush(PATIENCE) == 0
    job.environment["KAFKA_EOS_PARALLELISM"] = str(workers)
    job.run(faults)


def _row(message: Any) -> Found:
    said = json.loads(message.value())
    return said["kind"], said["account"], said["start"], said["end"], tuple(said["ids"])


def _runs(payments: list[Any]) -> Mapping[str, list[tuple[int, ...]]]:
    """Of each account the ids of payments that no expiry parts."""
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    moments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for message in sorted(payments, key=lambda each: (each.partition(), each.offset())):
        said = json.loads(message.value())
        moments[said["account"]].append((MOMENTS[said["id"] // 1000], said["id"]))
    for account, mine in moments.items():
        run = [mine[0][1]]
        for (before, _), (at, number) in pairwise(mine):
            if at - before >= SECONDS:
                found[account].append(tuple(run))
                run = []
            run.append(number)
        found[account].append(tuple(run))
    return found


def _due(payments: list[Any]) -> Iterator[Found]:
    for account, runs in _runs(payments).items():
        whole = [number for run in runs for number in run]
        yield from (("hour", account, 0, 4, tuple(whole[n - 4 : n])) for n in range(4, len(whole) + 1, 4))
        for run in runs:
            yield from (("threes", account, 0, 3, run[n - 3 : n]) for n in range(3, len(run) + 1, 3))
            for n in range(2, len(run) + 1, 2):
                yield "sliding", account, max(0, n - 3), n, run[max(0, n - 3) : n]
                yield "ever", account, 0, n, run[:n]


def _read_offline(job: Job) -> Mapping[str, Mapping[str, tuple[int, list[Any]]]]:
    """By operator and account: the number of rows, and what the panes hold."""
    found: dict[str, dict[str, tuple[int, list[Any]]]] = {}
    for operator in ("threes", "ever"):
        code, out, shown = kafka_eos(job, "state", "read", str(job.checkpoints / job.name), "--operator", operator)
        assert code == 0, shown
        for line in map(json.loads, out.splitlines()):
            held = line["value"]
            panes = [pane["value"] for pane in held["accumulator"]]
            found.setdefault(operator, {})[line["key"]] = held["updates"], panes
    return found
