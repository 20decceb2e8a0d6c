"""The dashboard's HTTP routes: the page, its files, and the facts as JSON and as a stream of events.

Rule: no request here changes anything.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from kafka_eos.core.json_values import Json
from kafka_eos.monitoring.dashboard import job_directories as reading
from kafka_eos.monitoring.dashboard import job_facts as facts
from kafka_eos.monitoring.dashboard.rates import Rates
from kafka_eos.monitoring.dashboard.shared_polling import EventStreams

_STATIC = Path(__file__).parent / "static"


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
        """Stream the facts of a job, even of one that has not run yet: the page updates when it starts."""
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
