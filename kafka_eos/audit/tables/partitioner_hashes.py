"""The hashes of librdkafka's partitioners for a column of keys: in SQL where Spark has them, otherwise in numpy.

Source: librdkafka's ``rdmurmur2.c``, ``rdfnv1a.c`` and ``rdcrc32.c``; the Java client also has the first one. This is
an implementation independent of the sink's, which must not judge itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column

_M, _SEED, _PRIME, _OFFSET = (np.uint32(n) for n in (0x5BD1E995, 0x9747B28C, 0x01000193, 0x811C9DC5))
_WORD = 4
"""Bytes."""


def key_hash(partitioner: str | None, key: Column) -> Column:
    """Return a number whose remainder by the number of partitions is the record's partition; null if that is
    unknown.
    """
    found = _HASHES.get(partitioner or "")
    return F.lit(None).cast("bigint") if found is None else F.when(key.isNotNull(), found(key))


def is_known(partitioner: str | None) -> bool:
    """Return whether the partitioner hashes the key, with a hash that this module implements."""
    return partitioner in _HASHES


def _crc32(key: Column) -> Column:
    return F.crc32(key)


def _crc32_or_anywhere(key: Column) -> Column:
    """Return the CRC-32 of a key; null for an empty key, which is treated like no key."""
    return F.when(F.length(key) > 0, F.crc32(key))


def _in_numpy(fn: Callable[[pa.Array], pa.Array]) -> Callable[[Column], Column]:
    made: Callable[[Column], Column] = arrow_udf(fn, "bigint")  # type: ignore[call-overload]  # told by its hints
    return made


def _murmur2(key: Column) -> Column:
    return _in_numpy(murmur2)(key)


def _fnv1a(key: Column) -> Column:
    return _in_numpy(fnv1a)(key)


_HASHES: dict[str, Callable[[Column], Column]] = {
    "consistent": _crc32,
    "consistent_random": _crc32_or_anywhere,
    "murmur2": _murmur2,
    "murmur2_random": _murmur2,
    "fnv1a": _fnv1a,
    "fnv1a_random": _fnv1a,
}


def murmur2(keys: pa.Array) -> pa.Array:
    """Compute the hash over words of four bytes, the last of which may be shorter, and drop its sign."""
    data, starts, sizes = _parts(keys)
    found = _SEED ^ sizes.astype(np.uint32)
    for word in range(sizes.max(initial=0) // _WORD):
        rows = np.flatnonzero(sizes >= _WORD * (word + 1))
        at = starts[rows] + _WORD * word
        mixed = sum((data[at + i] << np.uint32(8 * i) for i in range(1, _WORD)), data[at]) * _M
        found[rows] = found[rows] * _M ^ (mixed ^ mixed >> np.uint32(24)) * _M
    over, whole = sizes % _WORD, sizes - sizes % _WORD
    for i in range(_WORD - 1):
        rows = np.flatnonzero(over > i)
        found[rows] ^= data[starts[rows] + whole[rows] + i] << np.uint32(8 * i)
    found[over > 0] *= _M
    found = (found ^ found >> np.uint32(13)) * _M
    return pa.array((found ^ found >> np.uint32(15)).astype(np.int64) & 0x7FFFFFFF)


def fnv1a(keys: pa.Array) -> pa.Array:
    """Compute the hash byte by byte, and return its absolute value."""
    data, starts, sizes = _parts(keys)
    found = np.full(len(sizes), _OFFSET)
    for i in range(sizes.max(initial=0)):
        rows = np.flatnonzero(sizes > i)
        found[rows] = (found[rows] ^ data[starts[rows] + i]) * _PRIME
    return pa.array(np.abs(found.view(np.int32).astype(np.int64)))


def _parts(keys: pa.Array) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
    """Return all bytes, and the start and length of each key; null has length 0."""
    keys = keys.cast(pa.large_binary())
    _, ends, data = keys.buffers()
    at = np.frombuffer(ends, np.int64, len(keys) + 1, keys.offset * 8)
    text = np.frombuffer(data or b"", np.uint8).astype(np.uint32)
    return text, at[:-1], np.diff(at)
