"""A TCP port in front of a shared server. Closed, it is as if the server was stopped, for one test alone."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Door:
    """Open from the start. Its port stays the same."""

    def __init__(self, behind: int) -> None:
        """``behind``: the server's port on this machine."""
        self._behind = behind
        self._through: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Who calls is refused, and who is connected is cut off."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for each in list(self._through):
            _cut(each)

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def _listen(self) -> None:
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                caller, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._behind))
                self._through |= {caller, server}
                for one, other in ((caller, server), (server, caller)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either was cut off
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):
            _cut(each)
        self._through -= {one, other}


def _cut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
