"""What the dashboard asks of jobs, and of whom it takes orders."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from msgspec import structs

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.status_file import StatusFile
from kafka_eos.monitoring.dashboard.job_actions import Actions
from kafka_eos.monitoring.dashboard.routes import Pages
from kafka_eos.monitoring.dashboard.server import serve_dashboard
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from tests.unit.storage.checkpoint_samples import SAVEPOINT
from tests.waiting import PATIENCE, eventually


@contextmanager
def dashboard(home: Path) -> Iterator[tuple[str, str]]:
    """Its address and its token, with one job that has run."""
    (home / "orders").mkdir()
    StatusFile(home / "orders")("running", {"term": 1, "base": 0, "parallelism": 2})
    actions = Actions(home)
    with serve_dashboard(("127.0.0.1", 0), Pages(home), "the dashboard", actions.routes()) as url:
        yield url, actions.token


def asked(url: str, path: str, token: str | None, method: str = "POST") -> tuple[int, Any]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request(method, path, headers={} if token is None else {"Kafka-Eos-Token": token})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@contextmanager
def supervised(
    directory: Path, answer: requests.RequestAnswer, askers: list[str] | None = None
) -> Iterator[list[requests.JobRequest]]:
    """A supervisor that gives the first request this answer; what it was asked for, and by whom."""
    heard: list[requests.JobRequest] = []

    def supervise() -> None:
        token, request, by = eventually(lambda: requests.list_pending(directory), "something is asked")[0]
        heard.append(request)
        (askers if askers is not None else []).append(by)
        requests.write_answer(directory, token, answer)

    with job_lock(directory / paths.LOCK, directory.name):
        thread = threading.Thread(target=supervise)
        thread.start()
        yield heard
        thread.join()


def test_a_savepoint_and_a_stop_are_asked_of_the_job_and_its_answer_is_told(tmp_path: Path) -> None:
    with dashboard(tmp_path) as (url, token):
        with supervised(tmp_path / "orders", requests.RequestAnswer(epoch=7, path="/there")) as heard:
            assert asked(url, "/api/jobs/orders/savepoint", token) == (200, {"epoch": 7, "path": "/there"})
        assert isinstance(heard[0], requests.TakeSavepoint) and not heard[0].stop
        assert Path(heard[0].path).parent == tmp_path / "orders.savepoints"
        askers: list[str] = []
        with supervised(tmp_path / "orders", requests.RequestAnswer(epoch=8), askers) as heard:
            assert asked(url, "/api/jobs/orders/stop", token)[0] == 200
        assert heard == [requests.StopJob()]
        assert askers == ["a holder of the token, in the dashboard, from 127.0.0.1"]


def test_what_the_job_could_not_do_is_told(tmp_path: Path) -> None:
    with (
        dashboard(tmp_path) as (url, token),
        supervised(tmp_path / "orders", requests.RequestAnswer(error="the disk is full")),
    ):
        assert asked(url, "/api/jobs/orders/savepoint", token) == (409, {"error": "the disk is full"})


@pytest.mark.parametrize("token", [None, "", "guessed", "é"])
@pytest.mark.parametrize("action", ["stop", "savepoint"])
def test_nothing_is_asked_for_those_who_do_not_show_the_token(tmp_path: Path, action: str, token: str | None) -> None:
    with dashboard(tmp_path) as (url, _), job_lock(tmp_path / "orders" / paths.LOCK, "orders"):
        status, told = asked(url, f"/api/jobs/orders/{action}", token)
        assert status == 403 and "token" in told["error"]
        assert requests.list_pending(tmp_path / "orders") == []


def test_a_job_that_does_not_run_is_asked_for_nothing(tmp_path: Path) -> None:
    with dashboard(tmp_path) as (url, token):
        assert asked(url, "/api/jobs/orders/stop", token)[0] == 409
        assert asked(url, "/api/jobs/other/stop", token)[0] == 409
        assert asked(url, "/api/jobs/orders/stop", token, "GET")[0] == 405
        assert not (tmp_path / "other").exists()


def stored(home: Path, name: str) -> Path:
    """A savepoint of the job, with a file of 1,500 bytes."""
    target = home / "orders.savepoints" / name
    content = home / "content"
    content.write_bytes(b"state" * 300)
    with savepoints.draft_savepoint(target) as draft:
        handle = structs.replace(SAVEPOINT.operators[0], files=(draft.files.upload(content, "0.rows"),))
        draft.publish(structs.replace(SAVEPOINT, job="orders", operators=(handle,)))
    return target


def fetched(url: str, path: str, token: str) -> tuple[str, bytes]:
    with urlopen(Request(f"{url}{path}", headers={"Kafka-Eos-Token": token}), timeout=PATIENCE) as answer:
        return answer.headers["Content-Disposition"], answer.read()


def test_a_savepoint_is_listed_and_comes_as_one_file_that_holds_all_of_it(tmp_path: Path) -> None:
    with dashboard(tmp_path) as (url, token):
        stored(tmp_path, "20260101T000000Z-abcd")
        (tmp_path / "orders.savepoints/broken").mkdir()
        (tmp_path / "orders.savepoints/broken/savepoint.json").write_text("nonsense")
        listed = asked(url, "/api/jobs/orders", None, "GET")[1]["savepoints"]
        name, content = fetched(url, "/api/jobs/orders/savepoints/20260101T000000Z-abcd", token)

    assert [(each["name"], each["epoch"], each["bytes"]) for each in listed] == [
        ("20260101T000000Z-abcd", 7, 1500), ("broken", None, None),
    ]  # fmt: skip
    assert listed[1]["problem"] and not listed[0]["problem"]
    assert name == 'attachment; filename="orders-20260101T000000Z-abcd.tar"'
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    assert savepoints.find_damage(tmp_path / "elsewhere/20260101T000000Z-abcd") == []


@pytest.mark.parametrize(
    ("path", "shown", "status"),
    [
        ("orders/savepoints/one", None, 403),
        ("orders/savepoints/two", "token", 404),
        ("orders/savepoints/..%2Forders", "token", 404),
        ("other/savepoints/one", "token", 404),
    ],
)
def test_nothing_else_comes_and_not_to_everybody(tmp_path: Path, path: str, shown: str | None, status: int) -> None:
    with dashboard(tmp_path) as (url, token):
        stored(tmp_path, "one")

        assert asked(url, f"/api/jobs/{path}", token if shown else None, "GET")[0] == status


def test_a_token_is_of_one_dashboard(tmp_path: Path) -> None:
    assert Actions(tmp_path).token != Actions(tmp_path).token


def test_a_token_ends(tmp_path: Path) -> None:
    actions = Actions(tmp_path, lifetime=0.0)
    with serve_dashboard(("127.0.0.1", 0), Pages(tmp_path), "the dashboard", actions.routes()) as url:
        status, told = asked(url, "/api/jobs/orders/stop", actions.token)

    assert (status, told) == (403, {"error": "the token has expired: restart kafka-eos ui for a new one"})


def test_a_service_writes_its_token_to_a_file_of_its_owner_and_not_to_the_journal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kafka_eos", "ui", "--port", "0", "--checkpoint-dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        printed = service.stderr.readline()
        while ".token" not in printed:
            printed += service.stderr.readline()
        (file,) = tmp_path.glob("ui-*.token")
        token = file.read_text().strip()
        assert len(token) > 20 and token not in printed and str(file) in printed.replace("\n", "")
        assert file.stat().st_mode & 0o777 == 0o600
        service.terminate()
        assert token not in service.stderr.read()
    assert service.returncode == 0 and not file.exists()
