"""What becomes of a request while the job runs: served, refused, taken up again, or forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.coordinator import requests
from kafka_eos.coordinator.desk import Desk
from kafka_eos.coordinator.lock import job_lock
from kafka_eos.coordinator.requests import Request, Stop, TakeCheckpoint, TakeSavepoint, Unanswered
from kafka_eos.coordinator.savepointing import SavepointWriter
from kafka_eos.errors import ConfigError
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.protocol.actions import Abort
from kafka_eos.protocol.checkpoint import Kind
from kafka_eos.protocol.facts import Asked

SIX, SEVEN = (EpochId(Epoch(n), Term(3)) for n in (6, 7))
SAVEPOINT, STOP_WITH = TakeSavepoint(path="/savepoints/one"), TakeSavepoint(path="/savepoints/two", stop=True)


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


def withdraw(home: Path, token: str) -> None:
    with pytest.raises(Unanswered, match="withdrawn"):
        requests.wait(home, token, 0.0)


@pytest.mark.parametrize("request_", [SAVEPOINT, STOP_WITH, TakeCheckpoint(), Stop(), Stop(drain=False)])
def test_a_request_that_is_withdrawn_before_its_epoch_begins_is_forgotten(
    desk: Desk, home: Path, request_: Request
) -> None:
    token = requests.submit(home, request_)
    desk.look(1.0)
    assert desk.asked.wants

    withdraw(home, token)
    desk.look(2.0)

    assert desk.asked == Asked()


@pytest.mark.parametrize("late", [True, False])
def test_whoever_asked_for_an_epoch_that_is_given_up_is_told(desk: Desk, home: Path, late: bool) -> None:
    savepoint, checkpoint = requests.submit(home, SAVEPOINT), requests.submit(home, TakeCheckpoint())
    desk.look(1.0)
    assert desk.asked.wants is Kind.SAVEPOINT
    desk.begun(SEVEN)

    desk.given_up(Abort(SIX, Kind.SAVEPOINT, "another one", late))
    assert len(requests.pending(home)) == 2
    desk.given_up(Abort(SEVEN, Kind.SAVEPOINT, "checkpoint 7 was amiss", late))

    what_to_do = "longer checkpoint_timeout.*stop APP --savepoint" if late else "Repair that"
    with pytest.raises(ConfigError, match=f"checkpoint 7 was amiss: there is no savepoint.*goes on.*{what_to_do}"):
        requests.wait(home, savepoint, 30)
    with pytest.raises(ConfigError, match="checkpoint 7 was amiss; the job goes on"):
        requests.wait(home, checkpoint, 30)
    desk.look(2.0)
    assert desk.asked.wants is None, "it would be tried for ever"


def test_a_last_epoch_that_is_given_up_is_tried_again_for_those_who_still_ask(desk: Desk, home: Path) -> None:
    stop, savepoint = requests.submit(home, STOP_WITH), requests.submit(home, SAVEPOINT)
    desk.look(1.0)
    desk.begun(SEVEN)
    withdraw(home, savepoint)

    desk.given_up(Abort(SIX, Kind.LAST, "late", late=True))
    desk.look(1.01)
    assert desk.asked.wants is None
    desk.given_up(Abort(SEVEN, Kind.LAST, "late", late=True))
    desk.look(1.02)

    assert desk.asked.stop
    withdraw(home, stop)
    desk.look(2.0)
    assert desk.asked.wants is None, "the other one had withdrawn before"


def test_an_end_at_once_is_no_answer_to_those_who_asked_for_more(desk: Desk, home: Path) -> None:
    savepoint, end = requests.submit(home, SAVEPOINT), requests.submit(home, Stop(drain=False))
    desk.look(1.0)
    assert desk.asked.end

    desk.ended()

    assert requests.wait(home, end, 30).error is None
    withdraw(home, savepoint)
