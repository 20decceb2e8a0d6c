"""What is asked of a running job, and answered: by files, each of which is there whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.job_requests import RequestAnswer, RequestUnanswered, StopJob, TakeCheckpoint, TakeSavepoint
from kafka_eos.core.errors import ConfigError
from kafka_eos.storage import object_names as paths
from tests.store_faults import Directory, Requests

SEVERAL = (TakeCheckpoint(), TakeSavepoint(path="/savepoints/one", stop=True), StopJob(drain=False), StopJob())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The directory of a job that runs."""
    with job_lock(tmp_path / paths.LOCK, "orders"):
        yield tmp_path


def left(home: Path) -> list[str]:
    return sorted(path.name for path in (home / paths.REQUESTS).iterdir())


def test_all_requests_without_an_answer_are_pending(home: Path) -> None:
    asked = {requests.submit(home, request): request for request in SEVERAL}
    assert {token: request for token, request, _ in requests.list_pending(home)} == asked

    for token in [*asked]:
        requests.write_answer(home, token, RequestAnswer(epoch=7))
        del asked[token]
        assert {token: request for token, request, _ in requests.list_pending(home)} == asked


def test_an_answered_request_leaves_nothing_once_it_is_fetched(home: Path) -> None:
    token, other = (requests.submit(home, TakeCheckpoint()) for _ in range(2))
    requests.write_answer(home, token, RequestAnswer(epoch=7, path="/there"))
    requests.write_answer(home, token, RequestAnswer(error="too late"))

    assert requests.wait(home, token, 30) == RequestAnswer(epoch=7, path="/there")
    assert left(home) == [f"{other}.json"]


def test_a_request_or_its_answer_is_there_at_any_moment(home: Path) -> None:
    """Whoever waits and sees neither takes the job for restarted."""
    token, seen = requests.submit(home, TakeCheckpoint()), list[list[str]]()

    with Directory(home).reached(Requests(between=lambda: seen.append(left(home)))):
        requests.write_answer(home, token, RequestAnswer(epoch=7))

    both = [{f"{token}.json", f"{token}.done.json"}.intersection(names) for names in seen]
    assert len(seen) > 4 and all(both)
    assert left(home) == [f"{token}.done.json"]


def test_what_could_not_be_done_is_said_to_whoever_asked(home: Path) -> None:
    token = requests.submit(home, TakeCheckpoint())
    requests.write_answer(home, token, RequestAnswer(error="it is late"))

    with pytest.raises(ConfigError, match="^it is late$"):
        requests.wait(home, token, 30)
    assert left(home) == []


def test_a_request_that_nobody_here_understands_is_answered_at_once_and_holds_up_no_other(home: Path) -> None:
    tokens = [requests.submit(home, TakeCheckpoint()) for _ in range(3)]
    unknown = sorted(tokens)[1]
    (home / paths.request_name(unknown)).write_bytes(msgspec.json.encode({"by": "ada", "request": {"type": "dance"}}))

    assert sorted(token for token, _, _ in requests.list_pending(home)) == sorted({*tokens} - {unknown})
    with pytest.raises(
        ConfigError, match="the running job uses a kafka-eos version that does not support this request: .*dance"
    ):
        requests.wait(home, unknown, 30)


def test_a_request_without_an_answer_in_time_is_withdrawn(home: Path) -> None:
    token = requests.submit(home, TakeCheckpoint())

    with pytest.raises(RequestUnanswered, match="no response within 0 s"):
        requests.wait(home, token, 0)
    assert left(home) == []


def test_a_job_that_has_ended_answers_nobody(tmp_path: Path) -> None:
    token = requests.submit(tmp_path, TakeCheckpoint())

    with pytest.raises(RequestUnanswered, match="ended or was restarted"):
        requests.wait(tmp_path, token, 5)


def test_a_job_that_was_restarted_answers_nobody_who_asked_before(home: Path) -> None:
    token = requests.submit(home, TakeCheckpoint())
    requests.clear_requests(home)

    with pytest.raises(RequestUnanswered, match="ended or was restarted"):
        requests.wait(home, token, 5)


def test_an_answer_that_comes_as_the_job_ends_counts(tmp_path: Path) -> None:
    token = requests.submit(tmp_path, TakeCheckpoint())
    requests.write_answer(tmp_path, token, RequestAnswer(epoch=7))

    assert requests.wait(tmp_path, token, 30).epoch == 7


def test_whoever_waits_gets_the_answer_when_it_comes(home: Path) -> None:
    token, answers = requests.submit(home, TakeCheckpoint()), list[RequestAnswer]()
    waiting = threading.Thread(target=lambda: answers.append(requests.wait(home, token, 30)))
    waiting.start()
    requests.write_answer(home, token, RequestAnswer(epoch=7))
    waiting.join(30)

    assert answers == [RequestAnswer(epoch=7)]


def test_a_start_drops_what_was_asked_of_the_one_before(home: Path) -> None:
    tokens = [requests.submit(home, TakeCheckpoint()) for _ in range(3)]
    for token in tokens[:2]:
        requests.write_answer(home, token, RequestAnswer())

    requests.clear_requests(home)

    assert left(home) == []


def test_an_exception_is_an_answer_in_words() -> None:
    assert requests.failure_answer(ConfigError("no room")) == RequestAnswer(error="no room")
    assert requests.failure_answer(OSError("no room")) == RequestAnswer(error="OSError: no room")
    assert requests.failure_answer(ConfigError()) == RequestAnswer(error="ConfigError")
    assert requests.failure_answer(KeyError()) == RequestAnswer(error="KeyError: KeyError")
