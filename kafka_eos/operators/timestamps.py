"""Gives rows their event times, and tells how far event time has come in the splits that are read here.

What it keeps in a checkpoint is the newest time of each split. Rule: a subtask keeps that of its own splits, and is
handed that of all: whoever reads a split next, event time goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from kafka_eos.interfaces import StateDescriptor, WatermarkStrategy
from kafka_eos.operators.base import OperatorContext, call_each
from kafka_eos.protocol.event_time import Splits
from kafka_eos.records import EVENT_TIMES, Batch, Watermark
from kafka_eos.schemas import KeyCodec, state_codec

STATE = "newest"
_NONE = -1


class Timestamps:
    """``fn`` gives the time of a value; None takes that of the record."""

    def __init__(self, fn: Callable[[Any], int] | None, strategy: WatermarkStrategy) -> None:
        self._fn = fn
        self._splits = Splits(strategy.delay, strategy.idle_after)
        self._assigned = False

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    def assign(self, splits: Collection[str]) -> None:
        if not self._assigned:
            self._assigned = True
            self._state = self._ctx.value_state(StateDescriptor(STATE, KeyCodec(), state_codec(int)))
            stored = dict(self._state.items())
            for other in stored.keys() - set(splits):
                self._state.delete(other)
            self._splits = self._splits.seen({split: stored[split] for split in stored.keys() & set(splits)})
        self._splits = self._splits.assigned(splits)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        found = self._of_records(batch) if self._fn is None else batch.values
        times, refused = call_each(_time if self._fn is None else self._of_value, batch, found, self._ctx)
        batch = replace(batch.without(refused), times=times)
        if self._assigned and times:
            self._note(batch, times)
        return batch

    def watermark(self, now: float) -> Watermark:
        self._splits = self._splits.at(now)
        return self._splits.watermark

    def close(self) -> None:
        return None

    @staticmethod
    def _of_records(batch: Batch[Any]) -> Sequence[int | None]:
        times = batch.origin.timestamps()
        return [None if times[row] == _NONE else times[row] for row in batch.rows]

    def _of_value(self, value: Any) -> int:
        assert self._fn is not None
        return _time(self._fn(value))

    def _note(self, batch: Batch[Any], times: Sequence[int]) -> None:
        topic, partitions = batch.origin.topic, batch.origin.partitions
        # The newest of each comes last, so it is the one that stays.
        newest = {partitions[row]: time for time, row in sorted(zip(times, batch.rows, strict=True))}
        self._splits = self._splits.seen({f"{topic}/{partition}": time for partition, time in newest.items()})
        for partition in newest:
            split = f"{topic}/{partition}"
            self._state.put(split, self._splits.highest[split])


def _time(found: object) -> int:
    """ValueError if it is none."""
    if found is None:
        raise ValueError("the record has no timestamp: give with_timestamps a function that tells the time of a value")
    if type(found) is not int or found not in EVENT_TIMES:
        raise ValueError(
            f"an event time is a whole number of milliseconds since 1970-01-01T00:00Z, not {found!r}; of a datetime "
            "with a time zone it is round(when.timestamp() * 1000)"
        )
    return found
