"""Where the outputs of one transaction came from, in the order of production: provenance kept beside the data.

A client keeps the order of a partition, and brokers number what a producer writes to one. So the n-th output of a
partition here is the record that the producer wrote there as its n-th; see ``provenance`` for what is said of each.

    kafka-eos provenance <version>            one line
    the attempt, the producer, the topics     msgpack; of a topic blocks, of a block columns

A column is written as its eight byte planes, deflated: nearly all that provenance says is equal to, or one more than,
what it says of the output before.

Pure. Rule: what was added is written whole or not at all; a block is closed once it is full, so an epoch may be long.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.provenance import fans_out, ordinals
from kafka_eos.core.records import Batch

_MAGIC: Final = b"kafka-eos provenance 1\n"
_PLANES: Final = 8


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Outputs of one batch: how many, and what they have in common. Names are numbers of ``Block.names``."""

    count: int
    sink: int
    source: int
    topic: int
    lane: int


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A block as it is written."""

    names: tuple[str, ...]
    spans: tuple[Span, ...]
    places: tuple[bytes, ...]
    partitions: tuple[bytes, ...]
    offsets: tuple[bytes, ...]
    numbers: tuple[bytes, ...]
    branches: tuple[bytes, ...]
    updates: tuple[bytes, ...]


class _File(msgspec.Struct, frozen=True, array_like=True):
    term: int
    epoch: int
    producer_id: int
    producer_epoch: int
    topics: dict[str, list[msgspec.Raw]]


@dataclass(frozen=True, slots=True)
class Block:
    """Outputs to one topic, in the order of production; all columns are of one length."""

    names: Sequence[str]
    spans: Sequence[Span]
    places: array[int]
    """Partition that it was written to."""
    partitions: array[int]
    offsets: array[int]
    """Of the input record."""
    numbers: array[int]
    """Ordinals, without their branch."""
    branches: array[int]
    """Numbers of ``names``."""
    updates: array[int]
    """0 where there is none."""


@dataclass(frozen=True, slots=True)
class Origins:
    """All that one transaction wrote, read back. ``blocks`` are by topic, to be opened with ``opened``."""

    term: Term
    epoch: Epoch
    producer_id: int
    producer_epoch: int
    blocks: Mapping[str, Sequence[bytes]]


class Recording:
    """What a transaction writes to one topic, while it does. Not thread-safe."""

    def __init__(self, full: int | None = None) -> None:
        """``full``: outputs after which a block is closed, if not after the usual number."""
        self._most = LIMITS.outputs_per_origin_block if full is None else full
        self._closed = list[bytes]()
        self._begin()

    def _begin(self) -> None:
        self._names: dict[str, int] = {"": 0}
        self._spans: list[Span] = []
        self._places, self._partitions, self._offsets = array("q"), array("q"), array("q")
        self._numbers, self._branches, self._updates = _Sparse(), _Sparse(), _Sparse()

    def add(self, sink: str, batch: Batch[Any], places: Sequence[int], without: Collection[int] = ()) -> None:
        """Outputs that were handed to the client, in this order, each for the partition that ``places`` says.

        The client did not take those at the indices ``without``; the others are called what they would be called beside
        them.
        """
        numbers = None if batch.branch is None and not fans_out(batch) else ordinals(batch)
        if without:
            left = [index for index in range(len(batch)) if index not in without]
            batch, places = batch.take(left), [places[index] for index in left]
            numbers = None if numbers is None else [numbers[index] for index in left]
        count = len(batch)
        if not count:
            return
        origin, rows, branch = batch.origin, batch.rows, batch.branch
        whole = isinstance(rows, range) and rows == range(len(origin.offsets))
        _extend(self._places, places)
        _extend(self._partitions, origin.partitions if whole else list(map(origin.partitions.__getitem__, rows)))
        _extend(self._offsets, origin.offsets if whole else list(map(origin.offsets.__getitem__, rows)))
        self._numbers.extend(numbers, count)
        self._branches.extend(None if branch is None else list(map(self._name, branch)), count)
        self._updates.extend(batch.updates, count)
        self._span(count, self._name(sink), self._name(origin.source), self._name(origin.topic), batch.lane)
        if len(self._places) >= self._most:
            self._close()

    def _span(self, count: int, *common: int) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.sink, last.source, last.topic, last.lane) == common:
            self._spans[-1] = Span(last.count + count, *common)
        else:
            self._spans.append(Span(count, *common))

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _close(self) -> None:
        count = len(self._places)
        packed = _Packed(
            tuple(self._names),
            tuple(self._spans),
            _packed(self._places),
            _packed(self._partitions),
            # They rise by one, so that their low bytes come round again.
            _packed(self._offsets, zlib.Z_DEFAULT_STRATEGY),
            _packed(self._numbers.whole(count)),
            _packed(self._branches.whole(count)),
            _packed(self._updates.whole(count)),
        )
        self._closed.append(msgspec.msgpack.encode(packed))
        self._begin()

    def blocks(self) -> list[bytes]:
        """All of it. Nothing is added after this."""
        if self._spans:
            self._close()
        return self._closed


class _Sparse:
    """A column that mostly has no values: of those that are missing only the number is kept."""

    def __init__(self) -> None:
        self._values: array[int] = array("q")
        self._missing = 0

    def extend(self, values: Sequence[int] | None, count: int) -> None:
        if values is None:
            self._missing += count
            return
        self._fill()
        _extend(self._values, values)

    def whole(self, count: int) -> array[int]:
        """With a zero for each that is missing; empty if all ``count`` are."""
        if self._missing < count:
            self._fill()
        return self._values

    def _fill(self) -> None:
        self._values.frombytes(bytes(_PLANES * self._missing))
        self._missing = 0


def _extend(column: array[int], values: Sequence[int]) -> None:
    # Twice as fast as to extend it by the values themselves: the array knows how many there are.
    column.extend(array("q", values))


class Recorded(Protocol):
    """A recording that has ended."""

    def blocks(self) -> list[bytes]: ...


def encode(term: Term, epoch: Epoch, producer_id: int, producer_epoch: int, topics: Mapping[str, Recorded]) -> bytes:
    """The content of the file of one transaction."""
    blocks = {name: [msgspec.Raw(block) for block in recorded.blocks()] for name, recorded in sorted(topics.items())}
    return _MAGIC + msgspec.msgpack.encode(_File(term.n, epoch.n, producer_id, producer_epoch, blocks))


def decode(data: bytes) -> Origins:
    """What ``encode`` wrote. ValueError if it is something else, or of a newer version."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"it begins with {data[:40]!r}, not with {_MAGIC!r}")
    found = msgspec.msgpack.decode(data[len(_MAGIC) :], type=_File)
    blocks = {topic: [bytes(block) for block in some] for topic, some in found.topics.items()}
    return Origins(Term(found.term), Epoch(found.epoch), found.producer_id, found.producer_epoch, blocks)


