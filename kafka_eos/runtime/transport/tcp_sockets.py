"""TLS connections between the processes of a job: dialed and accepted, each after its handshake.

Rule: a stranger costs little: a bounded number of handshakes run at once, each for a bounded time. When a listener has
no place left, a new connection takes one from the machine with most handshakes, so a stranger keeps out no worker.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakSet

from msgspec import Struct

from kafka_eos._util.logging_setup import RepeatFilter
from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.transport import handshake
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.tls_socket import TlsSocket

_HANDSHAKE = 10.0
"""Most seconds of a connection and its handshake."""
_CONCURRENT = 64
"""Most handshakes of a listener at once."""
_LOOK = 0.1
"""Most seconds until one more of them is ended, if the one that was ended takes its time."""
_LAST = 1.0
"""Most seconds for each thread of a listener that is closed."""
_IDLE: int = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE")  # noqa: B009
"""The option has another name on macOS."""
_KEEPALIVE = ((_IDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds without data after which the other machine is probed, between two probes, and unanswered probes."""
_LOG = logging.getLogger(__name__)
_LOG.addFilter(RepeatFilter())  # a stranger does not decide how much is logged

FindSecret: TypeAlias = Callable[[bytes, Callable[[], bool]], bytes | None]
"""Returns the secret for a hello, or None. It may wait until the given function returns true: not needed."""


class TcpAddress(Struct, frozen=True):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def dial(address: TcpAddress, tls: ssl.SSLContext, secret: bytes, hello: bytes) -> DataSocket:
    """Connect to a listener of the job. Raises ConnectionError that names the address."""
    deadline = time.monotonic() + _HANDSHAKE
    try:
        sock = socket.create_connection((address.host, address.port), timeout=_HANDSHAKE)
        try:
            secured = tls.wrap_socket(sock, do_handshake_on_connect=False)
            sock = secured
            secured.do_handshake()
            handshake.prove_dialer(secured, secret, hello, deadline)
            return _prepare(secured)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from error


class TcpListener:
    """A port on which connections of the job are accepted. ``on_connected`` receives the hello and socket of each.

    It is the first free port of ``ports``; 0 stands for any. Both functions are called on other threads. Raises
    ConfigError if no port is free.
    """

    def __init__(
        self,
        host: str,
        ports: range,
        tls: ssl.SSLContext,
        find_secret: FindSecret,
        on_connected: Callable[[bytes, DataSocket], None],
    ) -> None:
        self._tls = tls
        self._find_secret = find_secret
        self._on_connected = on_connected
        self._handshakes = _Handshakes()
        self._sock = _listen(host, ports)
        self.address = TcpAddress(host, self._sock.getsockname()[1])
        self._greeting = WeakSet[threading.Thread]()
        """The threads of handshakes."""
        self._thread = threading.Thread(target=self._accept, daemon=True, name="listener")
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections, and end handshakes. Connections that are accepted stay.

        Its threads end first: one that calls OpenSSL while the process ends would crash it.
        """
        with suppress(OSError):  # it is closed already
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        self._sock.close()
        self._thread.join(_LAST)
        self._handshakes.end_all()
        for greeting in [*self._greeting]:
            greeting.join(_LAST)

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return  # closed
                _LOG.warning("a connection could not be accepted: %s", error)
                time.sleep(0.1)  # such as too many open files, which may pass
                continue
            begun = self._handshakes.begin(sock, peer[0])
            greeting = threading.Thread(target=self._greet, args=(begun,), daemon=True, name="handshake")
            self._greeting.add(greeting)
            greeting.start()

    def _greet(self, begun: _Handshake) -> None:
        deadline = time.monotonic() + _HANDSHAKE
        try:
            begun.sock.settimeout(_HANDSHAKE)
            secured = self._tls.wrap_socket(begun.sock, server_side=True, do_handshake_on_connect=False)
            begun.replace_socket(secured)
            secured.do_handshake()
            hello = handshake.prove_listener(
                secured, lambda hello: self._find_secret(hello, lambda: begun.is_over), deadline
            )
            connected = _prepare(secured)
        except OSError as error:
            begun.sock.close()
            _LOG.warning("a connection from %s was refused: %s", begun.address, error)
            return
        finally:
            self._handshakes.remove(begun)
        if begun.is_over:
            connected.close()
        else:
            self._on_connected(hello, connected)


@dataclass(eq=False, slots=True)
class _Handshake:
    """One handshake of a listener. ``is_over``: it was ended for another one."""

    sock: socket.socket
    address: str
    is_over: bool = False

    def replace_socket(self, secured: ssl.SSLSocket) -> None:
        """Go on with the socket that wraps the first one. Raises ConnectionAbortedError if the handshake was ended.

        ``end`` may have found the first socket when it was wrapped already, and could not shut it down.
        """
        self.sock = secured
        if self.is_over:
            raise ConnectionAbortedError("the handshake was ended")

    def end(self) -> None:
        """End it: its thread, which may wait for the other end, finds the connection closed."""
        self.is_over = True
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class _Handshakes:
    """The handshakes of a listener, the oldest first, up to a limit. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: list[_Handshake] = []

    def begin(self, sock: socket.socket, address: str) -> _Handshake:
        """Add a handshake. If there is no room, end the oldest one of the address that has the most."""
        begun = _Handshake(sock, address)
        with self._changed:
            while len(self._begun) >= _CONCURRENT:
                ((most, _),) = Counter(each.address for each in self._begun).most_common(1)
                next(each for each in self._begun if each.address == most).end()
                self._changed.wait(_LOOK)
            self._begun.append(begun)
        return begun

    def remove(self, begun: _Handshake) -> None:
        with self._changed:
            self._begun.remove(begun)
            self._changed.notify_all()

    def end_all(self) -> None:
        """End all handshakes."""
        with self._changed:
            for begun in self._begun:
                begun.end()


def _prepare(sock: ssl.SSLSocket) -> DataSocket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return TlsSocket(sock)


def _listen(host: str, ports: range) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, backlog=_CONCURRENT)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot listen on {TcpAddress(host, port)}: {error.strerror or error}") from error
    raise ConfigError(f"no port from {ports.start} to {ports.stop - 1} is free on {host}: allow more ports")
