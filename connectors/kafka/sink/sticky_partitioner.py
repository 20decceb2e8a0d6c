"""Selection of partitions here instead of in the client: provenance in the ledger needs to know them.

Rule: a record with a key goes to the partition that librdkafka's partitioner of that name would choose. Records without
a key go to one partition for a while, and then to the next, as librdkafka does: it sends batches to one partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Final

from kafka_eos.connectors.kafka.sink.partitioner_hashes import HASHES
from kafka_eos.connectors.kafka.sink.record_encoders import Key
from kafka_eos.core.errors import ConfigError

_STICKY_SECONDS: Final = 0.01
"""Seconds for which records without keys go to one partition, as in librdkafka."""
_RANDOM: Final = "random"
_FREE: Final[Mapping[str, Sequence[Key]]] = {
    "consistent_random": (None, "", b""),
    "murmur2_random": (None,),
    "fnv1a_random": (None,),
}
"""Keys that may go to any partition, by partitioner."""


class StickyPartitioner:
    """The selection of one topic's partitions for the writers of a worker."""

    def __init__(self, partitioner: str | None, first: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a topic's partitioner. ``first``: the first partition for records without keys.

        Raises ConfigError for a partitioner that only the client implements.
        """
        if partitioner is None or not (partitioner == _RANDOM or partitioner in HASHES):
            raise ConfigError(
                'provenance="ledger" depends on how partitions are chosen: pass '
                f'config={{"partitioner": …}} with one of {", ".join([*HASHES, _RANDOM])}, or use '
                'provenance="header"'
            )
        self._hash, self._free = HASHES.get(partitioner), _FREE.get(partitioner, ())
        self._turn = first
        self._clock = clock
        self._since = clock()

    def of(self, keys: Iterable[Key], count: int, partitions: int) -> list[int]:
        """Return the partitions of the next ``count`` records, in a topic with this many partitions.

        A key of a wrong type goes to any partition: the client rejects it.
        """
        turn = self._whose_turn() % partitions
        if self._hash is None:
            return [turn] * count
        if isinstance(keys, repeat):
            given: list[Key] = [next(keys)]
        else:
            given = list(islice(keys, count))
        found = [number % partitions for number in self._hash(_raws(given))]
        if any(free in given for free in self._free):
            found = [turn if key in self._free else place for key, place in zip(given, found, strict=True)]
        return found * count if isinstance(keys, repeat) else found

    def _whose_turn(self) -> int:
        now = self._clock()
        if now - self._since >= _STICKY_SECONDS:
            self._turn, self._since = self._turn + 1, now
        return self._turn


def _raws(keys: Sequence[object]) -> Sequence[bytes]:
    kinds = set(map(type, keys))
    if kinds == {str}:
        return list(map(str.encode, keys))  # type: ignore[arg-type]
    return keys if kinds == {bytes} else list(map(_raw, keys))  # type: ignore[return-value]


def _raw(key: object) -> bytes:
    if isinstance(key, str):
        return key.encode()
    return bytes(key) if isinstance(key, bytes | memoryview) else b""
