"""How places of a state become row keys, and back.

    value                        group | key
    value with namespace         group | size key | namespace
    map, list                    group | size key | entry
    map, list with namespace     group | size key | size namespace | entry
    timer, pane                  group | entry (a time, eight bytes) | key

``group`` is two bytes, ``size`` one byte, or ff and four bytes for parts of 255 bytes and more; every part is encoded.
Rule: part of the durable format. A part in front of another one tells its size, so no two places share a row key, and
all rows of one key (and of one namespace of it) are neighbours; but timers and panes, which are in the order of time.
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


class Layout:
    """The row keys of one state. Encodes parts with the state's codecs: raises what they raise."""

    def __init__(self, descriptor: StateDescriptor[Any]) -> None:
        rest = [codec for codec in (descriptor.namespace, descriptor.entry) if codec is not None]
        self.codecs: tuple[Codec[Any], ...] = (descriptor.key, *rest)
        self.plain = not rest
        """Places are keys, not tuples."""
        self.timed = descriptor.kind in TIMED
        """Rows are in the order of time: those of a key are no neighbours."""
        last = "time" if self.timed else "entry"
        given = (("namespace", descriptor.namespace), (last, descriptor.entry))
        self.parts = ("key", *(name for name, codec in given if codec is not None))
        """What the parts of a place are called."""
        self._key, self._last = descriptor.key.encode, self.codecs[-1].encode
        encode = self._timed if self.timed else self._entry if len(self.codecs) == 2 else self._encode
        self.encode: Callable[[Any], bytes] = descriptor.key.encode if self.plain else encode
        """The first half of the way to a row key, a place at a time, for whoever must know which place fails."""

    def row_keys(self, places: Iterable[Any]) -> list[bytes]:
        """Row keys of places, in order."""
        return self.finish([self.encode(place) for place in places])

    def finish(self, encoded: list[bytes]) -> list[bytes]:
        """The second half, for many at once."""
        return row_keys(encoded) if self.plain else encoded

    def prefix(self, parts: Sequence[Any]) -> bytes:
        """What all row keys begin with whose places begin with ``parts``, fewer than a place has; others may, too."""
        if self.timed:
            return prefix_of(self.codecs[0].encode(parts[0]))
        encoded = [codec.encode(part) for codec, part in zip(self.codecs, parts, strict=False)]
        return prefix_of(encoded[0]) + b"".join(map(_sized, encoded))

    def place(self, row_key: bytes) -> Any:
        """The place of a row key: a key, or a tuple of key, namespace, entry. ValueError if it is not one."""
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
        """What ``_encode`` gives, without its loops: most places have two parts, and there are many of them."""
        key, last = place
        encoded = self._key(key)
        return prefix_of(encoded) + _sized(encoded) + self._last(last)

    def _timed(self, place: Any) -> bytes:
        key, time = place
        encoded = self._key(key)
        return prefix_of(encoded) + self._last(time) + encoded


Span = Callable[[bytes], tuple[int, int]]
"""Start and end of the key in a row key."""


def span_of(description: Mapping[str, Json]) -> Span:
    """Where the key is in the row keys of a state, from what is stored about it."""
    if description.get("kind") in TIMED:
        return lambda row_key: (_TIMED, len(row_key))
    if "namespace" in description or "entry" in description:
        return lambda row_key: _span(row_key, GROUP_BYTES)
    return lambda row_key: (GROUP_BYTES, len(row_key))


def after(prefix: bytes) -> bytes:
    """The least bytes that are greater than everything that begins with ``prefix``, which begins with a group."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1])


def _sized(part: bytes) -> bytes:
    size = len(part)
    return (_HEADS[size] if size < _LONG else b"\xff" + size.to_bytes(_LONG_BYTES, "big")) + part


def _span(row_key: bytes, at: int) -> tuple[int, int]:
    """Start and end of the sized part at ``at``."""
    size, start = row_key[at : at + 1], at + 1
    if size == b"\xff":
        size, start = row_key[start : start + _LONG_BYTES], start + _LONG_BYTES
    end = start + int.from_bytes(size, "big")
    if not size or end > len(row_key):
        raise ValueError(f"row key {row_key!r} ends within a part")
    return start, end
