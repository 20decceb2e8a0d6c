"""The address of a job, over a real socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.connections import ConnectionLimits
from kafka_eos.monitoring.http.server import serve
from kafka_eos.monitoring.metrics.endpoints import MetricsEndpoints
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from tests.waiting import PATIENCE, eventually


def serve_metrics(
    address: tuple[str, int], answers: MetricsEndpoints, limits: ConnectionLimits | None = None
) -> AbstractContextManager[str]:
    return serve(address, answers.routes(), "http=…", limits=limits)


@pytest.fixture
def observed() -> MetricsObserver:
    return MetricsObserver("orders", "1.0")


@pytest.fixture
def url(observed: MetricsObserver) -> Iterator[str]:
    with serve_metrics(
        ("127.0.0.1", 0), MetricsEndpoints(observed, 60, lambda: {"last": {"running": {"term": 1}}})
    ) as url:
        yield url


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_prometheus_reads_its_own_format_and_openmetrics(observed: MetricsObserver, url: str) -> None:
    facts = {
        "epoch": 1,
        "seconds": 0.2,
        "state_bytes_by_operator": {'a "b"\n': 9},
        "committables": 0,
        "records_by_sink": {},
    }
    observed("decided", facts)
    _, plain_type, plain = ask(url, "/metrics")
    _, open_type, opened = ask(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert plain_type.startswith("text/plain")
    assert open_type.startswith("application/openmetrics-text")
    assert opened.endswith("# EOF\n")
    for families in (parse_text(plain), parse_openmetrics(opened)):
        samples = {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}
        assert samples["kafka_eos_info", "1.0", "orders"] == 1
        assert samples["kafka_eos_state_bytes", 'a "b"\n'] == 9
        assert samples["kafka_eos_checkpoints_total", "committed"] == 0
        buckets = [samples["kafka_eos_checkpoint_seconds_bucket", at, "decide"] for at in ("0.1", "0.25", "+Inf")]
        assert buckets == [0, 1, 1]


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_a_version_that_is_none_gets_the_usual_format(kind: str, url: str, caplog: pytest.LogCaptureFixture) -> None:
    status, content_type, _ = ask(url, "/metrics", Accept=f"{kind}; version=one.two")

    assert status == 200 and content_type.startswith("text/plain")
    assert caplog.text == ""


def test_what_cannot_be_answered_is_said_and_the_next_question_is_answered(
    observed: MetricsObserver, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> None:
        raise ValueError("status.json is damaged")

    with serve_metrics(("127.0.0.1", 0), MetricsEndpoints(observed, 60, damaged)) as url:
        code, _, said = ask(url, "/api/status")
        assert code == 500 and said == "ValueError: see the log of the job\n"
        assert ask(url, "/healthz")[0] == 200
        for _ in range(20):
            assert ask(url, "/api/status")[0] == 500
    assert "ValueError: status.json is damaged" in caplog.text
    assert caplog.text.count("/api/status cannot be answered") == 1, "a client does not decide how much is logged"


def test_a_page_of_another_site_that_is_given_this_address_reads_nothing(url: str) -> None:
    code, _, said = ask(url, "/api/status", Host="rebound.example")

    assert code == 421 and "term" not in said
    assert "use 127.0.0.1, localhost or ::1" in said
    assert ask(url, "/api/status", Host="localhost")[0] == 200


def test_a_probe_may_ask_for_the_head_alone(url: str) -> None:
    assert ask(url, "/healthz", "HEAD") == (200, "text/plain; charset=utf-8", "")


def test_an_address_may_be_one_of_version_six(observed: MetricsObserver) -> None:
    with serve_metrics(("::1", 0), MetricsEndpoints(observed, 60, lambda: None)) as url:
        assert url.startswith("http://[::1]:")
        assert ask(url, "/healthz")[0] == 200


def test_a_probe_gets_a_code_and_a_person_the_reason(observed: MetricsObserver, url: str) -> None:
    assert ask(url, "/healthz")[0] == 200
    assert ask(url, "/readyz") == (503, "text/plain; charset=utf-8", "starting or recovering\n")
    observed("running", {"term": 1, "base": 0, "parallelism": 1})
    assert ask(url, "/readyz")[0] == 200


def test_status_is_what_the_job_shows_and_whether_it_is_ready(url: str) -> None:
    code, kind, text = ask(url, "/api/status")
    assert (code, kind) == (200, "application/json")
    assert json.loads(text) == {"last": {"running": {"term": 1}}, "ready": False, "reason": "starting or recovering"}


def test_what_is_not_there_is_said(url: str) -> None:
    code, _, text = ask(url, "/dashboard?x=1")
    assert code == 404
    assert json.loads(text) == {"error": "Not Found"}


def test_two_jobs_cannot_have_one_port(observed: MetricsObserver, url: str) -> None:
    taken = urlsplit(url).port or 0
    answers = MetricsEndpoints(observed, 60, lambda: None)
    with pytest.raises(ConfigError, match="port of its own"), serve_metrics(("127.0.0.1", taken), answers):
        pass


def test_a_host_that_is_not_here_is_not_answered_with_another_port(observed: MetricsObserver) -> None:
    answers = MetricsEndpoints(observed, 60, lambda: None)
    with pytest.raises(ConfigError, match="address of this machine"), serve_metrics(("192.0.2.1", 0), answers):
        pass


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE)


def test_a_client_that_is_gone_before_its_answer_is_no_news(
    observed: MetricsObserver, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    asking, gone = threading.Event(), threading.Event()

    def status() -> Mapping[str, object]:
        asking.set()
        assert gone.wait(PATIENCE)
        return {"text": "x" * (1 << 24)}

    with serve_metrics(
        ("127.0.0.1", 0), MetricsEndpoints(observed, 60, status), ConnectionLimits(connections=1)
    ) as url:
        client = connected(url)
        client.sendall(b"GET /api/status HTTP/1.0\r\n\r\n")
        assert asking.wait(PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets the connection
        client.close()
        gone.set()
        eventually(lambda: ask(url, "/healthz")[0] == 200, "its place is free again")
    assert capsys.readouterr().err == "" and caplog.text == ""
