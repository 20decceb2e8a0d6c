"""Which key group a key is in, and which subtask owns a key group.

Rule: both are part of the durable format. A key's group depends on its encoded bytes and on its ``Grouping`` alone,
never on Python's ``hash``; stored rows begin with the group, and each handle names the hash that its rows were
grouped by. Within a session all keys are grouped by one hash; ``merging.grouping_of`` says by which.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from kafka_eos.errors import ConfigError
from kafka_eos.ids import KeyGroup

MAX_KEY_GROUPS = 128
"""Default. The upper limit of parallelism, fixed for the life of a job."""

GROUP_BYTES = 2
"""A row key is the key group, big endian, then the encoded key: rows of a group are neighbours."""

OLDEST = "crc32"
"""``crc32(key) % groups``, the hash of handles that name none. CRC-32 is linear: the lowest bits of it, which are all
that counts here, differ little between keys that differ in a digit."""
PRESENT = "crc32-16381"
"""``crc32(key) % 16381 * groups // 16381``. The remainder of a prime takes every bit of the checksum in."""

_PRIME = 16381
"""Below 2**14: with 128 groups each has 127 or 128 remainders, and the table of prefixes stays small."""


def _oldest(groups: int) -> Sequence[int]:
    return range(groups)


def _present(groups: int) -> Sequence[int]:
    return [remainder * groups // _PRIME for remainder in range(_PRIME)]


_HASHES: Mapping[str, Callable[[int], Sequence[int]]] = {OLDEST: _oldest, PRESENT: _present}
"""By hash, the group of each remainder: the group of a key is at ``crc32(key) % len`` of it."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """How keys are divided: by which hash, into how many groups. ConfigError if the hash is not known here."""

    key_hash: str = PRESENT
    groups: int = MAX_KEY_GROUPS
    _table: Sequence[int] = field(init=False, repr=False, compare=False)
    _prefixes: Sequence[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.key_hash not in _HASHES:
            raise ConfigError(
                f"state is grouped by the hash {self.key_hash!r}, which is not known here. Upgrade kafka-eos."
            )
        object.__setattr__(self, "_table", _table(self.key_hash, self.groups))
        object.__setattr__(self, "_prefixes", _prefixes(self.key_hash, self.groups))

    def group(self, key: bytes) -> KeyGroup:
        """The group of an encoded key."""
        return KeyGroup(self._table[zlib.crc32(key) % len(self._table)])

    def prefix(self, key: bytes) -> bytes:
        """What the row keys of an encoded key begin with."""
        return self._prefixes[zlib.crc32(key) % len(self._prefixes)]

    def groups_of(self, keys: Iterable[bytes]) -> list[int]:
        """The groups of encoded keys, in order."""
        table, size, crc32 = self._table, len(self._table), zlib.crc32
        return [table[crc32(key) % size] for key in keys]

    def row_keys(self, keys: Iterable[bytes], time: bytes = b"") -> list[bytes]:
        """Row keys of encoded keys, in order; of one ``time``, where rows are in the order of time."""
        prefix, size, crc32 = self._prefixes, len(self._prefixes), zlib.crc32
        return [prefix[crc32(key) % size] + time + key for key in keys]


def key_group_range(subtask: int, parallelism: int, max_key_groups: int = MAX_KEY_GROUPS) -> range:
    """The groups of one subtask: contiguous, and as even as can be."""
    first = -(-subtask * max_key_groups // parallelism)
    end = -(-(subtask + 1) * max_key_groups // parallelism)
    return range(first, end)


def subtask_of(group: KeyGroup, parallelism: int, max_key_groups: int = MAX_KEY_GROUPS) -> int:
    """The subtask whose range holds ``group``."""
    return group * parallelism // max_key_groups


def group_prefix(group: int) -> bytes:
    """What the row keys of a group begin with."""
    return group.to_bytes(GROUP_BYTES, "big")


@cache
def _table(key_hash: str, groups: int) -> Sequence[int]:
    return _HASHES[key_hash](groups)


@cache
def _prefixes(key_hash: str, groups: int) -> Sequence[bytes]:
    prefixes = [group_prefix(group) for group in range(groups)]
    return [prefixes[group] for group in _table(key_hash, groups)]


GROUPING = Grouping()
"""Of all that is not the continuation of something older."""
