"""What shows a job never ends it: whatever an observer raises is said once, counted and logged, and the job goes on."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.coordination.status_file import Observer, Observers, read_status
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.testing import ListSource, MemorySink
from tests.waiting import PATIENCE, eventually

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
            master.emit("progress", read={}, written={}, lag=0)

    observers = (page, *others, lambda event, facts: heard.append((event, facts)))
    master = JobMaster(pipeline.plan(), settings, observers, attempt, release=lambda error: None)
    master.run()
    return heard


@pytest.mark.parametrize(
    ("make", "text", "logged"),
    [
        (lambda: KeyError("rate"), "Page failed on the event 'progress': KeyError: 'rate'. The job continues", 2),
        (
            lambda: OSError(errno.ENOSPC, "disk full"),
            "Page cannot be written: [Errno 28] disk full. The job continues",
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
    observed = MetricsObserver(JOB, "1")
    heard = run(tmp_path, Page(make()), observed)

    told = [facts for event, facts in heard if event == "observer-failed"]
    assert len(told) == 2 and told[0]["text"].startswith(text)
    assert [event for event, _ in heard].count("progress") == 4 and heard[-1][0] == "stopped"
    with observed.samples() as samples:
        assert samples.value("observer_failures", "Page") == 2
    assert len([record for record in caplog.records if record.exc_info]) == logged
    status = read_status(tmp_path / JOB)
    assert status is not None and status["last"]["observer-failed"]["observer"] == "Page"  # type: ignore[index]


def test_two_that_fail_say_it_of_each_other_and_no_more(tmp_path: Path) -> None:
    class Deaf(Page):
        """Fails at all that it hears."""

        def __call__(self, event: str, facts: Mapping[str, object]) -> None:
            raise self.error

    heard = run(tmp_path, Page(ValueError("one")), Deaf(ValueError("two")))

    told = [facts["observer"] for event, facts in heard if event == "observer-failed"]
    assert told.count("Deaf") == 1 and told.count("Page") == 2


class Stuck:
    """Does not come back from its first ``progress`` until it is let go."""

    def __init__(self) -> None:
        self.let_go, self.heard = threading.Event(), list[str]()

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "progress":
            assert self.let_go.wait(PATIENCE)
        self.heard.append(event)


def test_one_that_does_not_come_back_is_waited_for_once_and_hears_the_rest_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, told = Stuck(), list[tuple[str, Mapping[str, object]]]()
    observed = MetricsObserver(JOB, "1")
    with Observers((stuck, observed, lambda event, facts: told.append((event, facts))), 0.05, backlog=3) as observers:
        for event in ("started", "progress", "one", "two", "three", "four"):
            observers.notify(event, {"read": {}, "written": {}, "lag": 0})
        failures = [facts for event, facts in told if event == "observer-failed"]
        assert [event for event, _ in told if event != "observer-failed"] == [
            "started", "progress", "one", "two", "three", "four",
        ]  # fmt: skip
        with observed.samples() as samples:
            assert samples.value("observer_failures", "Stuck") == 1
        stuck.let_go.set()
        eventually(lambda: "Stuck has returned; it missed 1 events" in caplog.text, "it has heard what was kept")
        observers.notify("five", {})

    assert len(failures) == 1 and str(failures[0]["text"]).startswith(
        "Stuck has not returned from the event 'progress'"
    )
    assert stuck.heard == ["started", "progress", "one", "two", "three", "five"]


def test_one_that_never_comes_back_does_not_keep_a_job_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck()
    with Observers((stuck,), 0.05) as observers:
        observers.notify("progress", {})
    stuck.let_go.set()

    assert "Stuck has not returned, and does not show how the job ended" in caplog.text


def test_one_that_wants_the_process_to_end_is_told_as_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    def leave(event: str, facts: Mapping[str, object]) -> None:
        raise SystemExit(3)

    with Observers((leave,)) as observers:
        observers.notify("started", {})
        observers.notify("stopped", {})

    assert "function failed on the event 'started': RuntimeError: SystemExit 3" in caplog.text
