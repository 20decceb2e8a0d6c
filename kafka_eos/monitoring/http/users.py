"""Users of the HTTP server, from a file of names and hashed passwords.

One line per user: ``name:scrypt:<n>:<r>:<p>:<salt>:<hash>``, the last two in base64. The file is read again when it
changes.
Rule: a password is stored and compared as a hash only. A password that was right is not hashed again until the file
changes; others are hashed one at a time, so guesses take neither all cores nor all memory.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import threading
from pathlib import Path
from typing import Final

from msgspec import Struct

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import ensure_name
from kafka_eos.monitoring.http.file_versions import find_file_version

_LOG: Final = logging.getLogger("kafka_eos.http")
_COST: Final = (1 << 14, 8, 1)
"""scrypt's n, r and p: 16 MiB, and about 50 ms."""
_MOST_MEMORY: Final = 256 << 20
_REMEMBERED: Final = 1000
"""Right passwords that are remembered, as hashes."""


class _PasswordHash(Struct, frozen=True):
    cost: tuple[int, int, int]
    salt: bytes
    digest: bytes

    def fits(self, password: str) -> bool:
        return hmac.compare_digest(_scrypt(password, self.salt, self.cost), self.digest)


def build_user_line(name: str, password: str) -> str:
    """Return the line of a user for the file. Raises ConfigError for a name that is not usable, or no password."""
    ensure_name(name, "the name of the user")
    if not password:
        raise ConfigError("the password is empty")
    salt = secrets.token_bytes(16)
    encoded = (base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt, _COST)))
    return ":".join([name, "scrypt", *map(str, _COST), *encoded])


def read_users(file: Path) -> dict[str, _PasswordHash]:
    """Return the users of a file. Raises ConfigError, which names the line, if it is not usable."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"http_users={file} cannot be read: {error}") from error
    users = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            try:
                name, kind, n, r, p, salt, digest = line.split(":")
                cost = (int(n), int(r), int(p))
                found = _PasswordHash(
                    cost, base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
                )
                if kind != "scrypt" or 128 * cost[0] * cost[1] > _MOST_MEMORY // 2:
                    raise ValueError(kind)
                _scrypt("", found.salt, cost)
            except ValueError:
                raise ConfigError(
                    f"http_users={file}, line {number}: not a user. Create the line with: kafka-eos config user NAME"
                ) from None
            users[name] = found
    if not users:
        raise ConfigError(f"http_users={file} has no users. Create a line with: kafka-eos config user NAME")
    return users


class UserFile:
    """The users of a file. Thread-safe."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError if the file is not usable."""
        self._file, self._version = file, find_file_version(file)
        self._users = read_users(file)
        self._lock, self._known = threading.Lock(), set[bytes]()
        self._secret = secrets.token_bytes(32)

    def admits(self, name: str, password: str) -> bool:
        """Return whether the file has this user with this password. May take a while."""
        self._reload()
        seen = hmac.new(self._secret, f"{name}:{password}".encode(errors="surrogatepass"), hashlib.sha256).digest()
        if seen in self._known:
            return True
        with self._lock:
            stored = self._users.get(name)
            # Without a user of this name the same work is done, so that the time shows no names.
            right = (stored or next(iter(self._users.values()))).fits(password) and stored is not None
            if right and len(self._known) < _REMEMBERED:
                self._known.add(seen)
        return right

    def _reload(self) -> None:
        """Read a file that has changed. A file that is not usable changes nothing."""
        version = find_file_version(self._file)
        with self._lock:
            if version == self._version:
                return
            self._version = version
            try:
                self._users = read_users(self._file)
            except ConfigError as error:
                _LOG.error("%s. The users that it had before remain", error)
            self._known.clear()


def _scrypt(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    data = password.encode(errors="surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=32)
