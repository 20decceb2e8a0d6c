"""The connections of the HTTP server: their number is bounded, and each has deadlines.

The server accepts connections itself, because asyncio's own server counts none of them, waits forever for a request,
and writes thousands of log lines per second when the process has no free file descriptor.
Rule: a client decides neither how many descriptors the process has left nor how much it logs.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from uvicorn.protocols.http.h11_impl import H11Protocol

_LOG: Final = logging.getLogger("kafka_eos.http")
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
FOR_PROBES: Final = "for_probes"
"""The name in the state of a request under which it stands whether only probes are answered."""
_PROBES: Final = (b"GET /healthz ", b"GET /readyz ")
_LONGEST_PROBE: Final = max(map(len, _PROBES))
_ACCEPT_PAUSE: Final = 1.0
"""Seconds until the next attempt after an error of ``accept``, such as no free descriptor."""


class ConnectionLimits(Struct, frozen=True):
    """The bounds of all connections. Durations are in seconds.

    ``connections``  that are open at the same time
    ``probes``       that are open besides those, and get an answer only if they ask what a probe asks
    ``request``      from the beginning of a connection, its TLS handshake included, to the end of the request's header
    ``stall``        in which a client takes nothing of its response
    """

    connections: int = 128
    probes: int = 16
    request: float = 10.0
    stall: float = 60.0

    def fit_to_process(self) -> ConnectionLimits:
        """Return limits that leave most of the process's file descriptors to the job."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = self.connections if soft == resource.RLIM_INFINITY else max(8, soft // 8)
        return replace(self, connections=min(self.connections, share), probes=min(self.probes, share))


class BoundedProtocol(H11Protocol):
    """One connection for one request.

    It is aborted if the request does not arrive in time, or if the client takes nothing of its response for too long.
    Every response closes its connection, see ``security``: so there is no idle time between requests to bound.
    """

    def __init__(self, limits: ConnectionLimits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits, self._began = limits, time.monotonic()
        self._timers = dict[str, asyncio.TimerHandle]()
        self._stalled = False
        self.is_connected = False
        """Whether its TLS handshake is done."""
        self.closed = asyncio.Event()

    @property
    def for_probes(self) -> bool:
        """Return whether it has a place for probes, and others are not answered."""
        return bool(self.app_state[FOR_PROBES])

    @for_probes.setter
    def for_probes(self, value: bool) -> None:
        self.app_state[FOR_PROBES] = value

    @property
    def is_waiting_for_client(self) -> bool:
        """Return whether the client has not sent its request yet, or takes nothing of its response."""
        return self._stalled or not self._is_answering

    @property
    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_connected = True
        left = self._limits.request - (time.monotonic() - self._began)
        self._arm("request", max(0.0, left), self._expect_request)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)
        self.closed.set()

    def pause_writing(self) -> None:
        self._stalled = True
        self._arm("stall", self._limits.stall, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled = False
        self._timers.pop("stall").cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP; during the response to an earlier request, close the connection instead."""
        if self._is_answering:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _expect_request(self) -> None:
        """Abort a connection without a request. Look again while a response is on its way."""
        if self.transport.is_closing():  # the rest of the response is not taken
            self._arm("request", self._limits.stall, self.transport.abort)
        elif not self._is_answering:
            self.transport.abort()
        else:
            self._arm("request", self._limits.request, self._expect_request)

    def _arm(self, what: str, seconds: float, act: Callable[[], None]) -> None:
        if (timer := self._timers.get(what)) is not None:
            timer.cancel()
        self._timers[what] = self.loop.call_later(seconds, act)


def _begins_like_a_probe(connection: socket.socket) -> bool:
    """Return whether the request of a probe has arrived. Reads nothing."""
    try:
        return connection.recv(_LONGEST_PROBE, socket.MSG_PEEK | socket.MSG_DONTWAIT).startswith(_PROBES)
    except OSError:
        return False


class ConnectionAcceptor:
    """Accepts the connections of one listening socket, up to a limit.

    A probe whose request has arrived gets one of the places for probes at once, unless it is encrypted: another place
    could be taken from it before its request is read, if many clients connect again and again.
    If all other places are taken, a new connection replaces the oldest one that waits for its client, so idle clients
    do not keep probes and people out. If none waits, it gets one of the places for probes. So slow requests, such as
    logins with wrong passwords, do not look like a dead job to who may kill it. Without such a place it gets 503.

    ``build``: makes the protocol of a connection.
    ``tls``: returns the TLS context of the next connection; None for plain HTTP.
    """

    def __init__(
        self,
        listening: socket.socket,
        limits: ConnectionLimits,
        build: Callable[[], BoundedProtocol],
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        listening.setblocking(False)
        self._listening, self._limits = listening, limits
        self._build, self._tls = build, tls
        self._open: dict[asyncio.Task[None], BoundedProtocol] = {}
        """The connections, the oldest first."""

    async def run(self) -> None:
        """Accept connections until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                _LOG.error("connections cannot be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            is_probe = self._tls() is None and _begins_like_a_probe(connection)
            for_probes = is_probe or not await self._has_place(for_probes=False)
            if for_probes and not await self._has_place(for_probes=True):
                self._refuse(connection)
                continue
            protocol = self._build()
            protocol.for_probes = for_probes
            task = loop.create_task(self._attend(connection, protocol))
            self._open[task] = protocol
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # otherwise a series of new connections would keep the others waiting

    async def _attend(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        """Serve one connection until it is closed."""
        try:
            context = self._tls()
            patience = None if context is None else self._limits.request
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=patience
            )
            await protocol.closed.wait()
        except OSError as error:  # of the client, or of its handshake
            _LOG.debug("a connection ended: %s", error)
            connection.close()

    def _forget(self, ended: asyncio.Task[None]) -> None:
        del self._open[ended]

    async def _has_place(self, *, for_probes: bool) -> bool:
        """Return whether there is a place of that kind, or one could be freed."""
        taken = sum(protocol.for_probes is for_probes for protocol in self._open.values())
        places = self._limits.probes if for_probes else self._limits.connections
        return taken < places or await self._make_room(for_probes=for_probes)

    async def _make_room(self, *, for_probes: bool) -> bool:
        """End the oldest connection of that kind that waits for its client; return whether there was one."""
        for task, protocol in self._open.items():
            if protocol.for_probes is for_probes and protocol.is_waiting_for_client:
                if protocol.is_connected:
                    protocol.transport.abort()
                else:
                    task.cancel()
                await asyncio.wait([task])
                return True
        return False

    def _refuse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)  # so few bytes have room, or the client is gone
            if self._tls() is None:
                connection.send(_FULL)
            connection.shutdown(socket.SHUT_WR)
