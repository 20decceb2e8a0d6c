"""The content of a request, and the classification of responses. Pure.

    2xx                                   the rows have arrived
    408, 409, 425, 429, 5xx, no response  retry: the receiver is down, busy, or working on the same key
    400, 413, 422                         the receiver permanently rejects the content
    all others                            the address, the login or the sink is wrong: needs manual intervention

Rule: only errors that are certainly about a row count against it. Otherwise an expired login would cause every row to
be rejected. Sources: RFC 9110, section 15; RFC 6585, section 4; draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence

from msgspec import Struct

from kafka_eos.connectors._outbox.outbox_rows import Row

_AGAIN = frozenset({408, 409, 425, 429})
_ROW = frozenset({400, 413, 422})
LONGEST_WAIT = 300.0
"""Most seconds that a Retry-After is honored."""


class ResponseClass(enum.Enum):
    """The class of a response: delivered, retry, rejected, or misconfigured."""

    ARRIVED = "arrived"
    AGAIN = "again"
    REFUSED = "refused"
    WRONG = "wrong"


def classify_response(status: int, arrived: frozenset[int] = frozenset()) -> ResponseClass:
    """Return the class of a response by its status code."""
    if 200 <= status < 300 or status in arrived:
        return ResponseClass.ARRIVED
    if status in _AGAIN or 500 <= status < 600:
        return ResponseClass.AGAIN
    return ResponseClass.REFUSED if status in _ROW else ResponseClass.WRONG


def pause(retry_after: str) -> float:
    """Return the seconds of a Retry-After; 0 for a date or nothing, because the engine's pauses grow by themselves."""
    return min(float(retry_after), LONGEST_WAIT) if retry_after.isascii() and retry_after.isdigit() else 0.0


class HttpRequest(Struct, frozen=True):
    """One request: its rows, idempotency key, body and provenance."""

    rows: Sequence[Row]
    key: str
    body: bytes
    provenance: str


def build_request(rows: Sequence[Row], listed: bool) -> HttpRequest:
    """Return the request for these rows."""
    if not listed:
        (only,) = rows
        return HttpRequest(rows, only.key, only.value, only.provenance)
    body = b"[" + b",".join(b'{"id":"%b","value":%b}' % (row.key.encode(), row.value) for row in rows) + b"]"
    key = hashlib.sha256("".join(row.key for row in rows).encode()).hexdigest()[:32]
    return HttpRequest(rows, rows[0].key if len(rows) == 1 else key, body, rows[0].provenance)
