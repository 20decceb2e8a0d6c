"""The rows of an epoch by key: the origin of the last row, and an accumulator where the operator has one.

The newest keys are in memory. When there are more than ``scratch`` allows, all of them are spilled, into buckets by a
hash of the key. Later rows of a key form another part, without a look-up of the first one. At the end the parts are
merged, one bucket at a time. Rule: ``drain`` yields each key once, with the origin of its last row, and with its
accumulators merged in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from kafka_eos.abc.codec import ListCodec
from kafka_eos.codecs.msgpack_codec import as_key
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.errors import PlanError
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Origin, RawRecord
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.storability import ACCUMULATOR, ACCUMULATOR_HINT, describe_unstorable

_Stream = tuple[str, str, int]
"""Source, topic and lane, which all rows of a batch share."""
_Place = tuple[_Stream, int, int, int, str, RawRecord | None]
"""Partition, offset, timestamp and branch of a row; its record if a dead letter may need it."""
_Block = tuple[list[Any], list[_Place], bytes]
"""Keys, their origins, and their encoded accumulators (empty if there are none)."""
_Part = tuple[dict[Any, Any], dict[Any, _Place]]
"""Accumulators and origins of some keys."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Block).decode
_NOTHING: Any = object()


class PartialMerge(Struct, frozen=True):
    """The codec of spilled accumulators, and the function that merges them."""

    codec: ListCodec[Any]
    merge: Callable[[Any, Any], Any]

    def check(self, acc: Any) -> None:
        """Raise ValueError if an accumulator cannot be spilled or sent."""
        try:
            self.codec.encode((acc,))
        except ValueError as error:
            raise UnfitValue(describe_unstorable(ACCUMULATOR, error, ACCUMULATOR_HINT)) from error


