"""Encoding of state keys as row keys, and back.

    value                        group | key
    value with namespace         group | size key | namespace
    map, list                    group | size key | entry
    map, list with namespace     group | size key | size namespace | entry
    timer, pane                  group | entry (a time, eight bytes) | key

``group`` is two bytes, ``size`` one byte, or ff and four bytes for parts of 255 bytes and more; every part is encoded.
Rule: part of the durable format. Each part except the last has its size, so no two state keys share a row key. All rows
of one key (and of one namespace of it) are adjacent. Timers and panes are in the order of time instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.key_groups import GROUP_BYTES, prefix_of, row_keys

_LONG = 255
_LONG_BYTES = 4
TIME_BYTES = 8
TIMED = frozenset({"timer", "pane"})
"""The kinds of state whose rows are in the order of time."""
_TIMED = GROUP_BYTES + TIME_BYTES
_HEADS = [bytes([size]) for size in range(_LONG)]


class RowKeyCodec:
    """Encodes the keys of one state to row keys, and decodes them. Raises the errors of the state's codecs."""

    def __init__(self, descriptor: StateDescriptor[Any]) -> None:
        rest = [codec for codec in (descriptor.namespace, descriptor.entry) if codec is not None]
        self.codecs: tuple[Codec[Any], ...] = (descriptor.key, *rest)
        self.is_single_part = not rest
        """Places are keys, not tuples."""
        self.timed = descriptor.kind in TIMED
        """Rows are in the order of time: those of a key are not adjacent."""
        last = "time" if self.timed else "entry"
        given = (("namespace", descriptor.namespace), (last, descriptor.entry))
        self.parts = ("key", *(name for name, codec in given if codec is not None))
        """The names of the parts of a state key."""
        self._key, self._last = descriptor.key.encode, self.codecs[-1].encode
        encode = self._timed if self.timed else self._entry if len(self.codecs) == 2 else self._encode
        self.encode: Callable[[Any], bytes] = descriptor.key.encode if self.is_single_part else encode
        """Encodes one state key, as the first half of a row key. Callers use it to find out which one fails."""

    def encode_batch(self, places: Sequence[Any]) -> list[bytes] | None:
        """Encode many state keys as ``encode`` does; None if they must be encoded one by one."""
        return self.codecs[0].encode_batch(places) if self.is_single_part else None

    def row_keys(self, places: Iterable[Any]) -> list[bytes]:
        """Return the row keys of state keys, in order."""
        return self.prepend_groups([self.encode(place) for place in places])

    def prepend_groups(self, encoded: list[bytes]) -> list[bytes]:
        """Prepend key groups to encoded keys: the second half of ``row_keys``."""
        return row_keys(encoded) if self.is_single_part else encoded

    def prefix(self, parts: Sequence[Any]) -> bytes:
        """Return the common prefix of all row keys whose state keys begin with ``parts``, which are not complete.

        Row keys of other state keys may have this prefix too.
        """
        if self.timed:
            return prefix_of(self.codecs[0].encode(parts[0]))
        encoded = [codec.encode(part) for codec, part in zip(self.codecs, parts, strict=False)]
        return prefix_of(encoded[0]) + b"".join(map(_sized, encoded))

    def decode(self, row_key: bytes) -> Any:
        """Decode a row key to a key, or a tuple of key, namespace and entry. Raises ValueError if it is malformed."""
        if self.timed:
            key, time = self.codecs
            return key.decode(row_key[_TIMED:]), time.decode(row_key[GROUP_BYTES:_TIMED])
        *front, last = self.codecs
        at, parts = GROUP_BYTES, []
        for codec in front:
            start, at = _span(row_key, at)
            parts.append(codec.decode(row_key[start:at]))
        end = last.decode(row_key[at:])
        return (*parts, end) if parts else end

    def _encode(self, place: Any) -> bytes:
        *front, last = [codec.encode(part) for codec, part in zip(self.codecs, place, strict=True)]
        return prefix_of(front[0]) + b"".join(map(_sized, front)) + last

    def _entry(self, place: Any) -> bytes:
        """Encode a state key of two parts like ``_encode``, but without loops: most state keys have two parts."""
        key, last = place
        encoded = self._key(key)
        return prefix_of(encoded) + _sized(encoded) + self._last(last)

    def _timed(self, place: Any) -> bytes:
        key, time = place
        encoded = self._key(key)
        return prefix_of(encoded) + self._last(time) + encoded


KeyLocator = Callable[[bytes], tuple[int, int]]
"""Function that returns start and end of the key within a row key."""


def create_key_locator(description: Mapping[str, Json]) -> KeyLocator:
    """Create the function that finds the key within row keys of a state."""
    if description.get("kind") in TIMED:
        return lambda row_key: (_TIMED, len(row_key))
    if "namespace" in description or "entry" in description:
        return lambda row_key: _span(row_key, GROUP_BYTES)
    return lambda row_key: (GROUP_BYTES, len(row_key))


def compute_upper_bound(prefix: bytes) -> bytes:
    """Compute the exclusive upper bound of all keys with a prefix."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1])


def _sized(part: bytes) -> bytes:
    size = len(part)
    return (_HEADS[size] if size < _LONG else b"\xff" + size.to_bytes(_LONG_BYTES, "big")) + part


def _span(row_key: bytes, at: int) -> tuple[int, int]:
    """Return start and end of the part, with its size in front, at ``at``."""
    size, start = row_key[at : at + 1], at + 1
    if size == b"\xff":
        size, start = row_key[start : start + _LONG_BYTES], start + _LONG_BYTES
    end = start + int.from_bytes(size, "big")
    if not size or end > len(row_key):
        raise ValueError(f"row key {row_key!r} ends within a part")
    return start, end
