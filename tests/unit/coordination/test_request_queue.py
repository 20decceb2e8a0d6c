"""What becomes of a request while the job runs: served, refused, taken up again, or forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.job_requests import JobRequest, RequestUnanswered, StopJob, TakeCheckpoint, TakeSavepoint
from kafka_eos.coordination.request_queue import RequestHandler
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.actions import AbortEpoch
from kafka_eos.protocol.checkpoint_schedule import EpochKind
from kafka_eos.protocol.events import PendingRequests
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage

SIX, SEVEN, EIGHT = (EpochId(Epoch(n), Term(3)) for n in (6, 7, 8))
SAVEPOINT, STOP_WITH = TakeSavepoint(path="/savepoints/one"), TakeSavepoint(path="/savepoints/two", stop=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def desk(home: Path, storage: LocalStorage) -> Iterator[RequestHandler]:
    """Of a job that runs."""
    writer = SavepointWriter(home, storage)
    with job_lock(home / paths.LOCK, "orders"):
        yield RequestHandler(home, writer)
    writer.close()


def manifest_of(epoch: EpochId) -> Manifest:
    return Manifest(
        job="orders", epoch=epoch.epoch.n, term=epoch.term.n, created_at=0, plan="", max_key_groups=128, parallelism=1,
        sources={}, states=(), committables=(), identity="0123456789ab",
    )  # fmt: skip


def withdraw(home: Path, token: str) -> None:
    with pytest.raises(RequestUnanswered, match="withdrawn"):
        requests.wait(home, token, 0.0)


@pytest.mark.parametrize("request_", [SAVEPOINT, STOP_WITH, TakeCheckpoint(), StopJob(), StopJob(drain=False)])
def test_a_request_that_is_withdrawn_before_its_epoch_begins_is_forgotten(
    desk: RequestHandler, home: Path, request_: JobRequest
) -> None:
    token = requests.submit(home, request_)
    desk.poll(1.0)
    assert desk.pending.checkpoint

    withdraw(home, token)
    desk.poll(2.0)

    assert desk.pending == PendingRequests()


@pytest.mark.parametrize("late", [True, False])
def test_whoever_asked_for_an_epoch_that_is_given_up_is_told(desk: RequestHandler, home: Path, late: bool) -> None:
    savepoint, checkpoint = requests.submit(home, SAVEPOINT), requests.submit(home, TakeCheckpoint())
    desk.poll(1.0)
    assert desk.pending.checkpoint is EpochKind.SAVEPOINT
    desk.on_triggered(SEVEN)

    desk.on_aborted(AbortEpoch(SIX, EpochKind.SAVEPOINT, "another one", late))
    assert len(requests.list_pending(home)) == 2
    desk.on_aborted(AbortEpoch(SEVEN, EpochKind.SAVEPOINT, "checkpoint 7 was amiss", late))

    what_to_do = "longer checkpoint_timeout.*stop APP --savepoint" if late else "Repair that"
    with pytest.raises(ConfigError, match=f"checkpoint 7 was amiss: no savepoint was taken.*continues.*{what_to_do}"):
        requests.wait(home, savepoint, 30)
    with pytest.raises(ConfigError, match="checkpoint 7 was amiss; the job continues"):
        requests.wait(home, checkpoint, 30)
    desk.poll(2.0)
    assert desk.pending.checkpoint is None, "it would be tried for ever"


def test_a_last_epoch_that_is_given_up_is_tried_again_for_those_who_still_ask(desk: RequestHandler, home: Path) -> None:
    stop, savepoint = requests.submit(home, STOP_WITH), requests.submit(home, SAVEPOINT)
    desk.poll(1.0)
    desk.on_triggered(SEVEN)
    withdraw(home, savepoint)

    desk.on_aborted(AbortEpoch(SIX, EpochKind.FINAL, "late", timed_out=True))
    desk.poll(1.01)
    assert desk.pending.checkpoint is None
    desk.on_aborted(AbortEpoch(SEVEN, EpochKind.FINAL, "late", timed_out=True))
    desk.poll(1.02)

    assert desk.pending.stop
    withdraw(home, stop)
    desk.poll(2.0)
    assert desk.pending.checkpoint is None, "the other one had withdrawn before"


def test_an_end_at_once_is_no_answer_to_those_who_asked_for_more(desk: RequestHandler, home: Path) -> None:
    savepoint, end = requests.submit(home, SAVEPOINT), requests.submit(home, StopJob(drain=False))
    desk.poll(1.0)
    assert desk.pending.cancel

    desk.on_job_end()

    assert requests.wait(home, end, 30).error is None
    withdraw(home, savepoint)


END, DRAIN, CHECKPOINT = StopJob(drain=False), StopJob(), TakeCheckpoint()


@pytest.mark.parametrize(
    ("waiting", "asked"),
    [
        ((CHECKPOINT,), PendingRequests(EpochKind.REQUESTED)),
        ((CHECKPOINT, SAVEPOINT), PendingRequests(EpochKind.SAVEPOINT)),
        ((CHECKPOINT, STOP_WITH), PendingRequests(EpochKind.SAVEPOINT, stop=True)),
        ((SAVEPOINT, DRAIN), PendingRequests(EpochKind.SAVEPOINT, stop=True)),
        ((CHECKPOINT, DRAIN), PendingRequests(EpochKind.REQUESTED, stop=True)),
        ((DRAIN, END), PendingRequests(EpochKind.REQUESTED, stop=True, cancel=True)),
    ],
)
def test_those_who_wait_are_asked_for_together_in_any_order(
    desk: RequestHandler, home: Path, waiting: tuple[JobRequest, ...], asked: PendingRequests
) -> None:
    for order in permutations(waiting):
        tokens = [requests.submit(home, request) for request in order]
        desk.poll(1.0)
        assert desk.pending == asked
        for token in tokens:
            withdraw(home, token)
        desk.on_triggered(SIX)
        desk.on_aborted(AbortEpoch(SIX, EpochKind.FINAL, "late", timed_out=True))


def test_an_epoch_answers_those_whom_it_or_an_older_one_serves_and_no_others(desk: RequestHandler, home: Path) -> None:
    """Two requests for each of two epochs that are under way together; those of the older one come late."""
    early = [requests.submit(home, CHECKPOINT) for _ in range(2)]
    desk.poll(1.0)
    desk.on_triggered(SIX)
    assert desk.pending == PendingRequests(), "they are served"
    late = [requests.submit(home, CHECKPOINT) for _ in range(2)]
    desk.poll(2.0)
    desk.on_triggered(SEVEN)

    desk.on_committed(manifest_of(SIX))

    assert [requests.wait(home, token, 30).epoch for token in early] == [6, 6]
    assert sorted(token for token, _, _ in requests.list_pending(home)) == sorted(late)
    desk.on_committed(manifest_of(SEVEN))
    assert [requests.wait(home, token, 30).epoch for token in late] == [7, 7]
    desk.on_committed(manifest_of(EIGHT))
    assert [*(home / paths.REQUESTS).iterdir()] == [], "an answer that nobody waits for"


def test_a_newer_epoch_answers_all_who_wait_for_an_older_one(desk: RequestHandler, home: Path) -> None:
    tokens = [requests.submit(home, CHECKPOINT) for _ in range(2)]
    desk.poll(1.0)
    desk.on_triggered(SIX)

    desk.on_committed(manifest_of(SEVEN))

    assert [requests.wait(home, token, 30).epoch for token in tokens] == [7, 7]
    again = requests.submit(home, CHECKPOINT)
    desk.poll(2.0)
    desk.on_committed(manifest_of(SEVEN))
    assert [token for token, _, _ in requests.list_pending(home)] == [again], "no epoch has begun for it"


def test_an_epoch_that_is_given_up_refuses_all_whom_it_serves_and_no_others(desk: RequestHandler, home: Path) -> None:
    early = [requests.submit(home, CHECKPOINT) for _ in range(3)]
    desk.poll(1.0)
    desk.on_triggered(SIX)
    late = [requests.submit(home, CHECKPOINT) for _ in range(2)]
    desk.poll(2.0)
    desk.on_triggered(SEVEN)

    desk.on_aborted(AbortEpoch(SIX, EpochKind.REQUESTED, "amiss", timed_out=False))

    for token in early:
        with pytest.raises(ConfigError, match="amiss; the job continues"):
            requests.wait(home, token, 30)
    desk.on_committed(manifest_of(SEVEN))
    assert [requests.wait(home, token, 30).epoch for token in late] == [7, 7]


class Waiting(LocalStorage):
    """Takes no line of the history before it is let go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()

    def append(self, name: str, line: str) -> None:
        assert self.go_on.wait(30)
        super().append(name, line)


