"""What becomes of a request while the job runs: served, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.coordinator import requests
from kafka_eos.coordinator.desk import Desk
from kafka_eos.coordinator.lock import job_lock
from kafka_eos.coordinator.requests import TakeCheckpoint, TakeSavepoint
from kafka_eos.coordinator.savepointing import SavepointWriter
from kafka_eos.errors import ConfigError
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.protocol.checkpoint import Kind

SIX, SEVEN = (EpochId(Epoch(n), Term(3)) for n in (6, 7))
SAVEPOINT = TakeSavepoint(path="/savepoints/one")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def desk(home: Path, storage: LocalStorage) -> Iterator[Desk]:
    """Of a job that runs."""
    writer = SavepointWriter(home, storage)
    with job_lock(home / paths.LOCK, "orders"):
        yield Desk(home, writer)
    writer.close()


@pytest.mark.parametrize("late", [True, False])
def test_whoever_asked_for_an_epoch_that_is_given_up_is_told(desk: Desk, home: Path, late: bool) -> None:
    savepoint, checkpoint = requests.submit(home, SAVEPOINT), requests.submit(home, TakeCheckpoint())
    desk.look(1.0)
    assert desk.wants is Kind.SAVEPOINT
    desk.begun(SEVEN)

    desk.failed(SIX, "another one", late=late)
    assert len(requests.pending(home)) == 2
    desk.failed(SEVEN, "checkpoint 7 was amiss", late=late)

    what_to_do = "longer checkpoint_timeout.*stop APP --savepoint" if late else "Repair that"
    with pytest.raises(ConfigError, match=f"checkpoint 7 was amiss: there is no savepoint.*goes on.*{what_to_do}"):
        requests.wait(home, savepoint, 30)
    with pytest.raises(ConfigError, match="checkpoint 7 was amiss; the job goes on"):
        requests.wait(home, checkpoint, 30)
    desk.look(2.0)
    assert not desk.wants_epoch, "it would be tried for ever"
