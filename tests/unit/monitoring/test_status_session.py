"""Collectors and data catalogs decide nothing about a job's memory, nor where else its requests go."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
import requests

from kafka_eos.monitoring.status_session import StatusSession
from tests.scripted_http_server import Answering, Sent

LARGE = 100 << 20


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_large_response_takes_no_memory(encoding: str) -> None:
    body = bytes(LARGE) if encoding == "identity" else gzip.compress(bytes(LARGE), 9)
    answer = Sent(200, body, {"Content-Encoding": encoding})
    with Answering(lambda request: answer) as server, StatusSession() as session:
        tracemalloc.start()
        try:
            answers = [session.post(server.url, timeout=60).status_code for _ in range(2)]
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert answers == [200, 200]
    assert taken < 8 << 20


def test_a_redirect_is_not_followed() -> None:
    with Answering(lambda request: (200, b"")) as other:
        there = Sent(307, b"", {"Location": other.url})
        with Answering(lambda request: there) as server, StatusSession() as session:
            with pytest.raises(requests.TooManyRedirects, match="redirects to another address"):
                session.post(server.url, data=b"an event", timeout=60)
            assert session.post(server.url, data=b"a span", timeout=60, allow_redirects=False).status_code == 307
        assert other.seen == []


def test_a_connection_is_used_again_after_a_short_response() -> None:
    with Answering(lambda request: (200, b"fine")) as server, StatusSession() as session:
        for _ in range(3):
            assert session.post(server.url, timeout=60).ok
