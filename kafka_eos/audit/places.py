"""Which partition a record belongs to by its key, as the partitioner of its producer chooses.

Rule: an answer only for partitioners that go by the key alone; a record that they would send anywhere has no place.
Partitions may have been added while a job wrote: what was right with fewer of them stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

RANDOM = "random"
"""The partitioner that looks at no key."""
_M, _SEED, _PRIME, _OFFSET = 0x5BD1E995, 0x9747B28C, 0x01000193, 0x811C9DC5
_LOW, _SIGN = (1 << 32) - 1, 1 << 31


def key_hash(partitioner: str | None, key: Column) -> Column:
    """A number whose rest by the number of partitions is the record's partition; null where nothing tells."""
    found = _HASHES.get(partitioner or "")
    return F.lit(None).cast("bigint") if found is None else F.when(key.isNotNull(), found(key))


def numbers(first: Collection[tuple[int, int]], now: int) -> frozenset[int] | None:
    """The numbers of partitions that a topic may have had, as ``first`` tells: hash and partition of records of the
    first epoch of a job. ``now`` is how many there are. None if that is not how their partitions were chosen.

    A topic that has grown had one of the smaller numbers then, and every record has the place which that one gives it.
    """
    before = [n for n in range(1, now) if all(number % n == partition for number, partition in first)]
    right = sum(number % now == partition for number, partition in first)
    return frozenset({now, *before}) if before or 2 * right >= len(first) else None


def is_at_home(number: Column, partition: Column, counts: Collection[int]) -> Column:
    """Is the record where one of these numbers of partitions puts it?"""
    at_home = F.lit(False)
    for count in sorted(counts):
        at_home = at_home | (number % count == partition)
    return at_home


# ---------------------------------------------------------------- the hashes of librdkafka, in SQL


def _crc32(key: Column) -> Column:
    return F.crc32(key)


def _crc32_or_anywhere(key: Column) -> Column:
    """An empty key is none."""
    return F.when(F.length(key) > 0, F.crc32(key))


def _murmur2(key: Column) -> Column:
    """As the Java client: of words of four bytes, the last one maybe shorter."""
    size = F.length(key)
    over = size % 4

    def add(so_far: Column, at: Column) -> Column:
        mixed = _let(_times(_word(F.hex(key.substr(at, F.lit(4)))), _M), lambda k: _times(_shifted(k, 24), _M))
        return _times(so_far, _M).bitwiseXOR(mixed)

    def finish(so_far: Column) -> Column:
        rest = _word(F.rpad(F.hex(key.substr(size - over + 1, over)), 8, "0"))
        whole = F.when(over == 0, so_far).otherwise(_times(so_far.bitwiseXOR(rest), _M))
        return _let(_let(whole, lambda h: _times(_shifted(h, 13), _M)), lambda h: _shifted(h, 15))

    start = F.lit(_SEED).bitwiseXOR(size.cast("bigint"))
    return F.aggregate(_places(size - over, 4), start, add, finish).bitwiseAND(_SIGN - 1)


def _fnv1a(key: Column) -> Column:
    def add(so_far: Column, at: Column) -> Column:
        return _times(so_far.bitwiseXOR(_number(F.hex(key.substr(at, F.lit(1))))), _PRIME)

    start = F.lit(_OFFSET).cast("bigint")
    return F.aggregate(_places(F.length(key), 1), start, add, lambda h: F.when(h < _SIGN, h).otherwise(_LOW + 1 - h))


_HASHES: dict[str, Callable[[Column], Column]] = {
    "consistent": _crc32,
    "consistent_random": _crc32_or_anywhere,
    "murmur2": _murmur2,
    "murmur2_random": _murmur2,
    "fnv1a": _fnv1a,
    "fnv1a_random": _fnv1a,
}


def _places(size: Column, step: int) -> Column:
    """Where words of ``step`` bytes begin, counted from 1."""
    return F.when(size > 0, F.sequence(F.lit(1), size, F.lit(step))).otherwise(F.array().cast("array<int>"))


def _word(digits: Column) -> Column:
    """Eight hexadecimal digits as a number whose lowest byte comes first."""
    return _number(F.concat(*(F.substring(digits, at, 2) for at in (7, 5, 3, 1))))


def _number(digits: Column) -> Column:
    return F.conv(digits, 16, 10).cast("bigint")


def _times(number: Column, factor: int) -> Column:
    """In 32 bits."""
    return (number * F.lit(factor).cast("bigint")).bitwiseAND(_LOW)


def _shifted(number: Column, by: int) -> Column:
    return number.bitwiseXOR(F.shiftright(number, by))


def _let(value: Column, then: Callable[[Column], Column]) -> Column:
    """``then`` of a value that is computed once."""
    return F.element_at(F.transform(F.array(value), then), 1)
