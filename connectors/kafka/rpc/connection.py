"""One connection to one broker: TCP or TLS, the login, one request at a time.

Rule: a connection with any error is never used again, so that a late response is never taken for another one. Temporary
errors are Retryable; ConnectionRejected is failed TLS or a failed login.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from kafka_eos.connectors.kafka.rpc.error_codes import UNSUPPORTED_VERSION, name_of
from kafka_eos.connectors.kafka.rpc.messages.connection import (
    API_VERSIONS,
    ApiVersionsResponse,
    api_versions,
    sasl_authenticate,
    sasl_handshake,
)
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_TAGS,
    MalformedMessage,
    MessageReader,
    int16,
    int32,
    old_text,
)
from kafka_eos.connectors.kafka.rpc.sasl import LoginFailed
from kafka_eos.connectors.kafka.rpc.security import Sasl, Security, tls_advice
from kafka_eos.core.errors import ConfigError, Retryable

A = TypeVar("A")

_LARGEST_ANSWER: Final = 100_000_000
_IDLE_SECONDS: Final = 540.0
"""Seconds of idleness after which a connection is not used any more: a minute less than the brokers' limit."""
_OF_A_SESSION: Final = 0.85
"""The fraction of a login's lifetime that is used."""
_NO_LOGIN_HERE: Final = 34
"""ILLEGAL_SASL_STATE, in the response to a handshake."""
_WANTS_LOGIN: Final = (
    "A listener that requires a login does so: set security.protocol=SASL_SSL or "
    "SASL_PLAINTEXT, sasl.mechanisms, and its other settings (sasl.username, "
    "sasl.password)"
)
_FOREIGN: Final = {
    b"\x15\x03": "it responds with TLS: set security.protocol=SSL, or SASL_SSL if it also requires a login",
    b"HTTP": "it responds like a web server, not like a Kafka broker: check the port",
}
"""First bytes of other protocols: a TLS alert (RFC 8446, 5.1), and HTTP. As a length they would exceed 300 MB."""


class ConnectionRejected(Exception):
    """The broker rejected TLS or the login. ``login``: because of the identity, not because of the protocol."""

    def __init__(self, reason: str, *, login: bool) -> None:
        super().__init__(reason)
        self.login = login


class ForeignProtocol(MalformedMessage):
    """The peer does not speak the Kafka protocol; the message names the protocol that it speaks."""


