"""The bounds of the responses of a registry's server.

Rule: a response is never decompressed, and is read up to a limit of bytes and of time: a few kilobytes that were
compressed several times would otherwise take all memory, and a large schema minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx2

from kafka_eos._util.connection_deadline import ConnectionDeadline

MOST_BYTES: Final = 4 << 20
"""More than the largest schema has that a registry accepts: Confluent's stores each in a record of a megabyte."""
_MOST_SECONDS: Final = 10.0
"""The time limit of a request and its response. The client's own timeout limits each read only."""
_DEADLINE: Final = "trace"
"""The name of the request extension that receives the connection."""


class ResponseTooLarge(Exception):
    """A response has more than ``MOST_BYTES``. The client does not retry it, as it does after other errors."""


class _RequestDeadline:
    """The deadline of one request, which begins when its connection is open."""

    def __init__(self) -> None:
        self._of_connection: ConnectionDeadline | None = None

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._of_connection = ConnectionDeadline(info["return_value"].get_extra_info("socket"), _MOST_SECONDS)

    def release(self) -> None:
        if self._of_connection is not None:
            self._of_connection.release()


class _BoundedBody(httpx2.SyncByteStream):
    """The bytes of a body, up to the limits."""

    def __init__(self, body: Any, deadline: _RequestDeadline) -> None:
        self._body, self._deadline = body, deadline

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._body:
            size += len(chunk)
            if size > MOST_BYTES:
                raise ResponseTooLarge(f"it has more than {MOST_BYTES:,} bytes")
            yield chunk

    def close(self) -> None:
        self._deadline.release()
        self._body.close()


def bound_responses(session: httpx2.Client) -> None:
    """Bound the responses to all later requests of a session."""
    session.headers |= {"Accept-Encoding": "identity", "Connection": "close"}  # each request has its own connection
    session.event_hooks["request"].append(_begin)
    session.event_hooks["response"].append(_bound)


def _begin(request: httpx2.Request) -> None:
    request.extensions[_DEADLINE] = _RequestDeadline()


def _bound(response: httpx2.Response) -> None:
    response.headers.pop("Content-Encoding", None)
    response.stream = _BoundedBody(response.stream, response.request.extensions[_DEADLINE])
