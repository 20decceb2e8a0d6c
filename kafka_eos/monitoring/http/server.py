"""The server on a thread of its own, until its owner ends it.

Rule: the address is bound and served, or refused, before anything else starts. An open connection never delays the
end, and the job never waits for a request.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import uvicorn
from starlette.routing import BaseRoute

from kafka_eos._util.logging_setup import RepeatFilter
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.access import HttpAccess
from kafka_eos.monitoring.http.certificates import Certificate
from kafka_eos.monitoring.http.connections import FOR_PROBES, BoundedProtocol, ConnectionAcceptor, ConnectionLimits
from kafka_eos.monitoring.http.hosts import LOOPBACK, host_in_url
from kafka_eos.monitoring.http.security import build_app

_LOG: Final = logging.getLogger("kafka_eos.http")
_QUIET: Final = 60.0
"""Seconds between two log lines of one kind: a client does not decide how much is logged."""
for _logger in ("kafka_eos.http", "uvicorn.error"):
    logging.getLogger(_logger).addFilter(RepeatFilter(_QUIET))


class _BoundedServer(uvicorn.Server):
    """A uvicorn server that accepts connections within limits, and ends event streams before it shuts down."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: ConnectionLimits,
        certificate: Certificate | None,
        end_streams: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._limits, self._certificate = limits, certificate
        self._end_streams = end_streams
        self._begun = threading.Event()
        self._failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of the given socket; uvicorn's servers, which have no limits, are not created."""
        assert sockets is not None
        (listening,) = sockets
        self.servers = []
        asyncio.get_running_loop().set_exception_handler(_log_failed_connection)
        acceptor = ConnectionAcceptor(listening, self._limits, self._build_protocol, self._find_context)
        self._accepting = asyncio.create_task(acceptor.run())
        self.started = True
        self._begun.set()

    def serve_on(self, listening: socket.socket) -> None:
        """Serve until the end. What prevents a start is kept for ``find_failure``."""
        try:
            self.run([listening])
        except BaseException as error:
            if self.started:
                raise
            self._failure = error
        finally:
            self._begun.set()

    def find_failure(self) -> BaseException | None:
        """Wait until connections are accepted, and return None; or return what prevented it."""
        self._begun.wait()
        return None if self.started else self._failure or RuntimeError("its thread has ended")

    def _find_context(self) -> ssl.SSLContext | None:
        return None if self._certificate is None else self._certificate.context

    def _build_protocol(self) -> BoundedProtocol:
        return BoundedProtocol(
            self._limits, config=self.config, server_state=self.server_state, app_state={FOR_PROBES: False}
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        self._end_streams()
        await super().shutdown(sockets)


@contextmanager
def serve(
    address: tuple[str, int],
    routes: Sequence[BaseRoute],
    what: str,
    end_streams: Callable[[], None] = lambda: None,
    limits: ConnectionLimits | None = None,
    access: HttpAccess | None = None,
) -> Iterator[str]:
    """Serve the routes while the block runs; yield the URL. Raise ConfigError, which names ``what``, if that fails.

    ``end_streams``: ends the responses that have no end of their own. ``access``: by default everyone who reaches the
    address may read, over plain HTTP.
    """
    (host, port), access = address, access or HttpAccess()
    try:
        listening = socket.create_server((host, port), family=_family_of(host))
    except OSError as error:
        raise _explain(what, error) from error
    shown = host_in_url(host)
    config = uvicorn.Config(
        build_app(list(routes), access, host in LOOPBACK),
        lifespan="off",
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        log_level="error",  # a request that is not HTTP is no reason for a line: anyone can send one
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    with listening:
        server = _BoundedServer(
            config, (limits or ConnectionLimits()).fit_to_process(), access.certificate, end_streams
        )
        thread = threading.Thread(target=server.serve_on, args=(listening,), daemon=True, name="http")
        thread.start()
        if (failure := server.find_failure()) is not None:
            raise ConfigError(f"{what} cannot be served: {type(failure).__name__}: {failure}") from failure
        try:
            yield f"{'http' if access.certificate is None else 'https'}://{shown}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _log_failed_connection(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio reports, within the limits of this logger: some bytes of a client make a callback raise."""
    _LOG.error("a connection has failed: %s", context["message"], exc_info=context.get("exception"))


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _explain(what: str, error: OSError) -> ConfigError:
    """Return the error for an address that cannot be bound, with what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            advice = "Give each process of a host a port of its own, or port 0 for one that is free"
        case errno.EACCES:
            advice = "Take a port above 1023, or port 0 for one that is free"
        case _:
            advice = "Name an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all that it has"
    return ConfigError(f"{what} cannot be served: {error.strerror or error}. {advice}")
