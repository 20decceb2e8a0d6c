"""The dashboard's HTTP routes: the page, its files, and the facts as JSON and as a stream of events.

Rule: no request here changes anything. Nothing is loaded from other sites: a header makes the browser refuse it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kafka_eos.core.json_values import Json
from kafka_eos.monitoring.dashboard import job_directories as reading
from kafka_eos.monitoring.dashboard import job_facts as facts
from kafka_eos.monitoring.dashboard.rates import Rates
from kafka_eos.monitoring.dashboard.shared_polling import EventStreams
from kafka_eos.monitoring.metrics.http_server import NON_BLOCKING, ROUTES, MetricsEndpoints
from kafka_eos.monitoring.metrics.loopback_guard import is_loopback, refusal

_STATIC = Path(__file__).parent / "static"

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Pages:
    """The dashboard of the jobs in ``home``, or of one of them. ``streams`` ends when its streams are to end."""

    def __init__(self, home: Path, only: str | None = None) -> None:
        self._home, self._only = home, only
        self.streams = EventStreams()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._begin),
            Route("/job/{job}", self._page),
            Route("/api/jobs", self._jobs),
            Route("/api/events", self._stream_of_jobs),
            Route("/api/jobs/{job}", self._job),
            Route("/api/jobs/{job}/events", self._stream_of_job),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]

    async def _begin(self, request: Request) -> Response:
        return await self._page(request) if self._only is None else RedirectResponse(f"/job/{quote(self._only)}")

    async def _page(self, request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def _jobs(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._list))

    async def _job(self, request: Request) -> Response:
        job = request.path_params["job"]
        found = await run_in_threadpool(self._found, job)
        if found is None:
            raise HTTPException(404, self._missing(job))
        return JSONResponse(facts.build_details(found))

    async def _stream_of_jobs(self, request: Request) -> Response:
        return self.streams.stream("the list of jobs", self._list)

    async def _stream_of_job(self, request: Request) -> Response:
        """Stream the facts of a job, also of one that has not run yet: the page updates when it starts."""
        job, rates = request.path_params["job"], Rates()

        def look() -> Json:
            found = self._found(job)
            if found is None:
                return {"missing": self._missing(job)}
            return {**facts.build_details(found), "rates": rates.update(found.status)}

        return self.streams.stream(f"job {job!r}", look)

    def _list(self) -> Json:
        found = (self._found(job) for job in reading.list_jobs(self._home))
        jobs: list[Json] = [facts.build_summary(each) for each in found if each is not None]
        return {"home": str(self._home), "jobs": jobs}

    def _found(self, job: str) -> reading.JobFiles | None:
        return reading.read_job(self._home, job) if self._only in (None, job) else None

    def _missing(self, job: str) -> str:
        return f"Job {job} has not run in {self._home}"


def build_metrics_routes(answers: MetricsEndpoints) -> list[BaseRoute]:
    """Build the routes of the metrics endpoints."""

    def route(path: str) -> Route:
        def ask(request: Request) -> Response:
            status, content_type, body = ROUTES[path](answers, request.headers.get("Accept", ""))
            return Response(body, status, media_type=content_type)

        async def ask_here(request: Request) -> Response:
            return ask(request)

        return Route(path, ask_here if path in NON_BLOCKING else ask)

    return [route(path) for path in ROUTES]


class SecurityMiddleware:
    """ASGI middleware that sets security headers and checks the Host header.

    ``local``: it is served at loopback. Then it answers only who asks for loopback by name; see
    ``monitoring.metrics.loopback_guard``.
    """

    def __init__(self, app: ASGIApp, local: bool) -> None:
        self._app, self._local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope).get("host", "")
        if self._local and not is_loopback(asked):
            await JSONResponse({"error": refusal(asked)}, status_code=421)(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, guarded)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


def build_app(routes: list[BaseRoute], local: bool) -> ASGIApp:
    """Build the ASGI application of all routes. ``local``: see ``SecurityMiddleware``."""
    handlers: dict[Any, Any] = {HTTPException: _refused}
    return SecurityMiddleware(Starlette(routes=routes, exception_handlers=handlers), local)
