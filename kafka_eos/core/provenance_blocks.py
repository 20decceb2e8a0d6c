"""The provenance of one transaction's outputs, in the order of production, stored beside the data.

A client keeps the order within a partition, and brokers number what a producer writes to it. So the n-th output of a
partition here is the n-th record that the producer wrote there; see ``provenance`` for the fields.

    kafka-eos provenance <version>            one line
    the attempt, the producer, the topics     msgpack: a topic holds blocks, a block holds columns

A column is stored as its eight byte planes, deflated: most fields are equal to, or one more than, those of the previous
output.

Pure. Rule: an output is recorded completely or not at all. A full block is closed, so an epoch may be long.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.inflation import RAW, inflate
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.provenance import fans_out, number_outputs
from kafka_eos.core.records import Batch

_MAGIC: Final = b"kafka-eos provenance 1\n"
_PLANES: Final = 8
_MOST_OUTPUTS: Final = 1 << 21
"""Outputs of a block that is read; one that is written has some ten thousand."""


class ProvenanceSpan(msgspec.Struct, frozen=True, array_like=True):
    """A run of outputs of one batch: their count, sink, source, topic and lane.

    Names are indices into ``ProvenanceBlock.names``.
    """

    count: int
    sink: int
    source: int
    topic: int
    lane: int


class _EncodedBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block as it is stored: deflated byte planes per column."""

    names: tuple[str, ...]
    spans: tuple[ProvenanceSpan, ...]
    places: tuple[bytes, ...]
    partitions: tuple[bytes, ...]
    offsets: tuple[bytes, ...]
    numbers: tuple[bytes, ...]
    branches: tuple[bytes, ...]
    updates: tuple[bytes, ...]


class _TransactionContent(msgspec.Struct, frozen=True, array_like=True):
    term: int
    epoch: int
    producer_id: int
    producer_epoch: int
    topics: dict[str, list[msgspec.Raw]]


class ProvenanceBlock(Struct, frozen=True):
    """Columns of provenance for outputs to one topic, in production order."""

    names: Sequence[str]
    spans: Sequence[ProvenanceSpan]
    output_partitions: array[int]
    """Partition that each output was written to."""
    partitions: array[int]
    offsets: array[int]
    """Offset of each input record."""
    numbers: array[int]
    """Ordinal of each output, without its branch."""
    branches: array[int]
    """Index into ``names`` of each output's branch."""
    updates: array[int]
    """Update count of each output; 0 if it has none."""


class TransactionProvenance(Struct, frozen=True):
    """Provenance of all outputs of one transaction, as read from its file.

    ``blocks`` holds encoded blocks by topic; ``decode_block`` decodes one.
    """

    term: Term
    epoch: Epoch
    producer_id: int
    producer_epoch: int
    blocks: Mapping[str, Sequence[bytes]]


class ProvenanceRecorder:
    """Records the provenance of what a transaction writes to one topic. Not thread-safe."""

    def __init__(self, full: int | None = None) -> None:
        """Record outputs; close a block after ``full`` of them, by default after the usual number."""
        self._most = LIMITS.outputs_per_origin_block if full is None else full
        self._closed = list[bytes]()
        self._begin()

    def _begin(self) -> None:
        self._names: dict[str, int] = {"": 0}
        self._spans: list[ProvenanceSpan] = []
        self._places = array("q")
        self._partitions = array("q")
        self._offsets = array("q")
        self._numbers = _SparseColumn()
        self._branches = _SparseColumn()
        self._updates = _SparseColumn()

    def add(self, sink: str, batch: Batch[Any], places: Sequence[int], without: Collection[int] = ()) -> None:
        """Record outputs that were handed to the client, in this order, each for its partition in
        ``output_partitions``.

        ``without`` holds the indices of rows that the client did not accept. The numbers of the other outputs still
        count them.
        """
        numbers = None if batch.branch is None and not fans_out(batch) else number_outputs(batch)
        if without:
            left = [index for index in range(len(batch)) if index not in without]
            batch, places = batch.take(left), [places[index] for index in left]
            numbers = None if numbers is None else [numbers[index] for index in left]
        count = len(batch)
        if not count:
            return
        origin, rows, branch = batch.origin, batch.origin_rows, batch.branch
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
            self._spans[-1] = ProvenanceSpan(last.count + count, *common)
        else:
            self._spans.append(ProvenanceSpan(count, *common))

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _close(self) -> None:
        count = len(self._places)
        packed = _EncodedBlock(
            tuple(self._names),
            tuple(self._spans),
            _packed(self._places),
            _packed(self._partitions),
            # They increase by one, so their low bytes repeat.
            _packed(self._offsets, zlib.Z_DEFAULT_STRATEGY),
            _packed(self._numbers.whole(count)),
            _packed(self._branches.whole(count)),
            _packed(self._updates.whole(count)),
        )
        self._closed.append(msgspec.msgpack.encode(packed))
        self._begin()

    def blocks(self) -> list[bytes]:
        """Return all blocks. Nothing may be added afterwards."""
        if self._spans:
            self._close()
        return self._closed


