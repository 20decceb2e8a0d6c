"""Twin names: names that Kafka's coordinators keep in the same partition of their log as a given name.

Pure. A coordinator is the leader of one partition of ``__consumer_offsets`` or ``__transaction_state``, which Kafka
chooses by the ``hashCode`` of a group's name or a transactional id. A write under a twin name proves that a broker
still leads that partition, and leaves everything that is stored under the name itself unchanged.
"""

from __future__ import annotations

from typing import Final

_BASE: Final = 31
"""The factor of Java's ``String.hashCode``."""
_ZERO: Final = ord("0")
_DIGITS: Final = 7
"""The length of the suffix. 31**7 exceeds 2**32, so suffixes of this length produce every hash."""
_RANGE: Final = 2**32


def twin_of(name: str) -> str:
    """Return another name that begins with ``name`` and has the same ``hashCode``."""
    stem = f"{name}.current."
    missing = hash_code(name) - hash_code(stem + chr(_ZERO) * _DIGITS)
    digits = [missing % _RANGE // _BASE**power % _BASE for power in reversed(range(_DIGITS))]
    return stem + "".join(chr(_ZERO + digit) for digit in digits)


def hash_code(text: str) -> int:
    """Return Java's ``hashCode`` of a string, from 0 to 2**32 - 1."""
    code = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        code = (code * _BASE + unit) % _RANGE
    return code
