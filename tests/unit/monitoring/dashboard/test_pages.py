"""The address of the dashboard, over a real socket."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kafka_eos.coordination.status_file import StatusFile
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.dashboard.routes import Pages
from kafka_eos.monitoring.dashboard.server import serve_dashboard
from kafka_eos.monitoring.metrics.endpoints import MetricsEndpoints
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from tests.waiting import PATIENCE

STATIC = Path(__file__).parents[4] / "kafka_eos" / "monitoring" / "dashboard" / "static"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    StatusFile(tmp_path / "orders")("running", {"term": 1, "base": 0, "parallelism": 2})
    return tmp_path


@pytest.fixture
def url(home: Path) -> Iterator[str]:
    with serve_dashboard(("127.0.0.1", 0), Pages(home), "the dashboard") as url:
        yield url


def asked(url: str, path: str, **headers: str) -> HTTPResponse:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def told(url: str, path: str) -> tuple[int, Any]:
    with asked(url, path) as answer:
        return answer.status, json.loads(answer.read())


def test_jobs_are_told_as_json(url: str, home: Path) -> None:
    status, jobs = told(url, "/api/jobs")

    assert (status, jobs["home"]) == (200, str(home))
    assert [(job["job"], job["state"]) for job in jobs["jobs"]] == [("orders", "killed")]
    assert told(url, "/api/jobs/orders")[1]["state"] == "killed"


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8377", 200), ("127.0.0.1", 200), ("[::1]:1", 200), ("rebound.example", 421), ("", 421), ("[x", 421)],
)
def test_loopback_answers_no_page_of_another_name(url: str, host: str, status: int) -> None:
    with asked(url, "/api/jobs", Host=host) as answer:
        assert answer.status == status
        assert (b"orders" in answer.read()) == (status == 200)


@pytest.mark.parametrize("path", ["/api/jobs/other", "/api/jobs/..%2Forders", "/nothing"])
def test_what_is_not_there_is_said(url: str, path: str) -> None:
    status, answer = told(url, path)

    assert status == 404 and answer["error"]


def test_a_stream_tells_what_changes(url: str, home: Path) -> None:
    with asked(url, "/api/jobs/orders/events") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        first = json.loads(stream.readline().removeprefix(b"data: "))
        StatusFile(home / "orders")("failed", {"error": "Fatal", "reason": "no disk"})
        assert stream.readline() == b"\n"
        second = json.loads(stream.readline().removeprefix(b"data: "))

    assert (first["state"], second["state"], second["reason"]) == ("killed", "failed", "Fatal: no disk")


def test_a_stream_waits_for_a_job_that_has_not_run_yet(url: str, home: Path) -> None:
    with asked(url, "/api/jobs/clicks/events") as stream:
        first = json.loads(stream.readline().removeprefix(b"data: "))
        (home / "clicks").mkdir()
        StatusFile(home / "clicks")("stopped", {})
        assert stream.readline() == b"\n"
        second = json.loads(stream.readline().removeprefix(b"data: "))

    assert "Job clicks has not run" in first["missing"]
    assert second["state"] == "stopped"


def test_a_job_shows_itself_alone_and_answers_what_it_answers_without_a_dashboard(home: Path) -> None:
    (home / "clicks").mkdir()
    StatusFile(home / "clicks")("stopped", {})
    answers = MetricsEndpoints(MetricsObserver("orders", "1.0"), 60, lambda: {"last": {}})
    with serve_dashboard(("127.0.0.1", 0), Pages(home, "orders"), "http=…", answers.routes()) as url:
        with asked(url, "/") as begin, asked(url, "/metrics") as metrics:
            assert (begin.status, begin.headers["Location"]) == (307, "/job/orders")
            assert b"kafka_eos_info" in metrics.read()
            assert metrics.headers["Content-Type"].startswith("text/plain; version=")
        assert [job["job"] for job in told(url, "/api/jobs")[1]["jobs"]] == ["orders"]
        assert told(url, "/api/jobs/clicks")[0] == 404
        assert told(url, "/api/status")[1] == {"last": {}, "ready": False, "reason": "starting or recovering"}
        with asked(url, "/readyz") as ready, asked(url, "/healthz") as healthy:
            assert (ready.status, healthy.status) == (503, 200)


def test_a_stream_that_is_open_keeps_nobody_from_ending(home: Path) -> None:
    with serve_dashboard(("127.0.0.1", 0), Pages(home), "the dashboard") as url:
        stream = asked(url, "/api/events")
        assert stream.readline().startswith(b"data: ")

    assert stream.readline() == b"\n"
    assert stream.readline() == b""


@pytest.mark.parametrize("path", ["/", "/job/orders", "/static/app.js", "/api/jobs", "/nothing"])
def test_the_browser_is_told_to_load_nothing_from_elsewhere(url: str, path: str) -> None:
    with asked(url, path) as answer:
        answer.read()

    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_that_the_page_names_is_served(url: str) -> None:
    with asked(url, "/job/orders") as answer:
        named = set(re.findall(r'(?:src|href)="(/[^"]+)"', answer.read().decode()))
    for script in STATIC.glob("*.js"):
        named |= {f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text())}

    assert {f"/static/{script.name}" for script in STATIC.glob("*.js")} <= named, "a script that nobody loads"
    for path in named:
        with asked(url, path) as answer:
            answer.read()
            assert answer.status == 200, path


def test_no_page_names_another_host() -> None:
    for file in [*STATIC.glob("*.js"), *STATIC.glob("*.html"), *STATIC.glob("*.css")]:
        assert re.findall(r"https?://", file.read_text()) == [], file.name
    assert {file.name for file in (STATIC / "vendor").iterdir()} == {"htm-preact.js", "htm.LICENSE", "preact.LICENSE"}


def test_an_address_that_is_taken_is_refused_before_anything_begins(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="port 0 for one that is free"), serve_dashboard(
            ("127.0.0.1", port), Pages(home), f"the dashboard at 127.0.0.1:{port}"
        ):  # fmt: skip
            pass
