"""The bounds of the responses of a registry's server.

Rule: a response is never decompressed, and is read up to a limit of bytes and of time. One beyond that counts as none:
a few kilobytes that were compressed several times would otherwise take all memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import httpx2

_MOST_BYTES: Final = 16 << 20
"""Far more than the largest schema has that a registry accepts."""
_MOST_SECONDS: Final = 30.0
"""For the body; the client's own timeout bounds each read only."""


class _BoundedBody(httpx2.SyncByteStream):
    """The bytes of a body, up to the limits."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        size, deadline = 0, time.monotonic() + _MOST_SECONDS
        for chunk in self._body:
            size += len(chunk)
            if size > _MOST_BYTES:
                raise httpx2.ReadError(f"the response has more than {_MOST_BYTES:,} bytes")
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout(f"the response has not ended within {_MOST_SECONDS:g} s")
            yield chunk

    def close(self) -> None:
        self._body.close()


def bound_responses(session: httpx2.Client) -> None:
    """Bound the responses to all later requests of a session."""
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks["response"].append(_bound)


def _bound(response: httpx2.Response) -> None:
    response.headers.pop("Content-Encoding", None)
    response.stream = _BoundedBody(response.stream)
