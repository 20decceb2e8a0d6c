"""OAUTHBEARER tokens: from a file, or from an OpenID Connect provider by client credentials (RFC 6749, 4.4).

librdkafka can request tokens itself. They are requested here instead, for librdkafka and for this package's own
connections. So both log in the same way, and all clients of a process share a token as long as it is valid.
Rule: no error shows a token or a secret.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias, TypeGuard

from kafka_eos._util.connection_deadline import ConnectionDeadline
from kafka_eos.core.errors import ConfigError, Retryable

TOKEN: Final = "sasl.oauthbearer.token"  # noqa: S105 - the name of a setting
"""A setting of this package; librdkafka has none for a token."""
Answer: TypeAlias = tuple[str, float, str, dict[str, str]]
"""The result of ``oauth_cb``: token, expiry in seconds since the Unix epoch, principal, extensions."""

_URL, _ID, _SECRET, _SCOPE, _EXTENSIONS = (
    f"sasl.oauthbearer.{name}" for name in ("token.endpoint.url", "client.id", "client.secret", "scope", "extensions")
)
_AUTHORITY: Final = "https.ca.location"
OF_ENDPOINT: Final = frozenset({_URL, _ID, _SECRET, _SCOPE, _EXTENSIONS, _AUTHORITY})
"""The settings of the token provider and the client, with librdkafka's names."""
_SECONDS: Final = 10.0
"""Seconds that a provider has to respond, to its last byte."""
_MOST_BYTES: Final = 1 << 20
"""Bytes of a response that are read."""
_TIMES: Final = (0, 10**11)
"""Expiry times, in seconds since the Unix epoch, that a token may have: until the year 5138."""
_UNKNOWN_LIFETIME: Final = 300.0
"""Seconds after which a token without an expiry is requested again."""
_OF_ITS_LIFE: Final = 0.8
"""The fraction of a token's lifetime that is used, as in librdkafka ..."""
_KEPT_SECONDS: Final = 300.0
"""... but at most this many seconds, because it may be revoked earlier without notice."""


class TokenRefused(Exception):
    """The provider refuses to give this client a token."""


