"""Sketches: approximate distinct counts and quantiles, with bounded error and size.

    DistinctAggregate    HyperLogLog with 4096 registers and Ertl's estimator, which needs no tables
    QuantilesAggregate   DDSketch: counts of values in buckets whose bounds grow by 2 %

Rule: a sketch is a function of the set of values, independent of their order and partitioning. Library sketches are
often more accurate because they depend on the order of arrival or on random numbers.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import msgspec

from kafka_eos.api.aggregates.aggregate import Aggregate, FieldOr, as_function
from kafka_eos.codecs.msgpack_codec import KeyCodec
from kafka_eos.core.errors import PlanError

T = TypeVar("T")

_INDEX_BITS = 12
_REGISTERS = 1 << _INDEX_BITS
_REST_BITS = 64 - _INDEX_BITS
_MOST_LISTED = 512
"""Registers that are listed one by one; with more, all are stored as an array."""
_RANK_BITS = 6
_RANK = (1 << _RANK_BITS) - 1
_KEY = KeyCodec()

Registers: TypeAlias = bytes | tuple[int, ...]
"""The rank of each register, one byte each; or, if few are set, ``index << 6 | rank`` in order."""


@dataclass(frozen=True, kw_only=True)
class DistinctAggregate(Aggregate[Any, Registers, int]):
    fn: Callable[[Any], Any] | None
    name = "distinct"
    accumulator = Registers
    returns = int

    def create(self) -> Registers:
        return ()

    def add(self, acc: Registers, value: Any) -> Registers:
        found = value if self.fn is None else self.fn(value)
        if found is None:
            return acc
        _KEY.check_key(found)
        hashed = int.from_bytes(blake2b(_KEY.encode(found), digest_size=8).digest(), "big")
        rest = hashed & ((1 << _REST_BITS) - 1)
        return _with(acc, hashed >> _REST_BITS, _REST_BITS - rest.bit_length() + 1)

    def merge(self, one: Registers, other: Registers) -> Registers:
        if isinstance(one, bytes) and isinstance(other, bytes):
            return bytes(map(max, one, other))
        if isinstance(other, bytes):
            one, other = other, one
        for entry in other:
            one = _with(one, entry >> _RANK_BITS, entry & _RANK)
        return one

    def result(self, acc: Registers) -> int:
        return _estimate(acc if isinstance(acc, bytes) else _array(acc))


Counts: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of bucket and count, in order."""


class Buckets(msgspec.Struct, frozen=True, array_like=True):
    """Counts of positive values by bucket, of negative values by the bucket of their absolute value, and of zeros."""

    above: Counts = ()
    below: Counts = ()
    zeros: int = 0


_GROWTH = 1.02
_LOG = math.log(_GROWTH)
_HALF = math.log((_GROWTH + 1) / 2)
_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True, kw_only=True)
class QuantilesAggregate(Aggregate[Any, Buckets, list[float]]):
    fn: Callable[[Any], float | None]
    wanted: tuple[float, ...]
    name = "quantiles"
    accumulator = Buckets
    returns = list[float]

    def create(self) -> Buckets:
        return Buckets()

    def add(self, acc: Buckets, value: Any) -> Buckets:
        found = self.fn(value)
        if found is None:
            return acc
        number = float(found)
        if not math.isfinite(number):
            raise ValueError(f"quantiles need finite numbers (got {found!r})")
        if number == 0:
            return Buckets(acc.above, acc.below, acc.zeros + 1)
        bucket = math.ceil(math.log(abs(number)) / _LOG)
        if number > 0:
            return Buckets(_counted(acc.above, bucket, 1), acc.below, acc.zeros)
        return Buckets(acc.above, _counted(acc.below, bucket, 1), acc.zeros)

    def merge(self, one: Buckets, other: Buckets) -> Buckets:
        return Buckets(_sum(one.above, other.above), _sum(one.below, other.below), one.zeros + other.zeros)

    def result(self, acc: Buckets) -> list[float]:
        found = list(_ascending(acc))
        if not found:
            return []
        upto = list(accumulate(count for _, count in found))
        return [found[bisect_left(upto, share * (upto[-1] - 1) + 1)][0] for share in self.wanted]


