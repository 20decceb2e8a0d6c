"""A guard for servers at loopback: only requests whose Host is a loopback name are answered.

Rule: in DNS rebinding a page of another site gives its own name this machine's address. Its requests carry that name
as Host, and are refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_in_url(host: str) -> str:
    """Return a host as URLs have it: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(asked: str) -> bool:
    """Return whether a host is a loopback name, with or without a port: ``127.0.0.1:8377``, ``[::1]``."""
    try:
        return urlsplit(f"//{asked}").hostname in LOOPBACK
    except ValueError:
        return False


def refusal(asked: str) -> str:
    """Return the text of the refusal of a request for host ``asked`` at loopback."""
    return f"host {asked!r} is not served here: use 127.0.0.1, localhost or ::1"
