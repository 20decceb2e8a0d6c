"""Patterns under fault: each match and each timeout comes once, whoever dies, with any number of workers."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos import Pattern
from kafka_eos.savepoints import Snapshot
from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.storm import PAYMENTS, Steps, in_storms, rescaled
from tests.chaos.test_windows import FEW, STEPS, name_of
from tests.unit.runtime.operators.test_patterns import Row, kind, outcomes

NewJob = Callable[..., Job]
Found = tuple[str, str, tuple[int, ...]]
"""Kind, key, ids."""

BASE = int(time.time()) * 1000
GUESSED = Pattern[Row].begin("failed", kind(0)).times(2).followed_by("in", kind(1)).within(seconds=0.1)


@pytest.mark.campaign
@pytest.mark.chaos
@in_storms(FEW, STEPS)
def test_each_match_comes_once_in_a_storm_with_other_numbers_of_workers(
    new_job: NewJob, mode: str, backend: str, steps: Steps
) -> None:
    job = new_job(PAYMENTS, "sequences.py", KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_BACKEND=backend, TEST_BASE=BASE)
    rescaled(job, steps)
    job.run()

    messages = read(job.bootstrap, job.output)
    found, wanted = Counter(map(row, messages)), Counter(due(read(job.bootstrap, job.input)))
    assert {name for name, *_ in wanted} == {"found", "over"}
    assert (found - wanted, wanted - found) == (Counter(), Counter())
    assert max(Counter(map(name_of, messages)).values()) == 1
    assert not open_transactions(job)
    newest = max(json.loads(message.value())["id"] for message in read(job.bootstrap, job.input))
    waiting = dict(Snapshot.open(job.checkpoints / job.name).read("guessed", "rows"))
    assert all(at - BASE > newest - 500 for _, at in waiting)


def row(message: Any) -> Found:
    said = json.loads(message.value())
    return said["kind"], said["key"], tuple(said["ids"])


def due(messages: list[Any]) -> Iterator[Found]:
    """All that event time has come to at the end of the input."""
    newest: dict[int, int] = defaultdict(int)
    rows: list[tuple[Row, Any]] = []
    for message in messages:
        payment = json.loads(message.value())
        newest[message.partition()] = max(newest[message.partition()], payment["id"])
        kind = payment["id"] * 2654435761 % 2**32 // 1431655766
        rows.append(((payment["account"], payment["id"], kind), (message.partition(), message.offset())))
    watermark = min(newest.values()) - 100 - 1
    for time_, sink, (key, *stages) in outcomes(GUESSED, rows):
        if time_ <= watermark:
            yield sink, key, tuple(number for _, values in stages for _, number, _ in values)
