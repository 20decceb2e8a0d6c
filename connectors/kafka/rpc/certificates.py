"""The expiry of a client's own certificate.

Python's ``ssl`` gives the expiry only of the peer's certificate, and a library for one date is too heavy. RFC 5280,
4.1:
the signed part begins with a version (tagged), a serial number, an algorithm, the issuer and the validity. Each is an
element of DER: a tag, a length, a content.
Rule: a file in which the date cannot be found is refused by name.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import ConfigError

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_LONG: Final = 0x80


def ends_of(path: str) -> datetime:
    """Return the expiry of the first certificate in a PEM file, the client's own. Raise ConfigError if there
    is none."""
    try:
        first = _PEM.search(Path(path).read_text(encoding="ascii"))
        if first is None:
            raise ValueError("the file contains no certificate")
        return _not_after(ssl.PEM_cert_to_DER_cert(first[0]))
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"the certificate in {path} cannot be read: {error}") from error


def _not_after(certificate: bytes) -> datetime:
    _, whole, _ = _element(certificate)
    _, signed, _ = _element(whole)
    tag, _, rest = _element(signed)
    parts = 3 if tag == _VERSION else 2  # serial number, algorithm and issuer; the first element was read already
    for _ in range(parts):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, rest = _element(validity)
    tag, ends, _ = _element(rest)
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(ends.decode("ascii"), form).replace(tzinfo=UTC)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first element, and the rest. Raise IndexError or ValueError if it is cut off."""
    tag, size, at = data[0], data[1], 2
    if size & _LONG:
        at += size & ~_LONG
        size = int.from_bytes(data[2:at], "big")
    if len(data) < at + size:
        raise ValueError("it is cut off")
    return tag, data[at : at + size], data[at + size :]
