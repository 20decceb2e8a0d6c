"""When the systems that a job needs have answered last."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import JobContext
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.coordination.sources import GroupedSources
from kafka_eos.core.errors import ConfigError, Fenced, PartialProgress, Retryable
from kafka_eos.core.ids import Term
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.testing import ListSource
from tests.unit.coordination.noted_job import NotedJob

CTX = JobContext("j", Term(1), {})


class Watched:
    """A monitor, its clock and what it has reported."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[dict[str, Any]] = []
        self.monitor = DependencyMonitor(lambda **facts: self.told.append(facts), lambda: self.now)

    def ask(self, error: Exception | None = None) -> None:
        with self.monitor.watch("kafka://a"):
            if error is not None:
                raise error


def test_a_system_is_silent_from_its_last_answer_on_and_only_changes_are_reported() -> None:
    at = Watched()
    for error in (None, Retryable("refused"), OSError("timed out"), None):
        at.now += 5
        if error is None:
            at.ask()
            at.ask()
        else:
            with pytest.raises(type(error)):
                at.ask(error)

    assert at.told == [
        {"answering": ["kafka://a"], "silent": {}},
        {"answering": [], "silent": {"kafka://a": {"since": 1_005_000, "reason": "refused"}}},
        {"answering": ["kafka://a"], "silent": {}},
    ]


@pytest.mark.parametrize("error", [ConfigError("no"), Fenced("newer"), PartialProgress("half")])
def test_an_error_that_a_server_has_answered_with_is_no_silence(error: Exception) -> None:
    at = Watched()
    with pytest.raises(type(error)):
        at.ask(error)

    assert [facts["silent"] for facts in at.told] in ([], [{}])


def test_a_system_that_never_answered_is_silent_from_the_first_failure_on() -> None:
    at = Watched()
    with pytest.raises(Retryable):
        at.ask(Retryable("refused"))

    assert at.told[0]["silent"]["kafka://a"]["since"] == 1_000_000


class Away(ListSource):
    """A source whose server does not answer."""

    def discover(self, ctx: JobContext, known: Any) -> Any:
        raise Retryable("no broker")


def test_each_search_for_splits_shows_which_servers_answer() -> None:
    at = Watched()
    sources = {"a": ListSource([1], name="a"), "b": Away([1], name="b")}
    GroupedSources(sources, at.monitor).discover(CTX, dict.fromkeys(sources))

    assert at.told[-1] == {
        "answering": ["source 'a'"],
        "silent": {"source 'b'": {"since": 1_000_000, "reason": "no broker"}},
    }


def test_an_idle_epoch_asks_the_sinks_that_have_not_answered_for_a_while(tmp_path: Path) -> None:
    """Their registrations are looked at, so that an idle job learns that a sink is gone, or that it was replaced."""
    at, job = Watched(), NotedJob(tmp_path)
    coordinator = job.coordinator(dependencies=at.monitor)
    coordinator.recovery.restore()

    def idle() -> list[str]:
        job.steps.clear()
        epoch = coordinator.ownership.next_epoch()
        coordinator.epochs.commit(coordinator.epochs.decide(epoch, EpochContents(job.positions, (), ())))
        return [step for step in job.noted() if step.startswith("hold")]

    assert idle() == []
    at.now += 20
    assert idle() == ["hold left", "hold right"]
    assert idle() == []
    assert "memory:left" in at.told[-1]["answering"]


def test_a_store_that_does_not_answer_is_shown(tmp_path: Path) -> None:
    at, job = Watched(), NotedJob(tmp_path)
    coordinator = job.coordinator(dependencies=at.monitor)
    coordinator.recovery.restore()
    terms = job.root / "terms"
    terms.rename(tmp_path / "away")
    terms.write_text("not a directory")
    with pytest.raises(OSError, match="terms"):
        coordinator.ownership.ensure_owner()
    terms.unlink()
    (tmp_path / "away").rename(terms)
    coordinator.ownership.wait_for_answer(
        Retrier(threading.Event(), print), coordinator.ownership.term, OSError("gone")
    )

    store = f"checkpoint store {job.root}"
    assert [store in facts["silent"] for facts in at.told if store in (*facts["silent"], *facts["answering"])][-2:] == [
        True,
        False,
    ]
