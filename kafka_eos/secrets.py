"""Settings of a client that hold secrets, and how they are shown.

Rule: a value whose name sounds like a secret is never shown, whoever prints the settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
_SECRET = re.compile(
    r"password|passwd|secret|token|credential|jaas|private|user\.info|\.pem|\.key\b|oauth.*config|_cb$", re.IGNORECASE
)

_LOGIN = re.compile(r"://[^/@,\s]*@")


def masked(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings for people: secrets and callbacks hidden."""
    return {
        key: MASK if _SECRET.search(key) or callable(value) else without_login(str(value))
        for key, value in config.items()
    }


def without_login(text: str) -> str:
    """Addresses as they are, but for a login in one."""
    return _LOGIN.sub("://", text)


class MaskedConfig(dict[str, str | int | float | bool]):
    """A client's settings by name; printed without their secrets."""

    def __repr__(self) -> str:
        return repr(masked(self))

    __str__ = __repr__