def opened(block: bytes) -> Block:
    """The columns of a block. ValueError if they do not fit together."""
    found = msgspec.msgpack.decode(block, type=_Packed)
    count = sum(span.count for span in found.spans)
    places, partitions, offsets, numbers, branches, updates = (
        _unpacked(planes, count)
        for planes in (found.places, found.partitions, found.offsets, found.numbers, found.branches, found.updates)
    )
    return Block(found.names, found.spans, places, partitions, offsets, numbers, branches, updates)


def places_of(block: bytes) -> array[int]:
    """The partitions of a block alone."""
    found = msgspec.msgpack.decode(block, type=_Packed)
    return _unpacked(found.places, sum(span.count for span in found.spans))


# ---------------------------------------------------------------- columns


def _packed(column: array[int], strategy: int = zlib.Z_RLE) -> tuple[bytes, ...]:
    """Its planes, the lowest bytes first, without those behind the last that holds anything."""
    raw = _little(column).tobytes()
    planes = [raw[plane::_PLANES] for plane in range(_PLANES)]
    while planes and planes[-1].count(0) == len(planes[-1]):
        planes.pop()
    return tuple(_deflated(plane, strategy) for plane in planes)


def _deflated(plane: bytes, strategy: int) -> bytes:
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return deflate.compress(plane) + deflate.flush()


def _unpacked(planes: Sequence[bytes], count: int) -> array[int]:
    raw = bytearray(_PLANES * count)
    for number, plane in enumerate(planes):
        try:
            inflated = zlib.decompress(plane, -zlib.MAX_WBITS)
        except zlib.error as error:
            raise ValueError(f"a column that cannot be inflated: {error}") from error
        if len(inflated) != count:
            raise ValueError(f"a column of {len(inflated)} values beside {count} outputs")
        raw[number::_PLANES] = inflated
    column = array("q")
    column.frombytes(raw)
    return _little(column)


def _little(column: array[int]) -> array[int]:
    """In the order of bytes that files have; a column of this machine's if it has that order."""
    if sys.byteorder == "little":
        return column
    turned = column[:]
    turned.byteswap()
    return turned
