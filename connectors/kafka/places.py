"""The partitions of records, chosen here and not in the client: who keeps provenance beside the data must know them.

Rule: a record with a key goes where librdkafka's partitioner of that name would send it. One that may go anywhere goes
where the others of its batch go, and the next batch elsewhere: the client sends batches of one partition.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Final

from kafka_eos.connectors.kafka.encoding import Key
from kafka_eos.errors import ConfigError

_MOST_KEYS: Final = 1 << 18
"""Keys whose partitions are remembered: some 40 MB of short ones."""
_ANYWHERE: Final = -1
_M, _SEED, _PRIME, _OFFSET = 0x5BD1E995, 0x9747B28C, 0x01000193, 0x811C9DC5
_LOW: Final = (1 << 32) - 1


def murmur2(key: bytes) -> int:
    """As the Java client: of words of four bytes, the last one maybe shorter."""
    size = len(key)
    whole = size & ~3
    found = _SEED ^ size
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = word * _M & _LOW
        found = found * _M & _LOW ^ (word ^ word >> 24) * _M & _LOW
    if size > whole:
        found = (found ^ int.from_bytes(key[whole:], "little")) * _M & _LOW
    found = (found ^ found >> 13) * _M & _LOW
    return (found ^ found >> 15) & 0x7FFFFFFF


def fnv1a(key: bytes) -> int:
    """Its absolute value as a signed number."""
    found = _OFFSET
    for byte in key:
        found = (found ^ byte) * _PRIME & _LOW
    return found if found >> 31 == 0 else _LOW + 1 - found


_HASHES: Final[Mapping[str, Callable[[bytes], int]]] = {
    "consistent": zlib.crc32,
    "consistent_random": zlib.crc32,
    "murmur2": murmur2,
    "murmur2_random": murmur2,
    "fnv1a": fnv1a,
    "fnv1a_random": fnv1a,
}
_RANDOM: Final = "random"
_FREE: Final[Mapping[str, Sequence[Key]]] = {
    "consistent_random": (None, "", b""),
    "murmur2_random": (None,),
    "fnv1a_random": (None,),
}
"""Keys that may go anywhere."""


class Places:
    """The partitions of one topic, for the writers of one worker."""

    def __init__(self, partitioner: str | None, first: int) -> None:
        """``first``: which batch without keys this is. ConfigError for a partitioner that only the client knows."""
        if partitioner is None or not (partitioner == _RANDOM or partitioner in _HASHES):
            raise ConfigError(
                'provenance="ledger" has to know how partitions are chosen: give the sink config={"partitioner": …} '
                f'with one of {", ".join([*_HASHES, _RANDOM])}, or provenance="header"'
            )
        self._random, self._turn = partitioner == _RANDOM, first
        self._hashed, self._free = _HASHES.get(partitioner, zlib.crc32), _FREE.get(partitioner, ())
        self._known = _Known(self._hashed, 1)

    def of(self, keys: Iterable[Key], count: int, partitions: int) -> list[int]:
        """Where the next ``count`` records go, of a topic with so many partitions.

        A key of a wrong type goes anywhere: the client refuses it.
        """
        self._turn += 1
        known = self._known
        if known.partitions != partitions or len(known) > _MOST_KEYS:
            known = self._known = _Known(self._hashed, partitions)
        turn = self._turn % partitions
        if self._random:
            return [turn] * count
        for free in self._free:
            known[free] = turn
        if isinstance(keys, repeat):
            return [known[next(keys)]] * count
        try:
            return list(map(known.__getitem__, islice(keys, count)))
        except TypeError:
            given: Iterable[object] = keys
            return [known[key] if key is None or isinstance(key, str | bytes) else turn for key in given]


class _Known(dict[Key, int]):
    """Partitions by key, found on first use."""

    def __init__(self, hashed: Callable[[bytes], int], partitions: int) -> None:
        super().__init__()
        self._hashed, self.partitions = hashed, partitions

    def __missing__(self, key: Key) -> int:
        raw = key.encode() if isinstance(key, str) else b"" if key is None else bytes(key)
        found = self[key] = self._hashed(raw) % self.partitions
        return found
