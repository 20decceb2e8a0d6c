"""Input that does not run out: payments are written as a job reads them, until the test has what it waits for.

Rule: a test that waits for something in the middle of the work never counts on how long a backlog lasts. It feeds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException

from tests.chaos.harness import Job, top_up
from tests.chaos.positions import following
from tests.waiting import PATIENCE

AHEAD = 400
"""Payments that wait to be committed, at least. More are written as soon as there are fewer."""
_AT_ONCE = 200
_PAUSE_SECONDS = 0.05


@contextmanager
def feeding(job: Job) -> Iterator[None]:
    """While the block runs there is always more to read. A job that stands still is not fed more than it had."""
    enough = threading.Event()
    failures: list[BaseException] = []
    feeder = threading.Thread(target=_feed, args=(job, enough, failures), name=f"feed {job.name}")
    feeder.start()
    try:
        yield
    finally:
        enough.set()
        feeder.join(PATIENCE)
    assert not feeder.is_alive(), f"{job.input} takes no more input"
    if failures:
        raise failures[0]


def _feed(job: Job, enough: threading.Event, failures: list[BaseException]) -> None:
    try:
        with following(job.bootstrap, job.input, job.name) as positions:
            while not enough.wait(_PAUSE_SECONDS):
                try:
                    waiting = sum(positions.ends().values()) - sum(positions.shown().values())
                    if waiting < AHEAD:
                        top_up(job, _AT_ONCE)
                except KafkaException:
                    continue  # the broker is away, as tests want it now and then; whoever waits has a deadline
    except BaseException as error:  # noqa: BLE001 - raised in the test, where the block ends
        failures.append(error)