class BrokerConnection:
    """One connection to one broker, with one request at a time.

    It is open from the start. Only ``end`` may be called from another thread.
    """

    def __init__(self, host: str, port: int, security: Security, until: float) -> None:
        """Connect to the broker. Raise Retryable if the connection is not ready at ``until``."""
        self._host = host
        self._port = port
        self._security = security
        self._used, self._sent = time.monotonic(), 0
        self._answered = self._ended = False
        with self._errors():
            self._socket = socket.create_connection((host, port), _left(until))
            try:
                self._abilities, self._ends = self._handshake(until)
            except BaseException:
                self.close()
                raise

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def usable(self) -> bool:
        """Return whether the connection is open. No request is in flight, so readable bytes mean that the broker closed
        it."""
        if time.monotonic() > min(self._ends, self._used + _IDLE_SECONDS):
            return False
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def send(self, request: Request[A], until: float) -> A:
        """Send a request and return its response.

        Raises Retryable if there is none at ``until``; ConfigError if the broker does not support the request.
        """
        with self._errors():
            try:
                answer = self._asked(request, self._abilities, until)
            except ConnectionError as error:
                if self._answered or self._ended or self._security.sasl is not None:
                    raise
                raise ConnectionRejected(
                    f"{self}: {error} at the first request. {_WANTS_LOGIN}", login=False
                ) from error
            self._answered = True
            return answer

    def close(self) -> None:
        self._socket.close()

    def end(self) -> None:
        """End the wait of the connection's thread."""
        self._ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Map errors of the network, and of responses that cannot be decoded, to Retryable."""
        try:
            yield
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Retryable(f"{self}: {reason}") from error

    # ------------------------------------------------------------ opening

    def _handshake(self, until: float) -> tuple[ApiVersionsResponse, float]:
        """Run TLS, ApiVersions and SASL; return API versions and the login's expiry."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if (tls := self._security.tls) is not None:
                self._socket = self._encrypted(tls)
            abilities = self._greeted(until)
        except ssl.SSLError as error:
            raise ConnectionRejected(
                f"{self}: TLS failed: {error}{tls_advice(error, self._security)}", login=False
            ) from error
        except ForeignProtocol as error:
            raise ConnectionRejected(f"{self}: {error}", login=False) from error
        if self._security.sasl is None:
            return abilities, float("inf")
        lifetime = self._logged_in(self._security.sasl, abilities, until)
        return abilities, time.monotonic() + lifetime / 1000 * _OF_A_SESSION if lifetime > 0 else float("inf")

    def _encrypted(self, tls: ssl.SSLContext) -> socket.socket:
        try:
            return tls.wrap_socket(self._socket, server_hostname=self._host.rstrip("."))
        except (ConnectionError, ssl.SSLEOFError) as error:
            raise ConnectionRejected(
                f"{self}: TLS failed: {error}; is this a listener without TLS?", login=False
            ) from error

    def _greeted(self, until: float) -> ApiVersionsResponse:
        greeting = api_versions()
        found = self._exchange(greeting, greeting.highest, until)
        if found.error == UNSUPPORTED_VERSION:
            raise ConfigError(f"the broker at {self} is too old: it has no ApiVersions 3")
        if found.error:
            raise Retryable(f"{self}: ApiVersions: {name_of(found.error)}")
        return found

    def _logged_in(self, sasl: Sasl, abilities: ApiVersionsResponse, until: float) -> int:
        """Log in; return how many milliseconds the broker accepts the login, 0 for no limit."""
        offered = self._asked(sasl_handshake(sasl.mechanism), abilities, until)
        if offered.error == _NO_LOGIN_HERE:
            without = "SSL" if self._security.tls else "PLAINTEXT"
            advice = f"this listener requires no login: use security.protocol={without}"
            raise ConnectionRejected(f"{self}: {name_of(offered.error)}: {advice}", login=False)
        if offered.error:
            names = ", ".join(offered.names)
            raise ConnectionRejected(
                f"{self}: {name_of(offered.error)}: it supports {names}, not {sasl.mechanism}", login=True
            )
        lifetime = 0
        try:
            login = sasl.login(self._host)
            token = next(login)
            with suppress(StopIteration):
                while True:
                    answer = self._asked(sasl_authenticate(token), abilities, until)
                    if answer.error:
                        raise LoginFailed(f"{name_of(answer.error)}: {answer.message}")
                    lifetime = answer.lifetime_ms
                    token = login.send(answer.token)
        except LoginFailed as error:
            raise ConnectionRejected(f"{self}: {sasl.mechanism}: {error}", login=True) from error
        return lifetime

    # ------------------------------------------------------------ one request

    def _asked(self, request: Request[A], abilities: ApiVersionsResponse, until: float) -> A:
        lowest, highest = abilities.versions.get(request.key, (0, -1))
        version = min(highest, request.highest)
        if version < request.lowest:
            raise ConfigError(f"{request.name}: the broker at {self} is too old: it supports versions up to {highest}")
        if version < lowest:
            raise ConfigError(f"{request.name}: the broker at {self} is too new: it supports versions from {lowest}")
        return self._exchange(request, version, until)

    def _exchange(self, request: Request[A], version: int, until: float) -> A:
        self._sent = self._sent + 1 & 0x7FFFFFFF
        named = int16(request.key) + int16(version) + int32(self._sent) + old_text(self._security.client_id)
        frame = named + (NO_TAGS if request.flexible else b"") + request.body(version)
        self._socket.settimeout(_left(until))
        self._socket.sendall(int32(len(frame)) + frame)
        found = MessageReader(_received(self._socket, until))
        if (answered := found.int32()) != self._sent:
            raise MalformedMessage(f"the response to request {answered} arrived for request {self._sent}")
        if request.flexible and request.key != API_VERSIONS:
            found.tags()
        answer = request.answer(found, version)
        found.end()
        self._used = time.monotonic()
        return answer


def _received(link: socket.socket, until: float) -> bytes:
    """Return the next frame without its length."""
    begun = _exactly(link, 4, until)
    for beginning, whose in _FOREIGN.items():
        if begun.startswith(beginning):
            raise ForeignProtocol(whose)
    size = int.from_bytes(begun, "big", signed=True)
    if not 0 <= size <= _LARGEST_ANSWER:
        raise MalformedMessage(f"a response of {size} bytes")
    return _exactly(link, size, until)


def _exactly(link: socket.socket, size: int, until: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        link.settimeout(_left(until))
        part = link.recv(min(size - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the broker closed the connection")
        found += part
    return bytes(found)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("no response in time")
    return left