class KeyedBundle:
    """Rows of the current epoch by key: origin of the last row, perhaps an accumulator."""

    def __init__(self, ctx: OperatorContext, summing: PartialMerge | None = None) -> None:
        """``summing``: each key has an accumulator."""
        self.accumulators: dict[Any, Any] = {}
        """The accumulators in memory. The operator changes them, then calls ``note``, which may replace the dict."""
        self._ctx = ctx
        self._summing = summing
        self._places: dict[Any, _Place] = {}
        self._scratch, self._aside = ctx.scratch(), False

    def note(self, batch: Batch[Any], last: Mapping[Any, int]) -> None:
        """``last``: index of the last row of each key in the batch."""
        if not last:
            return
        origin, indices = batch.origin, last.values()
        rows = [batch.origin_rows[index] for index in indices]
        branch = itertools.repeat("") if batch.branch is None else map(batch.branch.__getitem__, indices)
        raws = map(origin.raw, rows) if self._ctx.writes_dead_letters(origin.source) else itertools.repeat(None)
        columns = (origin.partitions, origin.offsets, origin.timestamps())
        numbers = (map(column.__getitem__, rows) for column in columns)
        stream = itertools.repeat((origin.source, origin.topic, batch.lane))
        self._places.update(zip(last, zip(stream, *numbers, branch, raws, strict=False), strict=False))
        if len(self._places) > self._scratch.max_keys:
            self._spill()

    def drain(self) -> Iterator[tuple[list[Any], list[Any], Batch[Any]]]:
        """Yield each key once, merged, with the origin of its last row."""
        for accumulators, places in self._parts():
            for keys, rows in _by_stream(places):
                yield keys, [accumulators[key] for key in keys] if self._summing else [], rows

    def close(self) -> None:
        self._scratch.close()

    def _parts(self) -> Iterator[_Part]:
        """Yield all keys, in merged parts: one part if nothing was spilled."""
        if self._aside:
            self._spill()
            self._aside = False
            yield from self._put_together()
        else:
            yield self._drop()

    def _drop(self) -> _Part:
        accumulators, self.accumulators = self.accumulators, {}
        places, self._places = self._places, {}
        return accumulators, places

    # ------------------------------------------------------------ set aside

    def _spill(self) -> None:
        accumulators, places = self._drop()
        self._aside = True
        buckets = LIMITS.partial_aggregate_buckets
        heaps: list[list[Any]] = [[] for _ in range(buckets)]
        for key in places:
            heaps[hash((key,)) % buckets].append(key)  # hash of a tuple: consecutive numbers are then spread
        for heap, keys in enumerate(heaps):
            if keys:
                sums = self._encoded(list(map(accumulators.pop, keys))) if self._summing else b""
                self._scratch.put(heap, _encode((keys, list(map(places.pop, keys)), sums)))

    def _put_together(self) -> Iterator[_Part]:
        part: _Part = {}, {}
        last = 0
        for heap, block in self._scratch.drain():
            if heap != last and len(part[1]) >= LIMITS.keys_per_partial_aggregate:
                yield part
                part = {}, {}
            last = heap
            self._add(part, *_decode(block))
        yield part

    def _add(self, part: _Part, keys: list[Any], places: list[_Place], sums: bytes) -> None:
        if list in set(map(type, keys)):
            keys = list(map(as_key, keys))
        accumulators, so_far = part
        so_far.update(zip(keys, places, strict=True))
        if self._summing is None:
            return
        for key, acc, place in zip(keys, self._decoded(sums), places, strict=True):
            first = accumulators.get(key, _NOTHING)
            accumulators[key] = acc if first is _NOTHING else self._merged(first, acc, place)

    def _merged(self, first: Any, second: Any, place: _Place) -> Any:
        assert self._summing is not None
        try:
            return self._summing.merge(first, second)
        except BaseException as raised:  # noqa: BLE001 (``reject_result`` judges whatever user code raises)
            error = as_exception(raised)
            (source, topic, lane), *_, branch, _ = place
            rejected = Batch([second], [0], BundleOrigin(source, topic, [place]), lane=lane, branch=[branch])
            self._ctx.reject_result(rejected, 0, error)
            return first

    def _encoded(self, accumulators: list[Any]) -> bytes:
        assert self._summing is not None
        try:
            return self._summing.codec.encode(accumulators)
        except ValueError as error:
            raise self._refused(error) from error

    def _decoded(self, data: bytes) -> list[Any]:
        assert self._summing is not None
        try:
            return self._summing.codec.decode(data)
        except ValueError as error:
            raise self._refused(error) from error

    def _refused(self, error: ValueError) -> PlanError:
        reason = describe_unstorable(ACCUMULATOR, error, ACCUMULATOR_HINT)
        return PlanError(f"operator {self._ctx.operator!r}: {reason}")


def _by_stream(places: Mapping[Any, _Place]) -> Iterator[tuple[list[Any], Batch[Any]]]:
    """Yield keys, and a batch without values with a row per key: some thousand of one source, topic and lane."""
    streams: dict[_Stream, list[Any]] = {}
    for key, place in places.items():
        streams.setdefault(place[0], []).append(key)
    for (source, topic, lane), found in streams.items():
        for start in range(0, len(found), LIMITS.keys_per_partial_aggregate):
            keys = found[start : start + LIMITS.keys_per_partial_aggregate]
            origin = BundleOrigin(source, topic, [places[key] for key in keys])
            branch = [places[key][4] for key in keys]
            yield keys, Batch([], range(len(keys)), origin, lane=lane, branch=branch if any(branch) else None)


class BundleOrigin(Origin):
    """Origin of rows from many batches of one source, topic and lane."""

    def __init__(self, source: str, topic: str, places: Sequence[_Place]) -> None:
        self.source = source
        self.topic = topic
        self._places = places
        self.partitions: Sequence[int] = [place[1] for place in places]
        self.offsets: Sequence[int] = [place[2] for place in places]

    def timestamps(self) -> Sequence[int]:
        return [place[3] for place in self._places]

    def raw(self, row: int) -> RawRecord:
        _, partition, offset, timestamp, _, record = self._places[row]
        return record or RawRecord(self.topic, partition, offset, timestamp, None, None, ())
