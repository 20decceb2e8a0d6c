"""The headers of records, as they are read from the client and given to it.

Rule: headers that cannot be read or written are an error of their record, which its source's policy takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import length_hint, methodcaller
from typing import Any, Final

from kafka_eos.connectors.kafka.client.librdkafka import Message
from kafka_eos.core.provenance import HEADER
from kafka_eos.core.records import Headers

UNREADABLE: Final = "dead_letter.headers"
"""The header that a dead letter has in place of those that cannot be read; its value is the reason."""

_REASON: Final = "the headers cannot be read: a header name is not valid UTF-8"
LOST: Final[list[Any]] = [(UNREADABLE, _REASON.encode())]
"""Takes the place of headers that cannot be read."""
_get: Callable[[Message], Any] = methodcaller("headers")
"""Calls through C, which checks the result: for a name that is not UTF-8 the client returns a list with a null pointer
beside its error. The interpreter's fast path for methods uses such a list, and dies."""


def expect_readable(headers: Headers) -> Headers:
    """Return the headers of a record. Raises ValueError if they could not be read."""
    if headers is LOST:
        raise ValueError(_REASON)
    return headers


def read_raw_headers(message: Message) -> Headers:
    """Return the headers of a record for its dead letter; the reason in their place if they cannot be read."""
    try:
        return _get(message) or ()
    except (SystemError, UnicodeDecodeError):
        message.set_headers(LOST)  # the client has kept its list, and returns it the next time, without an error
        return _get(message)  # type: ignore[no-any-return]


def read_all_headers(messages: Sequence[Message]) -> Iterator[Headers]:
    """Yield the headers of each record that has any, as ``read_raw_headers`` returns them, one after the other."""
    unread = iter(messages)
    while True:
        try:
            yield from filter(None, map(_get, unread))  # without a call of Python for a record without headers
            return
        except (SystemError, UnicodeDecodeError):
            messages[-1 - length_hint(unread)].set_headers(LOST)
            yield LOST


def check_headers(headers: Iterable[Any]) -> Headers:
    """Return a user's headers as a list to write, without provenance: the writer adds its own.

    Raises TypeError or ValueError if the client would not write them as they are.
    """
    if isinstance(headers, list | tuple) and not headers:
        return headers
    if isinstance(headers, str | bytes | dict) or not isinstance(headers, Iterable):
        raise TypeError(f"headers must be pairs of name and value, as in [('kind', b'order')], not {headers!r:.80}")
    return [pair for pair in map(_check_header, headers) if pair[0] != HEADER]


def _check_header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise TypeError(f"a header must be a pair of name and value, as in ('kind', b'order'), not {header!r:.80}")
    name, value = header
    if not isinstance(name, str):
        raise TypeError(f"the name of a header must be a str, not {type(name).__name__}: {name!r:.80}")
    if "\0" in name:
        raise ValueError(f"the header name {name!r:.80} contains a NUL character, at which the client would cut it")
    try:
        name.encode()
        value = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise ValueError(f"header {name!r:.80} cannot be encoded: {error}") from None
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"the value of header {name!r:.80} must be bytes or None, not {type(value).__name__}")
    return name, value
