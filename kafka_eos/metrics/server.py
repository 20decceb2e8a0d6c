"""The address of a running job: ``/metrics``, ``/healthz``, ``/readyz`` and ``/api/status``.

Without the extra ``ui``; with it, the dashboard's server gives the same answers.

Rule: it only answers questions. Its threads are daemons, a client that says nothing is dropped, and a question that
cannot be answered is answered with 500 and a notice to whoever asked; the job does not hear of it.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from kafka_eos.errors import ConfigError
from kafka_eos.metrics.exposition import expose
from kafka_eos.metrics.observed import Observed

_LOG: Final = logging.getLogger("kafka_eos.http")
_SILENCE = 10.0
"""Seconds that a client may say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], answers: Answers) -> None:
        self.answers = answers
        self.address_family = family_of(address[0])
        super().__init__(address, _Handler)


class Answers:
    """What is said to whom. ``status``: what the job shows of itself, None if nothing yet."""

    def __init__(
        self, observed: Observed, ready_within: float, status: Callable[[], Mapping[str, object] | None]
    ) -> None:
        self._observed, self._ready_within, self._status = observed, ready_within, status

    def metrics(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        with self._observed.samples() as samples:
            text, content_type = expose(samples, accept)
        return HTTPStatus.OK, content_type, text

    def healthz(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        return HTTPStatus.OK, _TEXT, b"alive\n"

    def readyz(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        found = self._observed.readiness(self._ready_within)
        return HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{found.why}\n".encode()

    def status(self, accept: str) -> tuple[HTTPStatus, str, bytes]:
        found = self._observed.readiness(self._ready_within)
        told = {**(self._status() or {}), "ready": found.ready, "why": found.why}
        return HTTPStatus.OK, "application/json", json.dumps(told).encode()


_TEXT = "text/plain; charset=utf-8"
PATHS: Final[Mapping[str, Callable[[Answers, str], tuple[HTTPStatus, str, bytes]]]] = {
    "/metrics": Answers.metrics,
    "/healthz": Answers.healthz,
    "/readyz": Answers.readyz,
    "/api/status": Answers.status,
}
"""What is answered where, to a question with that header ``Accept``: status, type and body."""
AT_ONCE: Final = frozenset({"/healthz", "/readyz"})
"""Those that need neither a file nor time. A probe must not wait for a thread that other questions have taken."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SILENCE
    server: _Server
    server_version = "kafka-eos"
    sys_version = ""

    def do_GET(self) -> None:
        answer = PATHS.get(urlsplit(self.path).path)
        if answer is None:
            there = f"there are {', '.join(PATHS)}; the dashboard needs: pip install 'kafka-eos[ui]'"
            self.send_error(HTTPStatus.NOT_FOUND, explain=there)
            return
        try:
            status, content_type, body = answer(self.server.answers, self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 (whatever it is, whoever asked is told)
            _LOG.exception("%s cannot be answered", self.path)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=f"{type(error).__name__}: {error}")
            return
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
    """Of the socket that listens there."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def host_in_url(host: str) -> str:
    """A host as URLs have it: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def unservable(what: str, error: OSError) -> ConfigError:
    """Why an address cannot be had, and what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            advice = "Give each process of a host a port of its own, or port 0 for one that is free"
        case errno.EACCES:
            advice = "Take a port above 1023, or port 0 for one that is free"
        case _:
            advice = "Name an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all that it has"
    return ConfigError(f"{what} cannot be served: {error.strerror or error}. {advice}")


@contextmanager
def serving(address: tuple[str, int], answers: Answers) -> Iterator[str]:
    """Serve within the block; yields the URL. ConfigError if the address cannot be had."""
    host, port = address
    try:
        server = _Server(address, answers)
    except OSError as error:
        raise unservable(f"http={host}:{port}", error) from error
    with server:
        threading.Thread(target=server.serve_forever, daemon=True, name="http").start()
        try:
            yield f"http://{host_in_url(host)}:{server.server_port}"
        finally:
            server.shutdown()
