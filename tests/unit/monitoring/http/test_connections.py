"""The bounds of the HTTP server, over real sockets: whoever can reach it without a login cannot stop a job with it."""

from __future__ import annotations

import logging
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.connections import ConnectionLimits
from kafka_eos.monitoring.http.server import serve
from tests.waiting import PATIENCE, eventually


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE)


def status(url: str, path: str = "/alive") -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


class Door:
    """A route that keeps its response until the test says so, and one whose response has no end."""

    def __init__(self) -> None:
        self.opened, self.asked = threading.Event(), threading.Semaphore(0)

    def routes(self) -> list[Route]:
        return [
            Route("/alive", self._alive),
            Route("/healthz", self._alive),
            Route("/waits", self._waits),
            Route("/endless", self._endless),
        ]

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("alive")

    def _waits(self, request: Request) -> Response:
        self.asked.release()
        self.opened.wait(PATIENCE)
        return PlainTextResponse("at last")

    async def _endless(self, request: Request) -> Response:
        def pieces() -> Iterator[bytes]:
            while not self.opened.is_set():
                yield b"x" * (1 << 20)

        return StreamingResponse(pieces())


@contextmanager
def door(limits: ConnectionLimits) -> Iterator[tuple[str, Door]]:
    found = Door()
    with serve(("127.0.0.1", 0), found.routes(), "the test", limits=limits) as url:
        try:
            yield url, found
        finally:
            found.opened.set()


def ended(client: socket.socket, within: float = PATIENCE) -> bool:
    """Return whether the server ends a connection on which the client reads to the end."""
    client.settimeout(within)
    with suppress(ConnectionResetError):
        try:
            while client.recv(1 << 16):
                pass
        except TimeoutError:
            return False
    return True


def test_a_client_that_says_nothing_is_dropped() -> None:
    with door(ConnectionLimits(request=0.5)) as (url, _), connected(url) as silent:
        assert ended(silent)


