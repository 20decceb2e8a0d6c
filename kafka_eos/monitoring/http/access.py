"""The rules of access to the HTTP server: its names, its users, and its certificate.

Rule: what is not allowed is refused before a route sees it. Probes need no login, because they show nothing of a job.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope

from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.certificates import Certificate
from kafka_eos.monitoring.http.hosts import LOOPBACK, name_of
from kafka_eos.monitoring.http.users import UserFile

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths that need no login."""


class AccessSettings(Protocol):
    """The settings of access, as ``config.Settings`` has them."""

    @property
    def http_hosts(self) -> Sequence[str]: ...
    @property
    def http_certificate(self) -> Path | None: ...
    @property
    def http_key(self) -> Path | None: ...
    @property
    def http_users(self) -> Path | None: ...
    @property
    def http_user_header(self) -> str | None: ...
    @property
    def http_proxies(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The rules of access to one server. Build them with ``of``.

    ``hosts``        names under which it may be asked, besides those of loopback
    ``users``        the users that log in with a password
    ``user_header``  the header in which a proxy names the user that it has admitted
    ``proxies``      the networks of the proxies whose header is believed
    """

    hosts: Sequence[str] = ()
    certificate: Certificate | None = None
    users: UserFile | None = None
    user_header: str | None = None
    proxies: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = field(default=())

    @classmethod
    def of(cls, settings: AccessSettings) -> HttpAccess:
        """Read the files that the settings name. Raises ConfigError, which names the setting, if one is not usable."""
        if settings.http_key is not None and settings.http_certificate is None:
            raise ConfigError("http_key is set, and http_certificate is not: give both, or neither")
        try:
            networks = [ipaddress.ip_network(each) for each in settings.http_proxies]
        except ValueError as error:
            raise ConfigError(f"http_proxies: {error}. Give addresses or networks, such as 10.0.0.0/8") from error
        return cls(
            settings.http_hosts,
            None if settings.http_certificate is None else Certificate(settings.http_certificate, settings.http_key),
            None if settings.http_users is None else UserFile(settings.http_users),
            settings.http_user_header,
            networks,
        )

    @property
    def needs_login(self) -> bool:
        return self.users is not None or self.user_header is not None

    def find_dangers(self, host: str) -> list[str]:
        """Return warnings about what anyone can do who reaches a server at ``host``; none on loopback."""
        if host in LOOPBACK:
            return []
        dangers = []
        if not self.needs_login:
            dangers.append(f"everyone who reaches {host} can read its pages: set http_users or http_user_header")
        if self.certificate is None:
            dangers.append("what it sends, logins included, crosses the network in the clear: set http_certificate")
        return dangers

    def allows_host(self, asked: str, *, local: bool) -> bool:
        """Return whether a server answers a request for this ``Host``.

        ``local``: the server listens on loopback. Elsewhere any address is allowed, because only names can be rebound.
        """
        name = name_of(asked)
        if name in LOOPBACK or "*" in self.hosts or name in self.hosts:
            return True
        return not local and name is not None and _is_address(name)

    async def find_user(self, scope: Scope) -> str | None:
        """Return the user of a request; None if it needs a login and has none. Empty if no login is needed."""
        if not self.needs_login or scope["path"] in PROBES:
            return ""
        headers = Headers(scope=scope)
        if self.user_header is not None and self._is_proxy(scope) and (name := headers.get(self.user_header)):
            return name
        found = _parse_login(headers.get("authorization", ""))
        if self.users is None or found is None:
            return None
        return found[0] if await run_in_threadpool(self.users.admits, *found) else None

    def _is_proxy(self, scope: Scope) -> bool:
        try:
            peer = ipaddress.ip_address(scope["client"][0])
        except (TypeError, ValueError):
            return False
        return any(peer in network for network in self.proxies)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _parse_login(header: str) -> tuple[str, str] | None:
    """Return name and password of a Basic login."""
    kind, _, encoded = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if colon else None
