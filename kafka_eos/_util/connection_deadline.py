"""A deadline for a connection.

The timeouts of HTTP clients bound each read. A server that sends its headers one byte at a time would otherwise hold a
client for hours.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Timer


class ConnectionDeadline:
    """Ends a connection after some seconds, unless it is released before: reads find the end of the stream then."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._twin = connection.dup()  # TLS takes the descriptor out of the socket below it
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def release(self) -> None:
        self._timer.cancel()
        self._twin.close()

    def _end(self) -> None:
        with suppress(OSError):  # it has ended by itself, or was released
            self._twin.shutdown(socket.SHUT_RDWR)
        self._twin.close()