class _SparseColumn:
    """A column of mostly missing values; a run of missing ones is only counted."""

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
        """Return the column with zeros for missing values; empty if all ``count`` values are missing."""
        if self._missing < count:
            self._fill()
        return self._values

    def _fill(self) -> None:
        self._values.frombytes(bytes(_PLANES * self._missing))
        self._missing = 0


def _extend(column: array[int], values: Sequence[int]) -> None:
    # Twice as fast as extending by the values themselves: the array knows its length in advance.
    column.extend(array("q", values))


def encode(
    term: Term, epoch: Epoch, producer_id: int, producer_epoch: int, topics: Mapping[str, ProvenanceRecorder]
) -> bytes:
    """Return the content of the provenance file of one transaction."""
    blocks = {name: [msgspec.Raw(block) for block in recorded.blocks()] for name, recorded in sorted(topics.items())}
    return _MAGIC + msgspec.msgpack.encode(_TransactionContent(term.n, epoch.n, producer_id, producer_epoch, blocks))


def decode(data: bytes) -> TransactionProvenance:
    """Decode the output of ``encode``. Raises ValueError if it is malformed or of a newer version."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"it begins with {data[:40]!r}, not with {_MAGIC!r}")
    found = msgspec.msgpack.decode(data[len(_MAGIC) :], type=_TransactionContent)
    blocks = {topic: [bytes(block) for block in some] for topic, some in found.topics.items()}
    return TransactionProvenance(Term(found.term), Epoch(found.epoch), found.producer_id, found.producer_epoch, blocks)


def decode_block(block: bytes) -> ProvenanceBlock:
    """Decode the columns of a block. Raises ValueError if they are inconsistent."""
    found = msgspec.msgpack.decode(block, type=_EncodedBlock)
    count = sum(span.count for span in found.spans)
    places, partitions, offsets, numbers, branches, updates = (
        _unpacked(planes, count)
        for planes in (found.places, found.partitions, found.offsets, found.numbers, found.branches, found.updates)
    )
    return ProvenanceBlock(found.names, found.spans, places, partitions, offsets, numbers, branches, updates)


def decode_output_partitions(block: bytes) -> array[int]:
    """Decode only the output partitions of a block."""
    found = msgspec.msgpack.decode(block, type=_EncodedBlock)
    return _unpacked(found.places, sum(span.count for span in found.spans))


# ---------------------------------------------------------------- columns


def _packed(column: array[int], strategy: int = zlib.Z_RLE) -> tuple[bytes, ...]:
    """Return the deflated byte planes, lowest bytes first, without the planes that are zero at the end."""
    raw = _little(column).tobytes()
    planes = [raw[plane::_PLANES] for plane in range(_PLANES)]
    while planes and planes[-1].count(0) == len(planes[-1]):
        planes.pop()
    return tuple(_deflated(plane, strategy) for plane in planes)


def _deflated(plane: bytes, strategy: int) -> bytes:
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return deflate.compress(plane) + deflate.flush()


def _unpacked(planes: Sequence[bytes], count: int) -> array[int]:
    if count > _MOST_OUTPUTS:
        raise ValueError(f"a block has {count:,} outputs, but the maximum is {_MOST_OUTPUTS:,}")
    raw = bytearray(_PLANES * count)
    for number, plane in enumerate(planes):
        try:
            inflated = inflate(plane, count, RAW)
        except ValueError as error:
            raise ValueError(f"a column is damaged: {error}") from error
        if len(inflated) != count:
            raise ValueError(f"a column has {len(inflated)} values for {count} outputs")
        raw[number::_PLANES] = inflated
    column = array("q")
    column.frombytes(raw)
    return _little(column)


def _little(column: array[int]) -> array[int]:
    """Return the column in little-endian byte order, unchanged if this machine uses that order."""
    if sys.byteorder == "little":
        return column
    turned = column[:]
    turned.byteswap()
    return turned
