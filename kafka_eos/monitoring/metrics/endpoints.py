"""The endpoints of a running job for programs: ``/metrics``, ``/healthz``, ``/readyz`` and ``/api/status``.

Rule: they only answer. If a request fails, the response is 500; the job is not affected. Probes need neither files nor
time, so they never wait for a thread that other requests have taken.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.monitoring.metrics.prometheus_text import expose

_LOG: Final = logging.getLogger("kafka_eos.http")
_TEXT: Final = "text/plain; charset=utf-8"
_Answer: TypeAlias = tuple[HTTPStatus, str, bytes]
"""Status, content type and body."""


class MetricsEndpoints:
    """The responses of the endpoints.

    ``status``: what the job shows of itself, None if nothing yet.
    """

    def __init__(
        self, observed: MetricsObserver, ready_within: float, status: Callable[[], Mapping[str, object] | None]
    ) -> None:
        self._observed = observed
        self._ready_within = ready_within
        self._status = status

    def routes(self) -> list[BaseRoute]:
        return [
            _on_thread("/metrics", self._metrics),
            _on_loop("/healthz", lambda accept: (HTTPStatus.OK, _TEXT, b"alive\n")),
            _on_loop("/readyz", self._readyz),
            _on_thread("/api/status", self._show_status),
        ]

    def _metrics(self, accept: str) -> _Answer:
        with self._observed.samples() as samples:
            text, content_type = expose(samples, accept)
        return HTTPStatus.OK, content_type, text

    def _readyz(self, accept: str) -> _Answer:
        found = self._observed.readiness(self._ready_within)
        return HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{found.reason}\n".encode()

    def _show_status(self, accept: str) -> _Answer:
        found = self._observed.readiness(self._ready_within)
        body = {**(self._status() or {}), "ready": found.ready, "reason": found.reason}
        return HTTPStatus.OK, "application/json", json.dumps(body).encode()


def _on_thread(path: str, answer: Callable[[str], _Answer]) -> Route:
    """Return the route of an endpoint that may wait for a file or a lock."""
    return Route(path, lambda request: _respond(path, answer, request))


def _on_loop(path: str, answer: Callable[[str], _Answer]) -> Route:
    async def respond(request: Request) -> Response:
        return _respond(path, answer, request)

    return Route(path, respond)


def _respond(path: str, answer: Callable[[str], _Answer], request: Request) -> Response:
    try:
        status, content_type, body = answer(request.headers.get("Accept", ""))
    except Exception as error:  # noqa: BLE001 - whatever it is, the client learns its class, and the log all of it
        _LOG.exception("%s cannot be answered", path)
        text = f"{type(error).__name__}: see the log of the job\n"
        status, content_type, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, text.encode()
    return Response(body, status, {"Content-Type": content_type})
