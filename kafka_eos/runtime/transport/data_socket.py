"""The socket that frames travel on: a Unix socket, or a TLS connection with the same behavior.

Rule: no call blocks. One that can do nothing raises BlockingIOError, and whatever else goes wrong is an OSError.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview


class DataSocket(Protocol):
    """The methods of a non-blocking socket that carry frames."""

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def send(self, data: Bytes, /) -> int: ...

    def recv(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes. Fewer than that: nothing more has arrived. b"": the other end is gone."""

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...
