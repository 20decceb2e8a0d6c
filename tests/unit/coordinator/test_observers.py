"""What shows a job never ends it: whatever an observer raises is said once, counted and logged, and the job goes on."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.coordinator.coordinator import Coordinator
from kafka_eos.coordinator.job_master import JobMaster
from kafka_eos.coordinator.status import Observer, read_status
from kafka_eos.metrics.observed import Observed
from kafka_eos.settings import Settings
from kafka_eos.testing import ListSource, MemorySink

JOB = "orders"


class Page:
    """Fails at the events that are ``broken`` at the moment."""

    def __init__(self, error: Exception) -> None:
        self.error, self.broken = error, True

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if self.broken and event == "progress":
            raise self.error


def run(root: Path, page: Page, *others: Observer) -> list[tuple[str, Any]]:
    """All events that the last observer has heard of a job whose page fails twice, and once more later."""
    heard: list[tuple[str, Any]] = []
    pipeline = Pipeline(JOB)
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    settings = Settings.resolve(code={"checkpoint_dir": root})

    def attempt(coordinator: Coordinator) -> None:
        for broken in (True, True, False, True):
            page.broken = broken
            master.observe("progress", read={}, written={}, lag=0)

    observers = (page, *others, lambda event, facts: heard.append((event, facts)))
    master = JobMaster(pipeline.plan(), settings, observers, attempt, release=lambda error: None)
    master.run()
    return heard


@pytest.mark.parametrize(
    ("make", "text", "logged"),
    [
        (lambda: KeyError("rate"), "Page has failed at the event 'progress': KeyError: 'rate'. The job goes on", 2),
        (
            lambda: OSError(errno.ENOSPC, "disk full"),
            "Page cannot be written: [Errno 28] disk full. The job goes on",
            0,
        ),
    ],
)
def test_an_observer_that_fails_is_said_until_it_works_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[], Exception],
    text: str,
    logged: int,
) -> None:
    caplog.set_level(logging.ERROR, "kafka_eos.job")
    observed = Observed(JOB, "1")
    heard = run(tmp_path, Page(make()), observed)

    told = [facts for event, facts in heard if event == "unshown"]
    assert len(told) == 2 and told[0]["text"].startswith(text)
    assert [event for event, _ in heard].count("progress") == 4 and heard[-1][0] == "stopped"
    with observed.samples() as samples:
        assert samples.value("observer_failures", "Page") == 2
    assert len([record for record in caplog.records if record.exc_info]) == logged
    status = read_status(tmp_path / JOB)
    assert status is not None and status["last"]["unshown"]["observer"] == "Page"  # type: ignore[index]


def test_two_that_fail_say_it_of_each_other_and_no_more(tmp_path: Path) -> None:
    class Deaf(Page):
        """Fails at all that it hears."""

        def __call__(self, event: str, facts: Mapping[str, object]) -> None:
            raise self.error

    heard = run(tmp_path, Page(ValueError("one")), Deaf(ValueError("two")))

    told = [facts["observer"] for event, facts in heard if event == "unshown"]
    assert told.count("Deaf") == 1 and told.count("Page") == 2