def test_a_savepoint_is_not_asked_for_again_while_it_is_made(home: Path) -> None:
    """Nor is it answered before, though the epoch that serves it is committed."""
    storage = Waiting(home / "orders")
    writer = SavepointWriter(home, storage)
    with job_lock(home / paths.LOCK, "orders"), closing(writer):
        desk = RequestHandler(home, writer)
        token = requests.submit(home, TakeSavepoint(path=str(home / "savepoint")))
        desk.poll(1.0)
        desk.on_triggered(SIX)
        desk.on_committed(manifest_of(SIX))

        for one in (desk, RequestHandler(home, writer)):
            one.poll(2.0)
            assert one.pending == PendingRequests()
        assert [pending for pending, _, _ in requests.list_pending(home)] == [token]
        storage.go_on.set()
        assert requests.wait(home, token, 30).epoch == 6


def test_who_is_told_of_the_end_are_those_who_asked_for_it_and_once(desk: RequestHandler, home: Path) -> None:
    ends = [requests.submit(home, END) for _ in range(3)]
    desk.poll(1.0)
    desk.on_job_end()

    assert requests.list_pending(home) == []
    assert all(requests.wait(home, token, 30).error is None for token in ends)
    others = [requests.submit(home, request) for request in (DRAIN, SAVEPOINT)]
    desk.poll(2.0)
    desk.on_job_end()
    assert sorted(token for token, _, _ in requests.list_pending(home)) == sorted(others)
    assert desk.pending == PendingRequests()


def test_a_desk_looks_a_few_times_a_second(desk: RequestHandler, home: Path) -> None:
    desk.poll(1.0)
    requests.submit(home, CHECKPOINT)

    desk.poll(1.2)
    assert desk.pending == PendingRequests()
    desk.poll(1.21)
    assert desk.pending.checkpoint is EpochKind.REQUESTED
    requests.submit(home, SAVEPOINT)
    desk.poll(1.4)
    assert desk.pending.checkpoint is EpochKind.REQUESTED
