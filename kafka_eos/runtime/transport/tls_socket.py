"""TLS connections that behave as non-blocking sockets.

Rule: OpenSSL allows one call at a time, so a lock keeps a receiving and a sending thread apart, and no call waits.
"""

from __future__ import annotations

import socket
import ssl
import threading

from kafka_eos.runtime.transport.data_socket import Bytes


class TlsSocket:
    """A TLS connection that behaves as a non-blocking socket.

    Part of a decrypted TLS record would not make the socket readable again, so ``recv`` takes all that it may.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        sock.setblocking(False)

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool, /) -> None:
        if flag:
            raise ValueError("a TLS connection of workers never blocks")

    def send(self, data: Bytes, /) -> int:
        try:
            with self._lock:
                return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int, /) -> bytes:
        chunks = bytearray()
        with self._lock:
            while len(chunks) < size:
                try:
                    chunk = self._sock.recv(size - len(chunks))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if not chunks:
                        raise BlockingIOError from None
                    break
                if not chunk:
                    break
                chunks += chunk
        return bytes(chunks)

    def shutdown(self, how: int, /) -> None:
        # SSLSocket's own method would return later bytes as they arrive, without decrypting them.
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        self._sock.close()
