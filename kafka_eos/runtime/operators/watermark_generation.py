"""Gives rows their event times, and tells how far event time has come in the splits that are read here.

What it keeps in a checkpoint is the newest time of each split, or what a generator of the user knows of it. Rule: a
subtask keeps that of its own splits, and is handed that of all: whoever reads a split next, event time goes on where it
was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kafka_eos._util.log_context import Rows
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import KeyCodec, state_codec
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import told
from kafka_eos.core.records import BEGINNING, EVENT_TIMES, Batch, Watermark
from kafka_eos.plan.watermarks import Generator, WatermarkStrategy
from kafka_eos.protocol.watermark_alignment import Standing
from kafka_eos.protocol.watermarks import Splits
from kafka_eos.runtime.operators.operator import OperatorContext, call_each

STATE, GENERATED = "newest", "generated"
"""What is kept of each split, without a generator and with one."""
_NONE = -1


class Timestamps:
    """``fn`` gives the time of a value; None takes that of the record."""

    def __init__(self, fn: Callable[[Any], int] | None, strategy: WatermarkStrategy) -> None:
        self._fn, self._generator = fn, strategy.generator
        self._splits = Splits(strategy.delay, strategy.idle_after, strategy.clock_after)
        self._known: dict[str, Any] = {}
        """The state of each split that is read here, of a generator."""
        self._assigned = False

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    def assign(self, splits: Collection[str]) -> None:
        if not self._assigned:
            self._assigned = True
            name, tp = (STATE, int) if self._generator is None else (GENERATED, self._generator.state)
            self._ctx.forget(STATE if name == GENERATED else GENERATED)
            self._state = self._ctx.value_state(StateDescriptor(name, KeyCodec(), state_codec(tp)))
            stored = dict(self._state.items())
            for other in stored.keys() - set(splits):
                self._state.delete(other)
            self._known = {split: stored[split] for split in stored.keys() & set(splits)}
            found = ((split, self._newest(state)) for split, state in self._known.items())
            self._splits = self._splits.seen({split: time for split, time in found if time is not None})
        self._splits = self._splits.assigned(splits)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        batch, times = self._times(batch)
        if not _are_times(times):
            times, refused = call_each(_time, batch, times, self._ctx)
            batch = batch.without(refused)
        batch = replace(batch, times=times)
        if self._assigned and times:
            self._note(batch, times)
        return batch

    def watermark(self, now: float | None) -> Watermark:
        self._splits = self._splits.on() if now is None else self._splits.at(now)
        return self._splits.watermark

    def by_split(self) -> dict[str, int]:
        return dict(self._splits.by_split)

    def standings(self) -> Mapping[str, Standing]:
        return self._splits.standings

    def pause(self, splits: Collection[str]) -> None:
        self._splits = self._splits.pause(splits)

    def waive(self, splits: Collection[str]) -> None:
        self._splits = self._splits.waive(splits)

    def close(self) -> None:
        return None

    def _times(self, batch: Batch[Any]) -> tuple[Batch[Any], Sequence[Any]]:
        """The rows that have not been refused, and what is said of their times."""
        if self._fn is None:
            times = batch.origin.timestamps()
            return batch, [None if times[row] == _NONE else times[row] for row in batch.rows]
        said, refused = call_each(self._fn, batch, batch.values, self._ctx)
        return batch.without(refused), said

    def _note(self, batch: Batch[Any], times: Sequence[int]) -> None:
        topic, partitions = batch.origin.topic, batch.origin.partitions
        if self._generator is not None:
            self._generate(self._generator, batch, times)
            return
        newest: dict[int, int] = {}
        for row, time in zip(batch.rows, times, strict=True):
            partition = partitions[row]
            if time > newest.get(partition, BEGINNING):
                newest[partition] = time
        self._splits = self._splits.seen({f"{topic}/{partition}": time for partition, time in newest.items()})
        for partition in newest:
            split = f"{topic}/{partition}"
            self._state.put(split, self._splits.highest[split])

    def _generate(self, generator: Generator, batch: Batch[Any], times: Sequence[int]) -> None:
        """Ask the user, row by row. A row that has come makes its split awake, whatever is said of it."""
        topic, partitions, on_event = batch.origin.topic, batch.origin.partitions, generator.on_event
        newest: dict[str, int] = {}
        for index, (row, value, time) in enumerate(zip(batch.rows, Rows(batch, batch.values), times, strict=True)):
            split = f"{topic}/{partitions[row]}"
            try:
                self._known[split] = on_event(self._known.get(split), value, time)
                if self._known[split] is None:
                    raise ValueError("on_event returned None, which is what a split begins with")
                said = self._newest(self._known[split])
            except Exception as error:
                raise self._at_fault(batch, index, error) from error
            newest[split] = max(newest.get(split, BEGINNING), BEGINNING if said is None else said)
        self._splits = self._splits.seen(newest)
        for split in newest:
            self._state.put(split, self._known[split])

    def _newest(self, state: Any) -> int | None:
        """The newest time of a split by what is known of it: of a generator, the moment behind its watermark."""
        if self._generator is None:
            return int(state)
        said = self._generator.watermark(state)
        if said is not None and (type(said) is not int or said not in EVENT_TIMES):
            raise ValueError(f"a watermark is a whole number of milliseconds since 1970-01-01T00:00Z, not {said!r}")
        return None if said is None else said + 1

    def _at_fault(self, batch: Batch[Any], index: int, error: Exception) -> PoisonRecord:
        self._ctx.expect_record(batch, index, error)
        place = batch.origin.raw(batch.rows[index]).where
        todo = "It cannot be sent aside here. Fix the functions given to generated(...), or drop such records before"
        return PoisonRecord(place, self._ctx.operator, told(error), todo)


def _are_times(said: Sequence[Any]) -> bool:
    """Whether ``_time`` would take all of them, told without a call for each."""
    return not said or (set(map(type, said)) == {int} and min(said) in EVENT_TIMES and max(said) in EVENT_TIMES)


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
