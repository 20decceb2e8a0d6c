"""The control channel between supervisor and worker by TCP, with the same frames as on a Unix socket.

Rule: a send that makes no progress for long fails, so that a receiver that has ended blocks no sender.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.worker.control_messages import (
    ControlMessage,
    ToSupervisor,
    ToWorker,
    decode_for_supervisor,
    decode_for_worker,
    encode_frame,
    read_frames,
)

_LOOK = 0.2
"""Most seconds until a waiting thread sees that the channel was closed."""
_SEND_TIMEOUT = 30.0
"""Most seconds between two bytes of a message that the other end accepts."""


class TcpChannel:
    """One end of a control channel. Several threads may send, one may receive. Each raises OSError if it is broken."""

    def __init__(self, sock: DataSocket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._is_closed = threading.Event()

    def send(self, message: ControlMessage) -> None:
        """Send one complete message."""
        data = memoryview(encode_frame(message))
        with self._sending:
            until = time.monotonic() + _SEND_TIMEOUT
            while data:
                if self._is_closed.is_set():
                    raise BrokenPipeError(errno.EPIPE, "the control channel is closed")
                try:
                    data = data[self._sock.send(data) :]
                    until = time.monotonic() + _SEND_TIMEOUT
                except BlockingIOError:
                    self._wait(select.POLLOUT)
                    if time.monotonic() > until:
                        raise TimeoutError(errno.ETIMEDOUT, "the other end accepts no more messages") from None

    def receive_as_worker(self) -> Iterator[ToWorker]:
        """Yield messages from the supervisor until one of both closes the channel."""
        return map(decode_for_worker, read_frames(self._read))

    def receive_as_supervisor(self) -> Iterator[ToSupervisor]:
        """Yield messages from the worker until one of both closes the channel."""
        return map(decode_for_supervisor, read_frames(self._read))

    def close(self) -> None:
        """End the channel. Threads that send or receive stop soon."""
        self._is_closed.set()
        with suppress(OSError):  # the other end has closed it already
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Release the socket, once no thread receives any more."""
        self.close()
        with self._sending:
            self._sock.close()

    def _read(self, size: int) -> bytes:
        while not self._is_closed.is_set():
            try:
                return self._sock.recv(size)
            except BlockingIOError:
                self._wait(select.POLLIN)
        return b""

    def _wait(self, event: int) -> None:
        ready = select.poll()
        ready.register(self._sock.fileno(), event)
        ready.poll(_LOOK * 1000)
