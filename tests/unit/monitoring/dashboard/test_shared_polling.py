"""What open pages share, over real sockets."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kafka_eos.core.json_values import Json
from kafka_eos.monitoring.dashboard.routes import Pages
from kafka_eos.monitoring.dashboard.server import serve_dashboard
from kafka_eos.monitoring.dashboard.shared_polling import EventStreams
from kafka_eos.monitoring.metrics.endpoints import MetricsEndpoints
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from tests.waiting import PATIENCE, eventually

THREADS = 40
"""That the server has for what may take time."""


def asked(url: str, path: str) -> HTTPResponse:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    connection.request("GET", path)
    return connection.getresponse()


def heard(stream: HTTPResponse) -> int:
    """The next number that a stream tells."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return int(json.loads(line.removeprefix(b"data: ")))


@contextmanager
def served(home: Path, make: Callable[[], Callable[[], Json]], pages: int = 64) -> Iterator[str]:
    """Serve streams of what a look that is made for each of them tells, if they do not share one."""
    looks = EventStreams(pages)

    async def stream(request: Request) -> Response:
        return looks.stream("numbers", make())

    with serve_dashboard(("127.0.0.1", 0), Pages(home), "the dashboard", [Route("/numbers", stream)]) as url:
        yield url


def test_pages_that_show_one_thing_share_a_look_that_ends_with_the_last_of_them(tmp_path: Path) -> None:
    looked: list[int] = []

    def make() -> Callable[[], Json]:
        counting = itertools.count()

        def look() -> Json:
            looked.append(next(counting))
            return looked[-1]

        return look

    with served(tmp_path, make) as url:
        with ExitStack() as streams:
            pages = [streams.enter_context(asked(url, "/numbers")) for _ in range(10)]
            newest = max(heard(page) for page in [*pages, *pages])
            assert looked == list(range(len(looked))), "each look is the next one of a single counter"
            assert len(looked) <= newest + 2
        looked.clear()
        with eventually(lambda: _begins_anew(url), "nobody looks after the last page is closed"):
            assert looked[-1] < newest + 2


def _begins_anew(url: str) -> HTTPResponse | None:
    stream = asked(url, "/numbers")
    if heard(stream) == 0:
        return stream
    stream.close()
    return None


def test_more_pages_than_there_may_be_are_told_to_come_again(tmp_path: Path) -> None:
    with served(tmp_path, lambda: lambda: 1, pages=2) as url:
        with asked(url, "/numbers") as first, asked(url, "/numbers") as second:
            assert heard(first) == heard(second) == 1
            with asked(url, "/numbers") as third:
                assert (third.status, third.headers["Retry-After"]) == (503, "5")
                assert "2 dashboard pages are open" in json.loads(third.read())["error"]
        eventually(lambda: _status(url, "/numbers") == 200, "there is room when pages are closed")


def _status(url: str, path: str) -> int:
    with asked(url, path) as answer:
        return answer.status


def test_a_look_that_fails_ends_its_streams_and_the_next_page_begins_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = threading.Event()

    def look() -> Json:
        if failing.is_set():
            raise PermissionError("no right to read")
        return 7

    with served(tmp_path, lambda: look) as url, caplog.at_level(logging.ERROR, "kafka_eos.http"):
        with asked(url, "/numbers") as first, asked(url, "/numbers") as second:
            assert heard(first) == heard(second) == 7
            failing.set()
            assert first.read() == second.read() == b"\n"
        failing.clear()
        with asked(url, "/numbers") as again:
            assert heard(again) == 7

    assert [record.getMessage() for record in caplog.records] == ["numbers cannot be shown"]


def test_probes_are_answered_while_every_thread_is_taken(tmp_path: Path) -> None:
    taken, let_go = threading.Semaphore(0), threading.Event()

    def wait(request: Request) -> Response:
        taken.release()
        assert let_go.wait(PATIENCE)
        return PlainTextResponse("done")

    routes = [
        *MetricsEndpoints(MetricsObserver("orders", "1.0"), 60, lambda: None).routes(),
        Route("/wait", wait),
    ]
    with serve_dashboard(("127.0.0.1", 0), Pages(tmp_path), "the dashboard", routes) as url:
        asking = [threading.Thread(target=_status, args=(url, "/wait")) for _ in range(THREADS)]
        for thread in asking:
            thread.start()
        try:
            assert all(taken.acquire(timeout=PATIENCE) for _ in asking)
            assert (_status(url, "/healthz"), _status(url, "/readyz")) == (200, 503)
        finally:
            let_go.set()
            for thread in asking:
                thread.join()
