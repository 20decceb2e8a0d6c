"""The HTTP server of a running job: ``/metrics``, ``/healthz``, ``/readyz`` and ``/api/status``.

It is used without the extra ``ui``; with it, the dashboard's server gives the same responses.

Rule: it only answers requests. Its threads are daemons and few, and a slow client is dropped. If a request fails, the
response is 500 with the reason; the job is not affected.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.monitoring.metrics.loopback_guard import is_loopback, refusal
from kafka_eos.monitoring.metrics.prometheus_text import expose

_LOG: Final = logging.getLogger("kafka_eos.http")
_PATIENCE: Final = 10.0
"""Seconds that a client may take for its question, and for each half of the answer."""
_CLIENTS: Final = 32
"""That are answered at the same time."""
_FULL: Final = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], answers: MetricsEndpoints, clients: int, patience: float) -> None:
        self.answers = answers
        self.patience = patience
        self.local = is_loopback(host_in_url(address[0]))
        self._room = threading.BoundedSemaphore(clients)
        self.address_family = family_of(address[0])
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)  # so few bytes have room, or the client is none
            request.send(_FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):  # the client is gone, which is its right
            _LOG.error("a client at %s could not be answered", client_address, exc_info=error)


class MetricsEndpoints:
    """The responses of /metrics, /healthz, /readyz and /api/status.

    ``status``: what the job shows of itself, None if nothing yet.
    """

    def __init__(
        self, observed: MetricsObserver, ready_within: float, status: Callable[[], Mapping[str, object] | None]
    ) -> None:
        self._observed = observed
        self._ready_within = ready_within
        self._status = status

    def metrics(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        with self._observed.samples() as samples:
            text, content_type = expose(samples, accept)
        return HTTPStatus.OK, content_type, text

    def healthz(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        return HTTPStatus.OK, _TEXT, b"alive\n"

    def readyz(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        found = self._observed.readiness(self._ready_within)
        return HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{found.reason}\n".encode()

    def status(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        found = self._observed.readiness(self._ready_within)
        body = {**(self._status() or {}), "ready": found.ready, "reason": found.reason}
        return HTTPStatus.OK, "application/json", json.dumps(body).encode()


_TEXT = "text/plain; charset=utf-8"
ROUTES: Final[Mapping[str, Callable[[MetricsEndpoints, str], tuple[HTTPStatus, str, bytes]]]] = {
    "/metrics": MetricsEndpoints.metrics,
    "/healthz": MetricsEndpoints.healthz,
    "/readyz": MetricsEndpoints.readyz,
    "/api/status": MetricsEndpoints.status,
}
"""The handler of each path."""
NON_BLOCKING: Final = frozenset({"/healthz", "/readyz"})
"""Paths that need neither files nor time, so probes never wait for a thread.

A probe must not wait for a thread that other questions have taken.
"""


class _DeadlineReader(io.RawIOBase):
    """A raw reader of a socket that times out at a deadline, however slow the client."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the question took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _MetricsServer
    server_version = "kafka-eos"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_DeadlineReader(self.connection, time.monotonic() + self.server.patience))

    def do_GET(self) -> None:
        asked = self.headers.get("Host")  # which every browser says, and a probe of HTTP 1.0 need not
        if self.server.local and asked is not None and not is_loopback(asked):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=refusal(asked))
            return
        answer = ROUTES.get(urlsplit(self.path).path)
        if answer is None:
            there = f"there are {', '.join(ROUTES)}; the dashboard needs: pip install 'kafka-eos[ui]'"
            self.send_error(HTTPStatus.NOT_FOUND, explain=there)
            return
        try:
            status, content_type, body = answer(self.server.answers, self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 (whatever it is, whoever asked is told)
            _LOG.exception("%s cannot be answered", self.path)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=f"{type(error).__name__}: {error}")
            return
        self.connection.settimeout(self.server.patience)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """A line for each scrape would bury what the job says."""


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a socket that listens on ``host``."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def host_in_url(host: str) -> str:
    """A host as URLs have it: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def unservable(what: str, error: OSError) -> ConfigError:
    """Return the error for an address that cannot be bound, with what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            advice = "Give each process of a host a port of its own, or port 0 for one that is free"
        case errno.EACCES:
            advice = "Take a port above 1023, or port 0 for one that is free"
        case _:
            advice = "Name an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all that it has"
    return ConfigError(f"{what} cannot be served: {error.strerror or error}. {advice}")


@contextmanager
def serve_metrics(
    address: tuple[str, int], answers: MetricsEndpoints, clients: int = _CLIENTS, patience: float = _PATIENCE
) -> Iterator[str]:
    """Serve the endpoints while the block runs; yield the URL. ConfigError if the address cannot be had.

    ``patience``: seconds that a client may take for its question, and for each half of the answer.
    """
    host, port = address
    try:
        server = _MetricsServer(address, answers, clients, patience)
    except OSError as error:
        raise unservable(f"http={host}:{port}", error) from error
    with server:
        threading.Thread(target=server.serve_forever, daemon=True, name="http").start()
        try:
            yield f"http://{host_in_url(host)}:{server.server_port}"
        finally:
            server.shutdown()