@dataclass(frozen=True)
class TokenEndpoint:
    """A token provider, and its client. ``extensions``: SASL extensions (RFC 7628), sent with each token."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str | None
    authority: str | None
    extensions: tuple[tuple[str, str], ...]


def endpoint(config: Mapping[str, Any]) -> TokenEndpoint:
    """Return the provider from librdkafka's settings with ``method=oidc``. Raise ConfigError, naming a
    missing setting."""
    for name in (_URL, _ID, _SECRET):
        if not config.get(name):
            raise ConfigError(f"sasl.oauthbearer.method=oidc needs config[{name!r}].")
    url = str(config[_URL])
    if urllib.parse.urlsplit(url).scheme not in ("https", "http"):
        raise ConfigError(f"config[{_URL!r}] is not a valid address: use https://…")
    pairs = [part.partition("=") for part in str(config.get(_EXTENSIONS, "")).split(",") if part]
    scope, authority = config.get(_SCOPE), config.get(_AUTHORITY)
    return TokenEndpoint(
        url,
        str(config[_ID]),
        str(config[_SECRET]),
        None if scope is None else str(scope),
        None if authority is None else str(authority),
        tuple((name.strip(), value.strip()) for name, _, value in pairs),
    )


def from_text(token: str, path: object = None) -> Answer:
    """Return the token in the file ``path``, or in a setting. Raise Retryable if it has expired."""
    token = token.strip()
    claims = _claims(token)
    ends = claims.get("exp", time.time() + _UNKNOWN_LIFETIME)
    if ends < time.time():
        where = f"in {path}" if path else f"config[{TOKEN!r}]"
        raise Retryable(f"the token {where} expired at {_shown(ends)} and was not renewed")
    return token, float(ends), str(claims.get("sub", "")), {}


def from_endpoint(of: TokenEndpoint) -> Answer:
    """Return a token of the provider, cached while valid. Raise Retryable without a response, else TokenRefused."""
    with _KEEPING:
        kept = _KEPT.get(of)
        if kept is None or time.time() > kept[0]:
            asked = time.time()
            answer = _asked(of)
            kept = _KEPT[of] = asked + min((answer[1] - asked) * _OF_ITS_LIFE, _KEPT_SECONDS), answer
        return kept[1]


_KEPT: Final[dict[TokenEndpoint, tuple[float, Answer]]] = {}
"""The cached token and the end of its use, for all clients of this process; each epoch has a new client."""
_KEEPING: Final = threading.Lock()


def _asked(of: TokenEndpoint) -> Answer:
    form = {"grant_type": "client_credentials"} | ({} if of.scope is None else {"scope": of.scope})
    quoted = ":".join(urllib.parse.quote(part, safe="") for part in (of.client, of.secret))  # RFC 6749, 2.3.1
    request = urllib.request.Request(  # noqa: S310 - http or https, checked above
        of.url,
        urllib.parse.urlencode(form).encode(),
        {
            "Authorization": f"Basic {base64.b64encode(quoted.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )
    try:
        with ExitStack() as held, _opener(of, held).open(request, timeout=_SECONDS) as answer:
            return _parse_answer(of, json.loads(answer.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        _refused(of, error)
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise Retryable(f"no token from {of.url}: {error}") from error


def _refused(of: TokenEndpoint, error: urllib.error.HTTPError) -> NoReturn:
    text = ""
    with suppress(OSError, ValueError, http.client.HTTPException):
        text = error.read1(1000).decode("utf-8", "replace").replace(of.secret, "…")
    reason = f"no token from {of.url} for the client {of.client!r}: {error.code} {text.strip() or error.reason}"
    if 300 <= error.code < 500 and error.code not in (408, 429):
        raise TokenRefused(reason) from None
    raise Retryable(reason) from None


def _parse_answer(of: TokenEndpoint, answer: Any) -> Answer:
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not token:
        raise Retryable(f"{of.url} responds without an access_token")
    claims = _claims(token)
    lasts = answer.get("expires_in")
    now = time.time()
    ends = now + lasts if _is_time(lasts) else claims.get("exp", now + _UNKNOWN_LIFETIME)
    return token, float(ends), str(claims.get("sub", of.client)), dict(of.extensions)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects, so that the secret goes to no other address."""

    def redirect_request(self, *asked: Any) -> None:
        return None


class _BoundedConnections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """A handler whose connections have a deadline from their first byte on, until ``held`` is closed."""

    def __init__(self, tls: ssl.SSLContext, held: ExitStack) -> None:
        super().__init__()
        self._tls, self._held = tls, held

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._bound(http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._bound(http.client.HTTPSConnection), req, context=self._tls)

    def _bound(self, make: Callable[..., Any]) -> Any:
        def bounded(*args: Any, **options: Any) -> Any:
            made = make(*args, **options)
            connect = made._create_connection

            def connected(*given: Any) -> socket.socket:
                found: socket.socket = connect(*given)
                self._held.callback(ConnectionDeadline(found, _SECONDS).release)
                return found

            made._create_connection = connected
            return made

        return bounded


def _opener(of: TokenEndpoint, held: ExitStack) -> urllib.request.OpenerDirector:
    tls = ssl.create_default_context(cafile=of.authority)
    return urllib.request.build_opener(_BoundedConnections(tls, held), _NoRedirects)


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT (RFC 7519); none for other tokens. The broker verifies them."""
    try:
        _, body, _ = token.split(".")
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return {}
    if not isinstance(found, dict):
        return {}
    return found if _is_time(found.get("exp")) else {name: value for name, value in found.items() if name != "exp"}


def _is_time(found: object) -> TypeGuard[float]:
    """Return whether it is a finite number within ``_TIMES``."""
    return isinstance(found, int | float) and _TIMES[0] <= found < _TIMES[1]


def _shown(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
