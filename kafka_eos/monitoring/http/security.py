"""The check of each request, and the headers of each response.

Rule: a request is checked before a route sees it. A header makes the browser refuse to load anything from other sites.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kafka_eos.monitoring.http.hosts import is_loopback, refusal

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Connection": "close",  # one request per connection, so that each connection has one deadline
}


class SecurityMiddleware:
    """ASGI middleware that checks the Host header and sets the headers of responses.

    ``local``: it is served at loopback. Then it answers only who asks for loopback by name; see ``hosts``.
    """

    def __init__(self, app: ASGIApp, local: bool) -> None:
        self._app, self._local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        asked = Headers(scope=scope).get("host")  # which every browser sends, and a probe of HTTP 1.0 need not
        if self._local and asked is not None and not is_loopback(asked):
            await JSONResponse({"error": refusal(asked)}, status_code=421)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


def build_app(routes: list[BaseRoute], local: bool) -> ASGIApp:
    """Build the ASGI application of all routes. ``local``: see ``SecurityMiddleware``."""
    handlers: dict[Any, Any] = {HTTPException: _refused}
    return SecurityMiddleware(Starlette(routes=routes, exception_handlers=handlers), local)
