"""A supervisor that was replaced clears nothing up at its end: that would replace its successor."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.config.settings import Settings
from kafka_eos.coordination import terms as term
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.core.errors import ConfigError, Fatal, Fenced, RestartFromCheckpoint
from kafka_eos.core.ids import Term
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink

JOB = "orders"


def _ending(root: Path, error: Exception, *, replaced: bool) -> list[str]:
    """The claims after a run that ends with ``error``; if it was ``replaced``, with Fenced."""
    pipeline = Pipeline(JOB)
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    settings = Settings.resolve(code={"checkpoint_dir": root, "tolerated_checkpoint_failures": 0})

    def attempt(coordinator: Coordinator) -> None:
        coordinator.recovery.restore()
        job_master.on_recovered()
        if replaced:
            term.claim(LocalStorage(root / JOB), JOB, Term(0))
        raise error

    job_master = JobMaster(pipeline.plan(), settings, (), attempt, release=lambda error: None)
    with pytest.raises(Fenced if replaced else (type(error), Fatal)):
        job_master.run()
    return [name for name in LocalStorage(root / JOB).list(paths.TERMS) if "claim" in name]


ENDS = [RetryInterrupted("on request"), ConfigError("wrong"), Fatal("worse"), RestartFromCheckpoint("once too often")]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_one_that_was_replaced_takes_no_term(tmp_path: Path, error: Exception) -> None:
    assert len(_ending(tmp_path, error, replaced=True)) == 2, "its own, and its successor's"


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_one_that_was_not_takes_another_to_clear_up(tmp_path: Path, error: Exception) -> None:
    assert len(_ending(tmp_path, error, replaced=False)) == 2
