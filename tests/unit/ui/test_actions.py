"""What the dashboard asks of jobs, and of whom it takes orders."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kafka_eos.checkpoints import paths
from kafka_eos.coordinator import requests
from kafka_eos.coordinator.lock import job_lock
from kafka_eos.coordinator.status import StatusFile
from kafka_eos.ui.actions import Actions
from kafka_eos.ui.pages import Pages
from kafka_eos.ui.server import serving
from tests.waiting import PATIENCE, eventually


@contextmanager
def dashboard(home: Path) -> Iterator[tuple[str, str]]:
    """Its address and its token, with one job that has run."""
    (home / "orders").mkdir()
    StatusFile(home / "orders")("running", {"term": 1, "base": 0, "parallelism": 2})
    actions = Actions(home)
    with serving(("127.0.0.1", 0), Pages(home), "the dashboard", actions.routes()) as url:
        yield url, actions.token


def asked(url: str, path: str, token: str | None, method: str = "POST") -> tuple[int, Any]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request(method, path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@contextmanager
def supervised(directory: Path, answer: requests.Answer) -> Iterator[list[requests.Request]]:
    """A supervisor that gives the first request this answer; what it was asked for."""
    heard: list[requests.Request] = []

    def supervise() -> None:
        token, request = eventually(lambda: requests.pending(directory), "something is asked")[0]
        heard.append(request)
        requests.answer(directory, token, answer)

    with job_lock(directory / paths.LOCK, directory.name):
        thread = threading.Thread(target=supervise)
        thread.start()
        yield heard
        thread.join()


def test_a_savepoint_and_a_stop_are_asked_of_the_job_and_its_answer_is_told(tmp_path: Path) -> None:
    with dashboard(tmp_path) as (url, token):
        with supervised(tmp_path / "orders", requests.Answer(epoch=7, path="/there")) as heard:
            assert asked(url, "/api/jobs/orders/savepoint", token) == (200, {"epoch": 7, "path": "/there"})
        assert isinstance(heard[0], requests.TakeSavepoint) and not heard[0].stop
        assert Path(heard[0].path).parent == tmp_path / "orders.savepoints"
        with supervised(tmp_path / "orders", requests.Answer(epoch=8)) as heard:
            assert asked(url, "/api/jobs/orders/stop", token)[0] == 200
        assert heard == [requests.Stop()]


def test_what_the_job_could_not_do_is_told(tmp_path: Path) -> None:
    with (
        dashboard(tmp_path) as (url, token),
        supervised(tmp_path / "orders", requests.Answer(error="the disk is full")),
    ):
        assert asked(url, "/api/jobs/orders/savepoint", token) == (409, {"error": "the disk is full"})


@pytest.mark.parametrize("token", [None, "", "guessed", "é"])
@pytest.mark.parametrize("action", ["stop", "savepoint"])
def test_nothing_is_asked_for_those_who_do_not_show_the_token(tmp_path: Path, action: str, token: str | None) -> None:
    with dashboard(tmp_path) as (url, _), job_lock(tmp_path / "orders" / paths.LOCK, "orders"):
        status, told = asked(url, f"/api/jobs/orders/{action}", token)
        assert status == 401 and "token" in told["error"]
        assert requests.pending(tmp_path / "orders") == []


def test_a_job_that_does_not_run_is_asked_for_nothing(tmp_path: Path) -> None:
    with dashboard(tmp_path) as (url, token):
        assert asked(url, "/api/jobs/orders/stop", token)[0] == 409
        assert asked(url, "/api/jobs/other/stop", token)[0] == 409
        assert asked(url, "/api/jobs/orders/stop", token, "GET")[0] == 405
        assert not (tmp_path / "other").exists()


def test_a_token_is_of_one_dashboard(tmp_path: Path) -> None:
    assert Actions(tmp_path).token != Actions(tmp_path).token
