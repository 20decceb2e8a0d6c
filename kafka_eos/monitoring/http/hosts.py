"""The names of hosts in requests.

Rule: in DNS rebinding a page of another site gives its own name this machine's address. Its requests carry that name
as Host, and are refused: see ``HttpAccess.allows_host``.
"""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_in_url(host: str) -> str:
    """Return a host as URLs have it: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def name_of(asked: str) -> str | None:
    """Return the name or address in a Host header, without port and brackets; None if it has none."""
    try:
        return urlsplit(f"//{asked}").hostname
    except ValueError:
        return None


def refusal(asked: str, *, local: bool) -> str:
    """Return the text of the refusal of a request for host ``asked``."""
    names = "use 127.0.0.1, localhost or ::1" if local else "use its address"
    return f"host {asked!r} is not served here: {names}, or add the name to http_hosts"
