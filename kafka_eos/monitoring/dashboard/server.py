"""The dashboard on the HTTP server.

Rule: streams of open pages end before the server does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from starlette.routing import BaseRoute

from kafka_eos.monitoring.dashboard.routes import Pages
from kafka_eos.monitoring.http.access import HttpAccess
from kafka_eos.monitoring.http.server import serve


def serve_dashboard(
    address: tuple[str, int],
    pages: Pages,
    what: str,
    others: Sequence[BaseRoute] = (),
    access: HttpAccess | None = None,
) -> AbstractContextManager[str]:
    """Serve the dashboard and other routes, as ``serve`` does."""
    return serve(address, [*pages.routes(), *others], what, pages.streams.end, access=access)
