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

from kafka_eos.monitoring.http.access import PROBES, HttpAccess
from kafka_eos.monitoring.http.connections import FOR_PROBES
from kafka_eos.monitoring.http.hosts import refusal

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Connection": "close",  # one request per connection, so that each connection has one deadline
}


class SecurityMiddleware:
    """ASGI middleware that checks who is answered, and sets the headers of responses.

    A route finds the name of the user in ``request.state.user``; it is empty if the server has no users.
    ``local``: the server listens on loopback.
    """

    def __init__(self, app: ASGIApp, access: HttpAccess, local: bool) -> None:
        self._app = app
        self._access, self._local = access, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = await self._find_refusal(scope) or self._app
        await app(scope, receive, guarded)

    async def _find_refusal(self, scope: Scope) -> ASGIApp | None:
        """Return the response to a request that is refused; None if it is not."""
        asked = Headers(scope=scope).get("host")  # which every browser sends, and a probe of HTTP 1.0 need not
        if asked is not None and not self._access.allows_host(asked, local=self._local):
            return JSONResponse({"error": refusal(asked, local=self._local)}, 421)
        if scope.get("state", {}).get(FOR_PROBES) and scope["path"] not in PROBES:
            return JSONResponse({"error": "too many requests at once"}, 503, {"Retry-After": "5"})
        user = await self._access.find_user(scope)
        if user is None:
            challenge = {"WWW-Authenticate": 'Basic realm="kafka-eos", charset="UTF-8"'}
            return JSONResponse({"error": "this needs a login"}, 401, challenge)
        scope["state"] = {**scope.get("state", {}), "user": user}
        return None


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


def build_app(routes: list[BaseRoute], access: HttpAccess, local: bool) -> ASGIApp:
    """Build the ASGI application of all routes. ``local``: see ``SecurityMiddleware``."""
    handlers: dict[Any, Any] = {HTTPException: _refused}
    return SecurityMiddleware(Starlette(routes=routes, exception_handlers=handlers), access, local)
