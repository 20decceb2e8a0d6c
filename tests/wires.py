"""Connected sockets of each kind that workers use, and a proxy that stands between two of them and does harm."""

from __future__ import annotations

import functools
import queue
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress

from kafka_eos.runtime.transport.credentials import Credentials
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.self_signed import create_credentials
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress, TcpListener, dial
from tests.waiting import PATIENCE

KINDS = ("unix", "ipv4", "ipv6")
_CHUNK = 64 << 10
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a closed socket resets its connection."""


@functools.cache
def credentials() -> Credentials:
    """Those of the run that a test plays."""
    return create_credentials()


def connect(kind: str, closing: ExitStack) -> tuple[DataSocket, DataSocket]:
    """Both ends of a connection."""
    if kind == "unix":
        return socket.socketpair()
    arrived = queue.SimpleQueue[DataSocket]()
    listener = listen(kind, arrived, closing)
    return dial_in(listener.address), arrived.get(timeout=PATIENCE)


def listen(kind: str, arrived: queue.SimpleQueue[DataSocket], closing: ExitStack) -> TcpListener:
    host, own = "::1" if kind == "ipv6" else "127.0.0.1", credentials()
    find = lambda hello, is_over: own.secret  # noqa: E731
    listener = TcpListener(host, range(1), own.make_server_tls(), find, lambda hello, sock: arrived.put(sock))
    closing.callback(listener.close)
    return listener


def dial_in(address: TcpAddress, hello: bytes = b"hello", own: Credentials | None = None) -> DataSocket:
    """Connect with the credentials of the run, or with others."""
    own = own or credentials()
    return dial(address, own.make_client_tls(), own.secret, hello)


class FaultProxy:
    """Passes connections on to ``target``, until it is told otherwise."""

    def __init__(self, target: TcpAddress) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = TcpAddress("127.0.0.1", self._listener.getsockname()[1])
        self.delay = 0.0
        """Seconds that each chunk is kept."""
        self.recorded = bytearray()
        """The bytes that went through, in both directions."""
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Pass nothing on, and keep all connections: each end believes that the other is there."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Reset all connections. New ones are passed on."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def inject(self, data: bytes) -> None:
        """Send bytes to the target that nobody wrote."""
        for sock in self._sockets[1::2]:
            sock.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((self._target.host, self._target.port))
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while chunk := one.recv(_CHUNK):
                self._open.wait()
                time.sleep(self.delay)
                other.sendall(chunk)
                self.recorded += chunk
            other.shutdown(socket.SHUT_WR)
