"""Key groups of keys, and their distribution over subtasks.

Rule: both are part of the durable format. A key's group is ``crc32(key) % 16381 * 128 // 16381`` of its encoded bytes,
never Python's ``hash``; stored rows begin with it. The remainder of a prime uses every bit of the checksum: CRC-32 is
linear, and its lowest bits differ little between keys that differ in one digit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import KeyGroup

MAX_KEY_GROUPS = 128
"""The number of key groups, and so the upper limit of parallelism."""

GROUP_BYTES = 2
"""A row key is the key group, big endian, then the encoded key: rows of a group are adjacent."""

_PRIME = 16381
"""Below 2**14: each group has 127 or 128 remainders, and the tables stay small."""


def group_prefix(group: int) -> bytes:
    """Return the prefix of the row keys of a group."""
    return group.to_bytes(GROUP_BYTES, "big")


_GROUPS = [KeyGroup(remainder * MAX_KEY_GROUPS // _PRIME) for remainder in range(_PRIME)]
"""The group of each remainder."""
_PREFIX_OF_GROUP = [group_prefix(group) for group in range(MAX_KEY_GROUPS)]
_PREFIXES = [_PREFIX_OF_GROUP[group] for group in _GROUPS]
"""The prefix of row keys for each remainder: one object per group, not one per remainder."""


def group_of(key: bytes) -> KeyGroup:
    """Return the group of an encoded key."""
    return _GROUPS[zlib.crc32(key) % _PRIME]


def groups_of(keys: Iterable[bytes]) -> list[KeyGroup]:
    """Return the groups of encoded keys, in order."""
    groups, prime, crc32 = _GROUPS, _PRIME, zlib.crc32
    return [groups[crc32(key) % prime] for key in keys]


def prefix_of(key: bytes) -> bytes:
    """Return the prefix of an encoded key's row keys."""
    return _PREFIXES[zlib.crc32(key) % _PRIME]


def row_keys(keys: Iterable[bytes], time: bytes = b"") -> list[bytes]:
    """Return the row keys of encoded keys, in order; with a ``time``, in the format ordered by time."""
    prefixes, prime, crc32 = _PREFIXES, _PRIME, zlib.crc32
    return [prefixes[crc32(key) % prime] + time + key for key in keys]


def key_group_range(subtask: int, parallelism: int) -> range:
    """Return the groups of one subtask: contiguous, and distributed evenly."""
    first = -(-subtask * MAX_KEY_GROUPS // parallelism)
    end = -(-(subtask + 1) * MAX_KEY_GROUPS // parallelism)
    return range(first, end)


def subtask_of(group: KeyGroup, parallelism: int) -> int:
    """Return the subtask whose range contains ``group``."""
    return group * parallelism // MAX_KEY_GROUPS


def check_key_groups(where: str, stored: int) -> None:
    """Raise ConfigError if the state stored ``where`` has another number of key groups than this version."""
    if stored != MAX_KEY_GROUPS:
        raise ConfigError(
            f"{where} has {stored} key groups and this kafka-eos {MAX_KEY_GROUPS}: keys would be looked for in the "
            "wrong place"
        )
