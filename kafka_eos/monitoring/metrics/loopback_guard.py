"""Who is answered at loopback: who asks for it by name.

Rule: a page of another site that gives its own name this machine's address (DNS rebinding) asks by that name, and is
answered nothing.
"""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(asked: str) -> bool:
    """Is it one of its names, with or without a port: ``127.0.0.1:8377``, ``[::1]``?"""
    try:
        return urlsplit(f"//{asked}").hostname in LOOPBACK
    except ValueError:
        return False


def refusal(asked: str) -> str:
    """What is said to who asks for ``asked`` at loopback."""
    return f"this is {' and '.join(LOOPBACK)} alone, not {asked!r}; a proxy may ask for one of them"