def test_a_client_that_never_ends_its_question_is_dropped_however_often_it_says_something() -> None:
    with door(ConnectionLimits(request=0.5)) as (url, _), connected(url) as slow:
        slow.settimeout(0.05)
        slow.sendall(b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        until = time.monotonic() + PATIENCE
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < until:
                slow.sendall(b"X")
                with suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    return
            pytest.fail("it is still connected")


def test_one_connection_answers_one_question() -> None:
    with door(ConnectionLimits()) as (url, _), connected(url) as client:
        client.sendall(b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = client.makefile("rb").read().lower()
        assert answer.startswith(b"http/1.1 200") and b"\r\nconnection: close\r\n" in answer


def test_a_client_that_takes_nothing_of_its_answer_is_dropped() -> None:
    with door(ConnectionLimits(stall=0.5)) as (url, _), connected(url) as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(1)
        time.sleep(1.5)
        assert ended(client), "it would never end otherwise"


def test_idle_clients_make_room_and_those_that_are_answered_do_not() -> None:
    with door(ConnectionLimits(connections=3)) as (url, found), ExitStack() as open_:
        asking = [open_.enter_context(connected(url)) for _ in range(2)]
        for client in asking:
            client.sendall(b"GET /waits HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert all(found.asked.acquire(timeout=PATIENCE) for _ in asking)
        idle = [open_.enter_context(connected(url)) for _ in range(20)]
        assert ended(idle[0]), "a newer one has its place"
        assert status(url) == 200, "a question is answered although idle clients have taken all places"

        third = open_.enter_context(connected(url))
        third.sendall(b"GET /waits HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert found.asked.acquire(timeout=PATIENCE)
        with connected(url) as fourth:
            fourth.sendall(b"GET /alive HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            told = fourth.makefile("rb").read()
            assert told.startswith(b"HTTP/1.1 503 ") and b"retry-after: 5" in told.lower()

        found.opened.set()
        for client in (*asking, third):
            assert b"at last" in client.makefile("rb").read()
        eventually(lambda: status(url) == 200, "there is room again")


def test_slow_requests_without_a_login_never_keep_out_probes() -> None:
    """Who may kill a job asks these."""
    with door(ConnectionLimits(connections=3, probes=2)) as (url, found), ExitStack() as open_:
        for _ in range(3):
            client = open_.enter_context(connected(url))
            client.sendall(b"GET /waits HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert found.asked.acquire(timeout=PATIENCE)
        for _ in range(20):  # neither these have a place for long, nor those that ask something else
            open_.enter_context(connected(url))
            assert status(url, "/waits") == 503

            assert status(url, "/healthz") == 200
        assert not found.asked.acquire(blocking=False)


def test_many_who_connect_again_and_again_do_not_keep_out_probes() -> None:
    """One place is left for all: who has it would lose it to the next one, before its request is read.

    A probe whose request arrives after its connection was accepted may still lose it, so it is sent again, as
    Kubernetes does before it restarts a pod.
    """

    def is_answered(open_: ExitStack) -> bool:
        probe = open_.enter_context(connected(url))
        probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for _ in range(10):
            open_.enter_context(connected(url))
        with suppress(ConnectionResetError):
            return probe.makefile("rb").read().startswith(b"HTTP/1.1 200")
        return False

    with door(ConnectionLimits(connections=2, probes=2)) as (url, found), connected(url) as client:
        client.sendall(b"GET /waits HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert found.asked.acquire(timeout=PATIENCE)
        with ExitStack() as open_:
            for _ in range(20):
                assert any(is_answered(open_) for _ in range(3))


def test_without_a_place_for_probes_a_connection_is_refused_at_once() -> None:
    with door(ConnectionLimits(connections=1, probes=0)) as (url, found), connected(url) as client:
        client.sendall(b"GET /waits HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert found.asked.acquire(timeout=PATIENCE)

        with connected(url) as second:
            told = second.makefile("rb").read()

        assert told.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in told


def test_garbage_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in place of a request nor behind one, whose response may have begun."""
    behind = b" HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with door(ConnectionLimits()) as (url, opened), caplog.at_level(logging.INFO):
        for begin in (b"\x16\x03\x01", b"GET /alive" + behind, b"GET /endless" + behind, b"GET /waits" + behind) * 5:
            with connected(url) as client:
                client.sendall(begin)
                if begin.startswith(b"GET /endless"):
                    assert client.recv(1)
                client.sendall(b" this is no HTTP\r\n\r\n")
                ended(client)
        opened.opened.set()
        assert status(url) == 200
    assert caplog.text == ""


WITHOUT_DESCRIPTORS = """
import logging, os, resource, sys
from kafka_eos.monitoring.http.server import serve
logging.basicConfig(level=logging.INFO, format="%(message)s")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
with serve(("127.0.0.1", 0), [], "the test") as url:
    print(url, flush=True)
    sys.stdin.readline()
    newest = os.open(os.devnull, os.O_RDONLY)
    os.close(newest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (newest, hard))
    print("none left", flush=True)
    sys.stdin.readline()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print("restored", flush=True)
    sys.stdin.readline()
"""


def test_no_free_descriptor_is_logged_once_a_minute_and_overcome() -> None:
    command, pipe = [sys.executable, "-c", WITHOUT_DESCRIPTORS], subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as server,
        ExitStack() as open_,
    ):
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        url = server.stdout.readline().strip()
        assert status(url, "/nothing") == 404
        print(file=server.stdin, flush=True)
        assert server.stdout.readline() == "none left\n"
        for _ in range(20):
            open_.enter_context(connected(url))
        time.sleep(2.5)
        print(file=server.stdin, flush=True)
        assert server.stdout.readline() == "restored\n"
        eventually(lambda: status(url, "/nothing") == 404, "it accepts again")
        print(file=server.stdin, flush=True)
        logged = server.stderr.read()
    assert logged.count("Too many open files") == 1


JOB = """
import socket, sys, time
from kafka_eos.monitoring.http.server import serve
with serve(("127.0.0.1", 0), [], "the test") as url:
    print(url, flush=True)
    while True:  # what a job does: it opens and closes files, and its epochs go on
        for _ in range(20):
            open("/dev/null").close()
        print("epoch", flush=True)
        time.sleep(0.05)
"""


def test_thousands_of_idle_clients_do_not_stop_a_job_that_may_open_few_files() -> None:
    """With 256 descriptors the server takes 32; the clients come from another process, which has descriptors enough."""
    limited = [sys.executable, "-c", f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n{JOB}"]
    with (
        subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job,
        ExitStack() as open_,
    ):
        assert job.stdout is not None and job.stderr is not None
        try:
            url = job.stdout.readline().strip()
            for _ in range(400):
                open_.enter_context(connected(url))
            assert status(url, "/nothing") == 404
            for _ in range(20):
                assert job.stdout.readline() == "epoch\n"
        finally:
            job.kill()
        assert job.stderr.read() == ""


@pytest.mark.parametrize(("soft", "taken"), [(1024, 128), (256, 32), (20, 8), (resource.RLIM_INFINITY, 128)])
def test_the_job_keeps_most_descriptors(soft: int, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: Callable[[int], tuple[int, int]] = lambda _: (soft, soft)  # noqa: E731
    monkeypatch.setattr(resource, "getrlimit", given)

    assert ConnectionLimits().fit_to_process().connections == taken


def test_a_server_that_cannot_start_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread has failed, so nobody would see the page missing."""

    def load(self: uvicorn.Config) -> None:
        raise ImportError("no module named httptools")

    monkeypatch.setattr(uvicorn.Config, "load", load)

    with (
        pytest.raises(ConfigError, match="the test cannot be served: ImportError: no module"),
        door(ConnectionLimits()),
    ):
        raise AssertionError("it serves")
