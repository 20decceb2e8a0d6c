"""Signatures of records: an HMAC by a key that is not in the checkpoint store.

Who can write to the store, and does not know the key, cannot write a record that a job accepts. The first key of the
file signs; all keys verify, so that a key can be replaced.
Rule: without a key file nothing is signed and no signature is checked. With one, a record without a valid signature is
refused. A valid record that is deleted or restored is not detected.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import ConfigError, CorruptCheckpoint

_KEY: Final = re.compile(r"(?:[0-9a-fA-F]{2}){32,}")

_keys: tuple[bytes, ...] = ()
_shared = False
"""Whether several queries of this process use the keys."""


def use_keys(file: Path | None) -> None:
    """Set the file with the keys of this process; None for no signatures. Raises ConfigError if it is not usable."""
    global _keys, _shared
    _keys, _shared = () if file is None else read_keys(file), False


def share_keys(file: Path | None) -> None:
    """Set the keys as ``use_keys`` does, for a query that runs beside others. ConfigError if they have other keys."""
    global _keys, _shared
    keys = () if file is None else read_keys(file)
    if _shared and keys != _keys:
        raise ConfigError(
            f"checkpoint_key_file={file}: an earlier query of this program signs with other keys, or with none. Give "
            "all queries of a program the same file, and start the program again after a change"
        )
    _keys, _shared = keys, True


def read_keys(file: Path) -> tuple[bytes, ...]:
    """Return the keys of a file: one per line, in hex. Empty lines and those that begin with ``#`` are skipped."""
    try:
        lines = [line.strip() for line in file.read_text("ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"checkpoint_key_file={file} cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or not all(map(_KEY.fullmatch, keys)):
        raise ConfigError(
            f"checkpoint_key_file={file} must hold one key per line, each of at least 32 bytes in hex: "
            f"openssl rand -hex 32 > {file}"
        )
    return tuple(map(bytes.fromhex, keys))


def has_keys() -> bool:
    """Return whether this process signs records, and checks their signatures."""
    return bool(_keys)


def sign(content: bytes) -> bytes | None:
    """Return the signature of a record's content in hex; None if this process has no keys."""
    return _sign(_keys[0], content) if _keys else None


def expect_signed(name: str, content: bytes, signature: bytes | None) -> None:
    """Raise CorruptCheckpoint if this process has keys, and none of them made the signature."""
    if not _keys:
        return
    if signature is None:
        raise CorruptCheckpoint(
            f"{name}: it has no signature, and checkpoint_key_file is set: another program wrote it, or the job ran "
            "without keys. To continue with checkpoints that you trust: kafka-eos savepoint sign, then "
            "--from in another directory"
        )
    if not any(hmac.compare_digest(_sign(key, content), signature) for key in _keys):
        raise CorruptCheckpoint(
            f"{name}: its signature matches no key in checkpoint_key_file: another program wrote it, or the "
            "file lacks the key that signed it"
        )


def _sign(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).hexdigest().encode()
