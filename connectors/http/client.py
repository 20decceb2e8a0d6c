"""One HTTP receiver, and the requests to it.

Rule: a response is judged by its status. Its body may be cut off, compressed or endless; only an error before the
status counts as no response. ``responses`` classifies the responses.

Rule: a body is never decompressed. A few kilobytes that were compressed several times take hours to decompress, and
may produce no output at all, so that no limit on the output ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from time import monotonic
from typing import Any, Final

from msgspec import Struct

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.secrets import show_address
from kafka_eos.connectors._outbox.outbox_rows import Row
from kafka_eos.connectors.http.responses import HttpRequest, ResponseClass, build_request, classify_response, pause
from kafka_eos.core.error_messages import shows_all_messages
from kafka_eos.core.errors import ConfigError, Retryable

ensure_extra("http", "HttpSink")

import httpx2  # noqa: E402 - what is missing is said before

KEY: Final = "Idempotency-Key"
PROVENANCE: Final = "Kafka-Eos-Provenance"
_SHOWN: Final = 200
_MOST_BYTES: Final = 65_536
"""A longer body is not read to its end: the connection is closed, not reused."""
_UNCOMPRESSED: Final[Mapping[str, str]] = {"Accept-Encoding": "identity"}
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")
"""The syntax of header names and values: RFC 9110, sections 5.1 and 5.5."""


class HttpResponse(Struct, frozen=True):
    """The status, Retry-After and beginning of the body of a response."""

    status: int
    retry_after: str
    body_start: str

    def __str__(self) -> str:
        return f"{self.status}{f': {self.body_start}' if self.body_start else ''}"

    def shown(self) -> str:
        """Return the response for a message: its body may quote the row."""
        return str(self) if shows_all_messages() else str(self.status)


class HttpDeliveryClient:
    """A client that delivers rows to a URL.

    ``listed``: rows are sent as an array; otherwise each request contains one value.
    ``arrived``: statuses besides 2xx that mean that the receiver has the rows already.
    ``client``: creates the HTTP client, if not a default one.
    """

    def __init__(
        self,
        url: str,
        method: str,
        headers: Mapping[str, str],
        timeout: float,
        client: Callable[[], Any] | None,
        listed: bool,
        arrived: frozenset[int],
    ) -> None:
        self._url = _address(url)
        self._method = method
        self._headers = _fit(headers)
        self._timeout = timeout
        self._make = client
        self._listed = listed
        self._arrived = arrived
        self._not_before = 0.0

    @property
    def name(self) -> str:
        """Return scheme, host and port of the address. The path of a webhook is a secret, like user and query."""
        return show_address(str(self._url), path=False)

    @property
    def plain(self) -> bool:
        """Return whether requests go to another machine without TLS."""
        return self._url.scheme == "http" and self._url.host not in ("localhost", "127.0.0.1", "::1")

    def deliver(self, rows: Sequence[Row]) -> str | None:
        if (left := self._not_before - monotonic()) > 0:
            raise Retryable(f"{self.name} requested a pause of {left:.0f} s more")
        answer = self._send(build_request(rows, self._listed))
        match classify_response(answer.status, self._arrived):
            case ResponseClass.ARRIVED:
                return None
            case ResponseClass.REFUSED:
                return str(answer)
            case ResponseClass.AGAIN:
                self._not_before = monotonic() + pause(answer.retry_after)
                raise Retryable(f"{self.name} responded {answer.shown()}")
        raise ConfigError(f"{self.name} responded {answer.shown()}: the address, the login or the method is wrong")

    def _send(self, message: HttpRequest) -> HttpResponse:
        """Send a request. Raise Retryable if there is no response."""
        headers = {
            "Content-Type": "application/json",
            **_UNCOMPRESSED,
            **self._headers,
            KEY: message.key,
            PROVENANCE: message.provenance,
        }
        return self._ask(self._method, headers, message.body)

    def check_reachable(self) -> None:
        """Raise Retryable if the address does not respond. Any response is accepted; the request changes nothing."""
        self._ask("HEAD", {**_UNCOMPRESSED, **self._headers}, None)

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()
            self._thread.shutdown(wait=False)
            del self._client, self._thread

    def _ask(self, method: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request. Return its status, and as much of the body as arrives in time."""
        client, arrived = self._client, list[HttpResponse]()

        def exchange() -> None:
            with client.stream(method, self._url, headers=headers, content=body, timeout=self._timeout) as got:
                status, retry_after, start, length = got.status_code, got.headers.get("Retry-After", ""), b"", 0
                arrived.append(HttpResponse(status, retry_after, ""))
                for chunk in got.iter_raw():
                    start, length = (start + chunk)[:_SHOWN], length + len(chunk)
                    arrived[0] = HttpResponse(status, retry_after, " ".join(start.decode(errors="replace").split()))
                    if length > _MOST_BYTES:
                        return

        try:
            # The client bounds each read only. In a thread of its own, the whole exchange can be bounded.
            self._thread.submit(exchange).result(self._timeout)
        except httpx2.LocalProtocolError:  # its message may contain a header's value
            raise ConfigError(
                f"a request to {self.name} cannot be sent: HTTP does not allow one of its headers"
            ) from None
        except (httpx2.HTTPError, OSError) as error:
            self.close()  # ends an exchange that is still running
            if not arrived:
                raise Retryable(f"{self.name} does not respond: {type(error).__name__} {error}".rstrip()) from error
        return arrived[0]

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "http-sink")

    @cached_property
    def _client(self) -> httpx2.Client:
        made: httpx2.Client = httpx2.Client() if self._make is None else self._make()
        return made


def _fit(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers. Raise ConfigError for those that cannot be sent; it names them, and never shows a value."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"headers: {name!r} is not a valid header name")
        if name.lower() in (KEY.lower(), PROVENANCE.lower()):
            raise ConfigError(f"headers: {name} is set by the sink")
        if not _VALUE.fullmatch(value):
            raise ConfigError(
                f"headers: {name} has an invalid value. HTTP allows only visible ASCII, without "
                "spaces at the ends. Is a variable in it empty?"
            )
    return dict(headers)


_HOW: Final = (
    "Use an address such as https://example.com/orders, with a token in headers=. (The "
    "address is not shown because it may contain a secret.)"
)


def _address(url: str) -> httpx2.URL:
    try:
        found = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        raise ConfigError(f"HttpSink cannot parse the address of its receiver. {_HOW}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"HttpSink: the address does not name a receiver. {_HOW}")
    return found
