"""A fold in two phases: accumulators of some of the records, made where those were read, and merged by the key's owner.

    PartialFold    keys, folds, and gives its accumulators at the end of the epoch, or when it holds too many
    MergingFold    merges them into the key's state; one output a key and epoch, at the epoch's end

What is summed up and not handed on is in memory only, and there is none of it at a snapshot: ``flush`` comes first.
Rule: a key and epoch has one output, whose origin is the last row that went into it. Two keys never have the same one,
because what tells outputs of one record apart is fixed in their branch before they are summed up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kafka_eos.errors import PoisonRecord
from kafka_eos.interfaces import Codec
from kafka_eos.operators.base import NOT_THE_RECORDS_FAULT, OperatorContext, take
from kafka_eos.operators.fold import Fold
from kafka_eos.operators.stateless import KeyBy
from kafka_eos.provenance import branched
from kafka_eos.records import Batch, RawRecord

MOST = 100_000
"""Keys that a partial fold holds before it hands its accumulators on within the epoch."""
_AT_ONCE = 10_000
"""Rows that are handed on at once at the end of an epoch."""

_Stream = tuple[str, str, int]
"""Source, topic and lane: what all rows of a batch have in common."""
_Place = tuple[_Stream, int, int, int, str, RawRecord | None]
"""Partition, offset, timestamp and branch of a row; its record where a dead letter may need it."""

_NOTHING: Any = object()


class PartialFold:
    """``acc = step(acc or init(), value)`` for each row; accumulators come out of ``flush``."""

    def __init__(
        self,
        key: Callable[[Any], Any],
        key_codec: Codec[Any],
        init: Callable[[], Any],
        step: Callable[[Any, Any], Any],
    ) -> None:
        self._keyed, self._init, self._step = KeyBy(key, key_codec), init, step
        self._accumulators: dict[Any, Any] = {}

    def open(self, ctx: OperatorContext) -> None:
        self._ctx, self._places = ctx, Places(ctx)
        self._keyed.open(ctx)

    @property
    def full(self) -> bool:
        return len(self._accumulators) >= MOST

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Takes the rows in; what is returned is empty."""
        batch = branched(self._keyed.process(batch), self._ctx.place)
        init, step, accumulators = self._init, self._step, self._accumulators
        last: dict[Any, int] = {}
        for index, (key, value) in enumerate(zip(batch.keys or (), batch.values, strict=True)):
            try:
                acc = accumulators.get(key, _NOTHING)
                accumulators[key] = step(init() if acc is _NOTHING else acc, value)
            except NOT_THE_RECORDS_FAULT:
                raise
            except Exception as error:  # noqa: BLE001 (whatever user code raises belongs to its record)
                self._ctx.reject(batch, index, error)
                continue
            last[key] = index
        self._places.note(batch, last)
        return take(batch, [])

    def flush(self) -> Iterator[Batch[Any]]:
        accumulators, self._accumulators = self._accumulators, {}
        for keys, rows in self._places.take():
            rows.keys, rows.values = keys, list(map(accumulators.__getitem__, keys))
            yield rows

    def close(self) -> None:
        return None


