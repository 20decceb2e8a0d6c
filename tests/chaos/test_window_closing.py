"""A window that closes for many keys does so in slices, and a barrier may come between two of them. A job that goes on
from there, with any number of workers, says of each key once what its window held.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.runtime.operators.timer_firing import EVENT_STATE
from kafka_eos.runtime.state.schema_evolution import UNFIRED
from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.running import manifests, running
from tests.chaos.test_savepoints import kafka_eos, second_incarnation, trigger
from tests.chaos.test_windows import name_of
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]

KEYS, PARTITIONS = 6000, 3
BASE = int(time.time()) // 1000 * 1_000_000
PAUSE = "0.001"
"""So long takes each result: those of a slice take half a second."""


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("mode", "backend"),
    [("unaligned", "rocksdb"), campaign("aligned", "rocksdb"), campaign("unaligned", "memory")],
)
def test_a_job_is_rescaled_between_two_slices_of_a_window_that_closes(new_job: NewJob, mode: str, backend: str) -> None:
    """First from its checkpoint, to more workers, and then with a savepoint of that, to fewer."""
    job = new_job(0, "closing.py", TEST_BASE=BASE, TEST_KEYS=KEYS, TEST_BACKEND=backend, KAFKA_EOS_CHECKPOINT_MODE=mode)
    fill(job, 0)
    fill(job, 1)
    halfway(job, workers=2, windows=range(1))
    halfway(job, workers=3, windows=range(1))
    fill(job, 2)
    halfway(job, workers=3, windows=range(2))
    assert kafka_eos(job, "doctor", str(job.app), "--resolve")[0] == 0
    savepoint = trigger(job, job.directory / "savepoint")
    second = second_incarnation(job, savepoint, TEST_PAUSE="0", KAFKA_EOS_PARALLELISM="2")

    second.run()

    messages = read(job.bootstrap, job.output)
    found = Counter(tuple(json.loads(message.value()).values()) for message in messages)
    assert found == Counter({(key, window, 2): 1 for window in range(2) for key in range(KEYS)})
    assert max(Counter(map(name_of, messages)).values()) == 1
    assert not open_transactions(second)


def fill(job: Job, window: int) -> None:
    """Two payments of each account in a window; when those of all partitions are read, the window before is over."""
    producer = in_order(job.bootstrap)
    for turn in range(2):
        for key in range(KEYS):
            partition = (key + turn) % PARTITIONS
            producer.produce(job.input, b'{"id": %d}' % (window * KEYS + key), partition=partition)
            producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def halfway(job: Job, workers: int, windows: range) -> None:
    """Killed when the newest checkpoint has some of the results of the last window, and some not."""
    job.environment |= {"KAFKA_EOS_PARALLELISM": str(workers), "TEST_PAUSE": PAUSE}
    before, over = len(read(job.bootstrap, job.output)), windows[-1] * KEYS
    with running(job) as run:
        run.freeze_when(
            lambda: max(before, over) < committed(job) < over + KEYS and is_amid(job), "close a window half-way"
        )


def committed(job: Job) -> int:
    """Results that are in committed epochs, as the job tells."""
    return sum(sum(event["records"].values()) for event in job.history() if event["event"] == "committed")


def is_amid(job: Job) -> bool:
    """Was the newest checkpoint taken while a window closed?"""
    newest = manifests(job)[-1:]
    states: list[Any] = [state for manifest in newest for handle in manifest.states for state in handle.states]
    return any(state["name"] == EVENT_STATE and UNFIRED in state for state in states)
