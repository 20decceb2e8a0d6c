"""Settings of a client that hold secrets: how they are shown, and those that stand in files of their own.

Rule: a value whose name sounds like a secret is never shown, whoever prints the settings. What stands in a file is read
when it is used, never kept: it may be another one by then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FROM_FILE = ".from_file"
"""What follows a name whose value stands in a file, so that it can be another file, of other rights, than the rest."""
MASK = "********"
_SECRET = re.compile(
    r"password|passwd|secret|token|credential|jaas|private|user\.info|\.pem|\.key\b|[_-]key$|(api|account|access)key$"
    r"|oauth.*config|_cb$",
    re.IGNORECASE,
)

_LIST = r"(?!,[a-z][a-z0-9+.-]*://)"
"""Not yet the next address of a list."""
_LOGIN = re.compile(r"://(?:[^/\s]*|[^/\s:@]*:(?!\d+/)(?:" + _LIST + r"\S)*)@", re.IGNORECASE)
"""Up to the last @ before the path: a password may hold one, or a comma, as it is. If it holds a /, too, the path
cannot be told from it: then up to the last @ of all."""
_PORT_OR_LOGIN = re.compile(r"(://[^/\s:@]*:)\d+/(?:" + _LIST + r"\S)*@", re.IGNORECASE)
"""A port and a path with an @, or a password that begins with figures and a /."""
_QUERY = re.compile(r"(://[^?\s]*)\?(?:" + _LIST + r"\S)*", re.IGNORECASE)
"""Up to the next address of a list: what is asked may hold a comma, too."""


_PAIR = re.compile(r"([\w.-]+)(\s*=\s*)('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s;&]*)")
"""``name=value``, as libpq, ODBC and JDBC have it: a value with spaces in quotes."""


def masked(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings for people: secrets and callbacks hidden, but not the files that have them."""
    return {key: MASK if _hidden(key, value) else without_login(str(value)) for key, value in config.items()}


def _hidden(key: str, value: object) -> bool:
    return not key.endswith(FROM_FILE) and (callable(value) or sounds_secret(key))


def sounds_secret(name: str) -> bool:
    """Is the value of that name one to hide?"""
    return _SECRET.search(name) is not None


def filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what their files hold at this moment; ``name.from_file`` becomes ``name``.

    ValueError, which shows no value, if a file cannot be read or is empty.
    """
    return {
        name.removesuffix(FROM_FILE): _content(value) if name.endswith(FROM_FILE) else value
        for name, value in config.items()
    }


def _content(path: object) -> str:
    """A file's text without the end of its line: editors and ``echo`` write one, and no secret has one."""
    found = text_of(Path(str(path))).rstrip("\r\n")
    if not found:
        raise ValueError(f"{path} is empty")
    return found


def text_of(path: Path) -> str:
    """ValueError if it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{path} cannot be read: {why}") from None


def without_login(text: str) -> str:
    """Addresses as they are, but for a login in one, and for what is asked: a token is often given there.

    And without the secrets of strings like ``host=db password=…``.
    """
    addresses = _PORT_OR_LOGIN.sub(rf"\1{MASK}@", _LOGIN.sub("://", text))
    return _PAIR.sub(_pair, _QUERY.sub(r"\1", addresses))


def _pair(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    return f"{name}{equals}{MASK if sounds_secret(name) else value}"


class MaskedConfig(dict[str, str | int | float | bool]):
    """A client's settings by name; printed without their secrets."""

    def __repr__(self) -> str:
        return repr(masked(self))

    __str__ = __repr__
