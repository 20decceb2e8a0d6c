"""A job that fails again and again waits longer each time, also if it commits an epoch in between."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kafka_eos import Pipeline
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.core.errors import ProcessLost
from kafka_eos.testing import ListSource, MemorySink


def pauses_of(directory: Path, reset: float) -> list[object]:
    """What a job tells that fails five times, each time after an epoch that it has committed."""
    pipeline = Pipeline("orders")
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    given = {"restart_backoff_initial": 0.1, "restart_backoff_max": 0.4, "restart_backoff_reset": reset}
    settings = Settings.resolve(code={"checkpoint_dir": directory, **given})
    told: list[object] = []
    attempts: list[int] = []

    def attempt(coordinator: Coordinator) -> None:
        attempts.append(len(attempts))
        if len(attempts) > 5:
            return
        master.emit("running")
        master.emit("decided", read={"numbers": 1}, records_by_sink={"out": 1})
        master.emit("committed")
        raise ProcessLost("the disk is full")

    def observe(event: str, facts: Mapping[str, object]) -> None:
        if event == "backing-off":
            told.append(facts["seconds"])

    master = JobMaster(pipeline.plan(), settings, (observe,), attempt, release=lambda error: None)
    master.run()
    return told


def test_pauses_grow_up_to_their_limit_although_each_attempt_commits(tmp_path: Path) -> None:
    assert pauses_of(tmp_path, reset=600) == [0.1, 0.2, 0.4, 0.4]


def test_a_job_that_ran_for_long_enough_begins_again_at_once(tmp_path: Path) -> None:
    assert pauses_of(tmp_path, reset=0) == []