def approx_distinct(fn: FieldOr[T, Any] | None = None) -> Aggregate[T, Any, int]:
    """Return the approximate number of distinct results of ``fn``, a function or a field's name. None is ignored.

    These are str, int, bytes, or tuples of them.
    The error is below 1.7 % in two of three cases, and below 5 % in all but a few of a thousand. It stores at most 4
    KB.
    """
    return DistinctAggregate(fn=as_function(fn))


def approx_quantiles(fn: FieldOr[T, float | None], *shares: float) -> Aggregate[T, Any, list[float]]:
    """Return approximate quantiles of ``fn``, a function or a field's name: one per share, as in
    ``approx_quantiles(f, 0.5, 0.99)``.

    Each is within 1 % of a value of that rank. About 120 numbers are stored for each power of ten that values differ
    by. Without values it is an empty list.
    """
    if not shares or not all(map(_is_share, shares)):
        raise PlanError(
            f"approx_quantiles takes shares between 0 and 1, as in approx_quantiles(f, 0.5, 0.99) (got {shares})"
        )
    return QuantilesAggregate(fn=as_function(fn), wanted=shares)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _with(acc: Registers, index: int, rank: int) -> Registers:
    """Return the registers, with the one at ``index`` raised to at least ``rank``."""
    if isinstance(acc, bytes):
        return acc if acc[index] >= rank else acc[:index] + bytes((rank,)) + acc[index + 1 :]
    entry, at = index << _RANK_BITS | rank, bisect_left(acc, index << _RANK_BITS)
    if at < len(acc) and acc[at] >> _RANK_BITS == index:
        return acc if acc[at] >= entry else (*acc[:at], entry, *acc[at + 1 :])
    grown = (*acc[:at], entry, *acc[at:])
    return _array(grown) if len(grown) > _MOST_LISTED else grown


def _array(listed: tuple[int, ...]) -> bytes:
    ranks = bytearray(_REGISTERS)
    for entry in listed:
        ranks[entry >> _RANK_BITS] = entry & _RANK
    return bytes(ranks)


def _estimate(ranks: bytes) -> int:
    """Return the estimate. O. Ertl, New cardinality estimation algorithms for HyperLogLog sketches, algorithm 6.

    It omits the correction for the highest rank, which no register reaches: only one value in 2^52 would have it.
    """
    z = 0.0
    for rank in range(_REST_BITS, 0, -1):
        z = (z + ranks.count(rank)) / 2
    z += _REGISTERS * _sigma(ranks.count(0) / _REGISTERS)
    return round(_REGISTERS * _REGISTERS / (2 * math.log(2) * z))


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before, z = z, z + x * y
        y += y
    return z


def _counted(counts: Counts, bucket: int, number: int) -> Counts:
    at = bisect_left(counts, (bucket,))
    if at < len(counts) and counts[at][0] == bucket:
        return (*counts[:at], (bucket, counts[at][1] + number), *counts[at + 1 :])
    return (*counts[:at], (bucket, number), *counts[at:])


def _sum(one: Counts, other: Counts) -> Counts:
    large, small = (one, other) if len(one) >= len(other) else (other, one)
    for bucket, number in small:
        large = _counted(large, bucket, number)
    return large


def _ascending(acc: Buckets) -> Iterator[tuple[float, int]]:
    """Yield a representative value and the count of each bucket, in ascending order."""
    yield from ((-_middle(bucket), number) for bucket, number in reversed(acc.below))
    if acc.zeros:
        yield 0.0, acc.zeros
    yield from ((_middle(bucket), number) for bucket, number in acc.above)


def _middle(bucket: int) -> float:
    """Return a number within 1 % of every value of the bucket."""
    return math.exp(min(bucket * _LOG - _HALF, _LARGEST))
