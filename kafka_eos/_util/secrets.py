"""Client settings that hold secrets: masking for display, and secrets in files of their own.

Rule: a value whose name suggests a secret is never shown, whichever code prints the settings. A secret file is read
when it is used, and never cached: it may have been replaced by then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FROM_FILE = ".from_file"
"""Suffix of a name whose value is stored in a separate file, which can have stricter permissions than the rest."""
MASK = "********"
_SECRET = re.compile(
    r"password|passwd|passphrase|secret|token|credential|jaas|private|user\.info|\.pem|\.key\b|[_-]key$"
    r"|(api|account|access)key$|signature|authorization|(^|[._-])(pwd|sig)$|oauth.*config|_cb$",
    re.IGNORECASE,
)

_LIST = r"(?!,[a-z][a-z0-9+.-]*://)"
"""Does not match the start of the next address in a list."""
_LOGIN = re.compile(r"://(?:[^/\s]*|[^/\s:@]*:(?!\d+/)(?:" + _LIST + r"\S)*)@", re.IGNORECASE)
"""Up to the last @ before the path: a password may contain an @ or a comma.

If it contains a / too, it cannot be distinguished from the path: then up to the last @ of all.
"""
_PORT_OR_LOGIN = re.compile(r"(://[^/\s:@]*:)\d+/(?:" + _LIST + r"\S)*@", re.IGNORECASE)
"""A port and a path with an @, or a password that begins with digits and a /."""
_QUERY = re.compile(r"(://[^?\s]*)\?(?:" + _LIST + r"\S)*", re.IGNORECASE)
"""Up to the next address of a list: a query may contain a comma too."""


_PAIR = re.compile(r"([\w.-]+)(\s*=\s*)('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s;&]*)")
"""``name=value``, as in libpq, ODBC and JDBC: a value with spaces is quoted."""
_MEMBER = re.compile(r"""((["'])([^"'\n]+)\2\s*:\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,}\]]+)""")
"""A member of JSON, or of a dict as Python prints it."""
_SCHEME_AND_TOKEN = re.compile(r"\b(Bearer|Basic|Negotiate|SharedAccessSignature)\s+[\w.~+/=%&*-]+", re.IGNORECASE)
"""The value of an Authorization header."""
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?(?:,(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?)*", re.ASCII)
_PATH = re.compile(r"[\w./+~-]*")


def mask_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Return client settings with secrets and callbacks masked."""
    return {key: MASK if _hidden(key, value) else strip_credentials(str(value)) for key, value in config.items()}


def _hidden(key: str, value: object) -> bool:
    return not key.endswith(FROM_FILE) and (callable(value) or is_secret_name(key))


def is_secret_name(name: str) -> bool:
    """Return whether a setting of that name holds a secret."""
    return _SECRET.search(name) is not None


def read_secret_files(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return client settings with the contents of their .from_file entries.

    Raises ValueError, which shows no value, if a file cannot be read or is empty.
    """
    return {
        name.removesuffix(FROM_FILE): _content(value) if name.endswith(FROM_FILE) else value
        for name, value in config.items()
    }


def _content(path: object) -> str:
    """Return a file's text without the line break at its end, which editors and ``echo`` add."""
    found = read_text(Path(str(path))).rstrip("\r\n")
    if not found:
        raise ValueError(f"{path} is empty")
    return found


def read_text(path: Path) -> str:
    """Read a text file. Raises ValueError if that fails."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{path} cannot be read: {why}") from None


def strip_credentials(text: str) -> str:
    """Remove logins, queries and secret values from addresses and connection strings.

    Also removes the secrets of strings like ``host=db password=…``.
    """
    addresses = _PORT_OR_LOGIN.sub(rf"\1{MASK}@", _LOGIN.sub("://", text))
    without = _PAIR.sub(_pair, _QUERY.sub(r"\1", addresses))
    return _SCHEME_AND_TOKEN.sub(rf"\1 {MASK}", _MEMBER.sub(_member, without))


def _member(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if is_secret_name(found[3]) else found[0]


def show_address(address: str, *, path: bool = True) -> str:
    """Return the scheme, the hosts with their ports, and with ``path`` the path of an address; nothing else.

    Raises ValueError, without any part of the address, if it cannot be told where a login ends.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][\w+.-]*", scheme):
        raise ValueError("it is not an address such as scheme://host:port/path")
    authority, *behind = re.split(r"[/?#]", rest, maxsplit=1)
    _, at, host = authority.rpartition("@")
    # In a:1/2@b either 1 is a port, or 1/2 is a password.
    if ((":" in authority or at) and any("@" in each for each in behind)) or not _HOST.fullmatch(host or "_"):
        raise ValueError("it may contain a login whose end is ambiguous: percent-encode each @ / ? # in it")
    shown = re.split(r"[?#]", rest, maxsplit=1)[0][len(authority) :] if path else ""
    if authority and not _PATH.fullmatch(shown):
        shown = MASK
    return f"{scheme}://{host}{shown}"


def _pair(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    return f"{name}{equals}{MASK if is_secret_name(name) else value}"


class MaskedConfig(dict[str, str | int | float | bool]):
    """A client's settings by name; printed without their secrets."""

    def __repr__(self) -> str:
        return repr(mask_config(self))

    __str__ = __repr__
