"""One receiver, and the requests to it.

Rule: whatever goes wrong on the way is "no answer"; what an answer means is in ``answers``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from kafka_eos.connectors.http.answers import Message
from kafka_eos.errors import ConfigError, Retryable
from kafka_eos.extras import expect_extra

expect_extra("http", "HttpSink")

import httpx2  # noqa: E402 - what is missing is said before

KEY: Final = "Idempotency-Key"
PROVENANCE: Final = "Kafka-Eos-Provenance"
_SHOWN: Final = 200
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")
"""RFC 9110, sections 5.1 and 5.5."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``said``: the beginning of its body, for people."""

    status: int
    retry_after: str
    said: str

    def __str__(self) -> str:
        return f"{self.status}{f': {self.said}' if self.said else ''}"


class Receiver:
    """``client`` makes what sends, if not a plain client. May be used from threads."""

    def __init__(
        self, url: str, method: str, headers: Mapping[str, str], timeout: float, client: Callable[[], Any] | None
    ) -> None:
        self._url, self._method, self._headers, self._timeout = _address(url), method, _fit(headers), timeout
        self._make = client

    @property
    def name(self) -> str:
        """The address without what may be secret: user, password, query."""
        return str(self._url.copy_with(username=None, password=None, query=None, fragment=None))

    @property
    def plain(self) -> bool:
        """Without TLS, and not to this machine."""
        return self._url.scheme == "http" and self._url.host not in ("localhost", "127.0.0.1", "::1")

    def send(self, message: Message) -> Answer:
        """Raises Retryable if no answer comes."""
        headers = {
            "Content-Type": "application/json",
            **self._headers,
            KEY: message.key,
            PROVENANCE: message.provenance,
        }
        return self._ask(self._method, headers, message.body)

    def look(self) -> None:
        """Raises Retryable if nobody answers there. Whatever the answer is, it changes nothing."""
        self._ask("HEAD", self._headers, None)

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()
            del self._client

    def _ask(self, method: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        try:
            got = self._client.request(method, self._url, headers=headers, content=body, timeout=self._timeout)
        except httpx2.LocalProtocolError:  # its words may hold a header's value
            raise ConfigError(
                f"a request to {self.name} cannot be sent: HTTP does not allow one of its headers"
            ) from None
        except (httpx2.TransportError, OSError) as error:
            raise Retryable(f"{self.name} does not answer: {type(error).__name__} {error}".rstrip()) from error
        return Answer(got.status_code, got.headers.get("Retry-After", ""), " ".join(got.text[:_SHOWN].split()))

    @cached_property
    def _client(self) -> httpx2.Client:
        made: httpx2.Client = httpx2.Client() if self._make is None else self._make()
        return made


def _fit(headers: Mapping[str, str]) -> dict[str, str]:
    """ConfigError for headers that cannot be sent; it names them, and never shows a value."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"headers: {name!r} cannot name a header")
        if name.lower() in (KEY.lower(), PROVENANCE.lower()):
            raise ConfigError(f"headers: {name} is set by the sink")
        if not _VALUE.fullmatch(value):
            raise ConfigError(
                f"headers: {name} has a value that HTTP does not allow: visible ASCII, and no space at its ends. Is "
                "what it is made of empty?"
            )
    return dict(headers)


def _address(url: str) -> httpx2.URL:
    try:
        found = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise ConfigError(f"HttpSink({url!r}): {error}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"HttpSink({url!r}) names no receiver: give its address, such as https://example.com/orders")
    return found
