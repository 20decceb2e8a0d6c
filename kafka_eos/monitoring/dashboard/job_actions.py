"""Requests of the dashboard to a running job: take a savepoint, stop. They are those that the commands send. Also the
pages with data of the job: savepoints as files, and the contents of dead letters.

Rule: each request carries in a header the token that was printed when the dashboard started. No page of another site
can send it, and no log contains it. A response says what has happened, not what was begun.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.dead_letter_counts import read_dead_letter_file
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.monitoring.dashboard import job_directories as reading
from kafka_eos.monitoring.dashboard.refused_records import build_dead_letters
from kafka_eos.monitoring.dashboard.savepoint_archive import stream_tar
from kafka_eos.storage import savepoint_files as savepoints

_PATIENCE = 600.0
"""Seconds that a job gets to answer."""
_WAITING = 8
"""Requests that wait for jobs at the same time: they take threads, and looks need some as well."""
TOKEN_HEADER = "Kafka-Eos-Token"  # noqa: S105 - the name of a header
"""The header with the token. Browsers send logins by themselves, even for pages of other sites, but not this header."""


class Actions:
    """Actions on jobs in ``home``, for users who know the ``token``, which expires after ``lifetime`` seconds."""

    def __init__(self, home: Path, lifetime: float = math.inf) -> None:
        self._home = home
        self._waiting = asyncio.Semaphore(_WAITING)
        self._ends = time.monotonic() + lifetime
        self.token = secrets.token_urlsafe(16)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/api/jobs/{job}/savepoint", self._savepoint, methods=["POST"]),
            Route("/api/jobs/{job}/stop", self._stop, methods=["POST"]),
            Route("/api/jobs/{job}/savepoints/{name}", self._download),
            Route("/api/jobs/{job}/dead-letters", self._letters),
        ]

    async def _savepoint(self, request: Request) -> Response:
        directory = self._authorize(request)
        target = savepoints.default_target(directory)
        return await self._send_request(directory, requests.TakeSavepoint(path=str(target)), _name(request))

    async def _stop(self, request: Request) -> Response:
        return await self._send_request(self._authorize(request), requests.StopJob(), _name(request))

    async def _download(self, request: Request) -> Response:
        self._expect_token(request)
        job, name = request.path_params["job"], request.path_params["name"]
        known = reading.list_savepoints(self._home / job) if job in reading.list_jobs(self._home) else ()
        path = next((each.path for each in known if each.path.name == name), None)
        if path is None:
            raise HTTPException(404, f"there is no savepoint {name!r} of {job!r} in {self._home}")
        file = {"Content-Disposition": f'attachment; filename="{quote(f"{job}-{name}.tar")}"'}
        return StreamingResponse(stream_tar(path), media_type="application/x-tar", headers=file)

    async def _letters(self, request: Request) -> Response:
        self._expect_token(request)
        job: str = request.path_params["job"]
        if job not in reading.list_jobs(self._home):
            raise HTTPException(404, f"there is no job {job!r} in {self._home}")
        try:
            refused = await run_in_threadpool(read_dead_letter_file, self._home / job)
        except (OSError, ValueError) as error:
            raise HTTPException(500, f"what job {job!r} has refused cannot be read: {error}") from error
        return JSONResponse({"letters": build_dead_letters(refused)})

    def _authorize(self, request: Request) -> Path:
        """Check the token and return the directory of the running job."""
        self._expect_token(request)
        job: str = request.path_params["job"]
        directory = self._home / job
        if job not in reading.list_jobs(self._home) or not requests.is_running(directory):
            raise HTTPException(409, f"job {job!r} does not run in {self._home}")
        return directory

    def _expect_token(self, request: Request) -> None:
        if not secrets.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            raise HTTPException(403, "this action needs the token in the address that kafka-eos ui prints")
        if time.monotonic() > self._ends:
            raise HTTPException(403, "the token has expired: restart kafka-eos ui for a new one")

    async def _send_request(self, directory: Path, request: requests.JobRequest, by: str) -> Response:
        def ask() -> requests.RequestAnswer:
            return requests.wait(directory, requests.submit(directory, request, by), _PATIENCE)

        try:
            async with self._waiting:
                answer = await run_in_threadpool(ask)
        except KafkaEosError as error:
            raise HTTPException(409, str(error)) from error
        return JSONResponse({"epoch": answer.epoch, "path": answer.path})


def _name(request: Request) -> str:
    """Return who asks, for the job's history."""
    user = request.state.user or "a holder of the token"
    return f"{user}, in the dashboard" + ("" if request.client is None else f", from {request.client.host}")
