"""What a request holds, and what an answer to it means. Pure.

    2xx                                    it has arrived
    408, 409, 425, 429, 5xx, no answer     ask again: the receiver is away, busy, or at work on the same key
    400, 413, 422                          the receiver will never take what is in it
    all else                               the address, the login or the sink is wrong: a person must look

Rule: only what is surely about a row is held against it. Otherwise a login that has expired would turn every row into
one that is refused. Sources: RFC 9110, section 15; RFC 6585, section 4; draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from kafka_eos.connectors._outbox.outbox_rows import Row

_AGAIN = frozenset({408, 409, 425, 429})
_ROW = frozenset({400, 413, 422})
LONGEST_WAIT = 300.0
"""Seconds that a receiver may ask for with Retry-After."""


class Meaning(enum.Enum):
    """What is to be done after an answer."""

    ARRIVED = "arrived"
    AGAIN = "again"
    REFUSED = "refused"
    WRONG = "wrong"


def meaning(status: int, arrived: frozenset[int] = frozenset()) -> Meaning:
    """``arrived``: what this receiver answers besides when it knows the key."""
    if 200 <= status < 300 or status in arrived:
        return Meaning.ARRIVED
    if status in _AGAIN or 500 <= status < 600:
        return Meaning.AGAIN
    return Meaning.REFUSED if status in _ROW else Meaning.WRONG


def pause(retry_after: str) -> float:
    """Seconds that a Retry-After asks for; 0 if it gives a date or nothing, as the pauses of the engine grow."""
    return min(float(retry_after), LONGEST_WAIT) if retry_after.isascii() and retry_after.isdigit() else 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """One request. ``rows`` are those in it."""

    rows: Sequence[Row]
    key: str
    body: bytes
    provenance: str


def message(rows: Sequence[Row], listed: bool) -> Message:
    """``listed``: an array of rows, each with its id, also if it is one; else the value of the one row."""
    if not listed:
        (only,) = rows
        return Message(rows, only.key, only.value, only.provenance)
    body = b"[" + b",".join(b'{"id":"%b","value":%b}' % (row.key.encode(), row.value) for row in rows) + b"]"
    key = hashlib.sha256("".join(row.key for row in rows).encode()).hexdigest()[:32]
    return Message(rows, rows[0].key if len(rows) == 1 else key, body, rows[0].provenance)
