"""Waits for a condition, such as a broker that serves clients, which one Metadata request over a plain socket shows.

Rule: an open port is no answer. A broker serves once it lists itself: then its controller has unfenced it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

_METADATA, _VERSION, _CORRELATION = 3, 4, 1
_REQUEST = struct.pack(">hhih i?", _METADATA, _VERSION, _CORRELATION, -1, 0, False)  # no client id, no topics
_POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for ``condition``. Return whether it became true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def is_ready(port: int, timeout: float = 2.0) -> bool:
    """Return whether the broker answers and lists itself as alive."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (length,) = struct.unpack(">i", _read(connection, 4))
            correlation, _throttle, brokers = struct.unpack_from(">iii", _read(connection, length))
    except (OSError, EOFError, struct.error):
        return False  # not up yet, on its way down, or no Kafka at all
    return bool(correlation == _CORRELATION and brokers > 0)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
