"""Which key group a key is in, and which subtask owns a key group.

Rule: both are part of the durable format. A key's group depends on its encoded bytes and on
``max_key_groups`` alone, never on Python's ``hash``; stored rows begin with the group.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache

from kafka_eos.ids import KeyGroup

MAX_KEY_GROUPS = 128
"""Default. The upper limit of parallelism, fixed for the life of a job."""

GROUP_BYTES = 2
"""A row key is the key group, big endian, then the encoded key: rows of a group are neighbours."""


def key_group(key: bytes, max_key_groups: int = MAX_KEY_GROUPS) -> KeyGroup:
    """The group of an encoded key."""
    return KeyGroup(zlib.crc32(key) % max_key_groups)


def key_group_range(subtask: int, parallelism: int, max_key_groups: int = MAX_KEY_GROUPS) -> range:
    """The groups of one subtask: contiguous, and as even as can be."""
    first = -(-subtask * max_key_groups // parallelism)
    end = -(-(subtask + 1) * max_key_groups // parallelism)
    return range(first, end)


def subtask_of(group: KeyGroup, parallelism: int, max_key_groups: int = MAX_KEY_GROUPS) -> int:
    """The subtask whose range holds ``group``."""
    return group * parallelism // max_key_groups


def row_keys(keys: Iterable[bytes], max_key_groups: int = MAX_KEY_GROUPS) -> list[bytes]:
    """Row keys of encoded keys, in order."""
    prefix, crc32 = _prefixes(max_key_groups), zlib.crc32
    return [prefix[crc32(key) % max_key_groups] + key for key in keys]


def group_prefix(group: int) -> bytes:
    """What the row keys of a group begin with."""
    return group.to_bytes(GROUP_BYTES, "big")


@cache
def _prefixes(max_key_groups: int) -> tuple[bytes, ...]:
    return tuple(group_prefix(group) for group in range(max_key_groups))
