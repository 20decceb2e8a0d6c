"""How many failures of the environment in a row end a job: epochs that tell nothing do not begin the count again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.core.errors import EnvironmentFailed, Fatal, LoginRefused
from kafka_eos.core.json_values import Positions
from kafka_eos.testing import ListSource, MemorySink


def test_the_time_of_a_restore_does_not_tell_that_the_environment_works_again(tmp_path: Path) -> None:
    pipeline = Pipeline("orders")
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    given = {"max_environment_failures": 2, "restart_backoff_initial": 0.01, "restart_backoff_max": 0.1}
    settings = Settings.resolve(code={"checkpoint_dir": tmp_path, **given})
    attempts: list[int] = []

    def attempt(coordinator: Coordinator) -> None:
        attempts.append(len(attempts))
        if len(attempts) > 4:
            return
        time.sleep(0.2)  # it restores its state
        master.emit("running")
        master.emit("decided", read={}, records_by_sink={})
        master.emit("committed")
        raise EnvironmentFailed("the service hangs")

    master = JobMaster(pipeline.plan(), settings, (), attempt, release=lambda error: None)

    with pytest.raises(Fatal, match="3 failures in a row without a committed checkpoint that did something"):
        master.run()


class _Locked(ListSource):
    """Lets nobody look up its splits."""

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        raise LoginRefused("the password is wrong")


def test_a_job_that_no_source_has_let_in_ends_at_once(tmp_path: Path) -> None:
    pipeline = Pipeline("orders")
    pipeline.source(_Locked([1]), name="numbers").sink(MemorySink(), name="out")
    settings = Settings.resolve(code={"checkpoint_dir": tmp_path, "restart_backoff_initial": 0.01})
    attempts: list[Coordinator] = []

    def attempt(coordinator: Coordinator) -> None:
        attempts.append(coordinator)
        coordinator.recovery.restore()

    master = JobMaster(pipeline.plan(), settings, (), attempt, release=lambda error: None)

    with pytest.raises(LoginRefused, match="the password is wrong"):
        master.run()
    assert len(attempts) == 1


def test_a_job_that_was_let_in_once_tries_again(tmp_path: Path) -> None:
    pipeline = Pipeline("orders")
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    settings = Settings.resolve(code={"checkpoint_dir": tmp_path, "restart_backoff_initial": 0.01})
    attempts: list[Coordinator] = []

    def attempt(coordinator: Coordinator) -> None:
        attempts.append(coordinator)
        coordinator.recovery.restore()
        master.on_recovered()
        if len(attempts) == 1:
            raise LoginRefused("the password was changed")

    master = JobMaster(pipeline.plan(), settings, (), attempt, release=lambda error: None)
    master.run()

    assert len(attempts) == 2