class MergingFold(Fold):
    """``acc = merge(acc, partial)`` for each row, and ``emit(key, acc)`` once for each key at the end of an epoch.

    What ``merge`` or ``emit`` raises is no single record's fault, so it stops the job under any policy.
    """

    full = False

    def __init__(
        self,
        merge: Callable[[Any, Any], Any],
        emit: Callable[[Any, Any], Any] | None,
        key_codec: Codec[Any],
        entry_codec: Codec[tuple[int, Any]],
    ) -> None:
        super().__init__(_no_records, merge, emit, key_codec, entry_codec)

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._places = Places(ctx)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        """Takes accumulators in; what is returned is empty."""
        keys, merge = batch.keys or [], self._step
        entries = self._state.view(set(keys))
        last: dict[Any, int] = {}
        for index, (key, partial) in enumerate(zip(keys, batch.values, strict=True)):
            try:
                entry = entries.get(key)
                entries[key] = (0, partial) if entry is None else (entry[0], merge(entry[1], partial))
            except NOT_THE_RECORDS_FAULT:
                raise
            except Exception as error:
                raise self._stop(batch, index, error) from error
            last[key] = index
        if keys and not self._tried:
            self._try(entries.get(keys[-1]))
        self._places.note(batch, last)
        return take(batch, [])

    def flush(self) -> Iterator[Batch[Any]]:
        for keys, rows in self._places.take():
            entries = self._state.view(keys)
            counts, accumulators = zip(*map(entries.__getitem__, keys), strict=True)
            rows.values, rows.keys = self._emitted(keys, accumulators, rows), keys
            rows.updates = [count + 1 for count in counts]
            entries.update(zip(keys, zip(rows.updates, accumulators, strict=True), strict=True))
            yield rows

    def _emitted(self, keys: Sequence[Any], accumulators: Sequence[Any], rows: Batch[Any]) -> list[Any]:
        """As ``base.call_each``, but whatever is raised ends the job."""
        out: list[Any] = []
        error: Exception | None = None
        try:
            out.extend(map(self._emit, keys, accumulators))
        except NOT_THE_RECORDS_FAULT:
            raise
        except Exception as raised:  # noqa: BLE001 (it is raised again, with the place)
            error = raised
        if len(out) < len(keys):
            error = error or RuntimeError("StopIteration escaped from the function")
            raise self._stop(rows, len(out), error) from error
        return out

    def _stop(self, batch: Batch[Any], index: int, error: Exception) -> PoisonRecord:
        return PoisonRecord(
            batch.origin.raw(batch.rows[index]).where,
            self._ctx.operator,
            f"{type(error).__name__}: {error}",
            "It was the last of several that were summed up, so it cannot be sent aside alone. Fix merge or emit",
        )


class Places:
    """Where the last row of each key came from, since the last ``take``."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._keeps_raw = ctx.keeps_raw
        self._of: dict[Any, _Place] = {}

    def note(self, batch: Batch[Any], last: Mapping[Any, int]) -> None:
        """``last``: index of the last row of each key in the batch."""
        if not last:
            return
        origin, indices = batch.origin, last.values()
        rows = [batch.rows[index] for index in indices]
        branch = itertools.repeat("") if batch.branch is None else map(batch.branch.__getitem__, indices)
        raws = map(origin.raw, rows) if self._keeps_raw(origin.source) else itertools.repeat(None)
        columns = (origin.partitions, origin.offsets, origin.timestamps())
        numbers = (map(column.__getitem__, rows) for column in columns)
        stream = itertools.repeat((origin.source, origin.topic, batch.lane))
        self._of.update(zip(last, zip(stream, *numbers, branch, raws, strict=False), strict=False))

    def take(self) -> Iterator[tuple[list[Any], Batch[Any]]]:
        """Keys, and a batch without values with a row for each: some thousand of one source, topic and lane."""
        noted, self._of = self._of, {}
        streams: dict[_Stream, list[Any]] = {}
        for key, place in noted.items():
            streams.setdefault(place[0], []).append(key)
        for (source, topic, lane), found in streams.items():
            for start in range(0, len(found), _AT_ONCE):
                keys = found[start : start + _AT_ONCE]
                origin = GatheredOrigin(source, topic, [noted[key] for key in keys])
                branch = [noted[key][4] for key in keys]
                yield keys, Batch([], range(len(keys)), origin, lane=lane, branch=branch if any(branch) else None)


class GatheredOrigin:
    """The origin of rows from many batches of one source, topic and lane."""

    def __init__(self, source: str, topic: str, places: Sequence[_Place]) -> None:
        self.source, self.topic, self._places = source, topic, places
        self.partitions: Sequence[int] = [place[1] for place in places]
        self.offsets: Sequence[int] = [place[2] for place in places]

    def timestamps(self) -> Sequence[int]:
        return [place[3] for place in self._places]

    def raw(self, row: int) -> RawRecord:
        _, partition, offset, timestamp, _, record = self._places[row]
        return record or RawRecord(self.topic, partition, offset, timestamp, None, None, ())


def _no_records() -> Any:
    raise AssertionError("a merging fold begins with the first accumulator")
