"""Serves the dashboard on a thread of its own, until its owner ends it.

Rule: the address is bound, or refused, before anything else starts; an open connection never delays the end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.routing import BaseRoute

from kafka_eos.monitoring.dashboard.routes import Pages, build_app
from kafka_eos.monitoring.metrics.http_server import family_of, host_in_url, unservable
from kafka_eos.monitoring.metrics.loopback_guard import is_loopback


class _DashboardServer(uvicorn.Server):
    """A uvicorn server that ends the event streams before it shuts down."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.streams.end()
        await super().shutdown(sockets)


@contextmanager
def serve_dashboard(
    address: tuple[str, int], pages: Pages, what: str, others: Sequence[BaseRoute] = ()
) -> Iterator[str]:
    """Serve the dashboard while the block runs; yield its URL.

    ConfigError, which names ``what``, if the address cannot be had.
    """
    host, port = address
    try:
        listening = socket.create_server((host, port), family=family_of(host))
    except OSError as error:
        raise unservable(what, error) from error
    shown = host_in_url(host)
    config = uvicorn.Config(
        build_app([*pages.routes(), *others], is_loopback(shown)),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    with listening:
        server = _DashboardServer(config, pages)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True, name="dashboard")
        thread.start()
        try:
            yield f"http://{shown}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
