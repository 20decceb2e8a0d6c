"""Event times of rows, and watermarks of the splits that are read here.

Its state is the newest time of each split, or the state of the user's generator. Rule: a subtask stores that of its own
splits, and restores that of all: so event time continues, whichever subtask reads a split next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import KeyCodec, state_codec
from kafka_eos.core.error_messages import UnfitValue, describe_error, show_value
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import EVENT_TIMES, MIN_EVENT_TIME, Batch, Watermark
from kafka_eos.plan.watermarks import WatermarkGenerator, WatermarkStrategy
from kafka_eos.protocol.watermark_alignment import SplitProgress
from kafka_eos.protocol.watermarks import SplitWatermarks
from kafka_eos.runtime.operators.operator import Operator, call_each
from kafka_eos.runtime.operators.storability import StorableValues

STATE, GENERATED = "newest", "generated"
"""The states per split, without a generator and with one."""
_NONE = -1


class TimestampsOperator(Operator):
    """Assigns event times and generates watermarks of the splits that are read here."""

    def __init__(self, fn: Callable[[Any], int] | None, strategy: WatermarkStrategy) -> None:
        self._fn, self._generator = fn, strategy.generator
        self._splits = SplitWatermarks(strategy.delay, strategy.idle_after, strategy.clock_after)
        self._known: dict[str, Any] = {}
        """The state of each split that is read here, of a generator."""
        self._assigned = False

    def assign(self, splits: Collection[str]) -> None:
        """Add splits that this subtask reads from now on. Called before the first row, and when more are found."""
        if not self._assigned:
            self._assigned = True
            name, tp = (STATE, int) if self._generator is None else (GENERATED, self._generator.state)
            self._ctx.drop_state(STATE if name == GENERATED else GENERATED)
            codec = state_codec(tp)
            self._state = self._ctx.value_state(StateDescriptor(name, KeyCodec(), codec))
            self._storable = StorableValues(codec, "what on_event returned", "Return a value that its type can hold.")
            stored = dict(self._state.items())
            for other in stored.keys() - set(splits):
                self._state.delete(other)
            self._known = {split: stored[split] for split in stored.keys() & set(splits)}
            found = ((split, self._newest(state)) for split, state in self._known.items())
            self._splits = self._splits.record_rows({split: time for split, time in found if time is not None})
        self._splits = self._splits.add_splits(splits)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        batch, times = self._times(batch)
        if not _are_times(times):
            times, refused = call_each(_time, batch, times, self._ctx)
            batch = batch.drop(refused)
        batch = replace(batch, event_times=times)
        if self._assigned and times:
            self._note(batch, times)
        return batch

    def watermark(self, now: float | None) -> Watermark:
        """Return the watermark. ``now``, in seconds of a monotonic clock: available rows have just been read.

        None: nothing was read, so a split without rows is not idle.
        """
        self._splits = self._splits.advance() if now is None else self._splits.advance_to(now)
        return self._splits.watermark

    def by_split(self) -> dict[str, int]:
        """Return the event time of each split that is read here and has had rows."""
        return dict(self._splits.by_split)

    def get_split_progress(self) -> Mapping[str, SplitProgress]:
        """Return the progress and idleness of all splits read here."""
        return self._splits.progress

    def pause(self, splits: Collection[str]) -> None:
        """Pause exactly these splits: they are not read now, so they are not idle."""
        self._splits = self._splits.pause(splits)

    def exclude(self, splits: Collection[str]) -> None:
        """Exclude exactly these splits from the watermark."""
        self._splits = self._splits.ignore(splits)

    def _times(self, batch: Batch[Any]) -> tuple[Batch[Any], Sequence[Any]]:
        """Return the rows that were not rejected, and their times."""
        if self._fn is None:
            times = batch.origin.timestamps()
            return batch, [None if times[row] == _NONE else times[row] for row in batch.origin_rows]
        times, refused = call_each(self._fn, batch, batch.values, self._ctx)
        return batch.drop(refused), times

    def _note(self, batch: Batch[Any], times: Sequence[int]) -> None:
        topic, partitions = batch.origin.topic, batch.origin.partitions
        if self._generator is not None:
            self._generate(self._generator, batch, times)
            return
        newest: dict[int, int] = {}
        for row, time in zip(batch.origin_rows, times, strict=True):
            partition = partitions[row]
            if time > newest.get(partition, MIN_EVENT_TIME):
                newest[partition] = time
        self._splits = self._splits.record_rows({f"{topic}/{partition}": time for partition, time in newest.items()})
        for partition in newest:
            split = f"{topic}/{partition}"
            self._state.put(split, self._splits.highest[split])

    def _generate(self, generator: WatermarkGenerator, batch: Batch[Any], times: Sequence[int]) -> None:
        """Call the user's generator row by row. A split with a new row is not idle, whatever the generator returns."""
        topic, partitions, on_event = batch.origin.topic, batch.origin.partitions, generator.on_event
        newest: dict[str, int] = {}
        for index, (row, value, time) in enumerate(
            zip(batch.origin_rows, TrackedRows(batch, batch.values), times, strict=True)
        ):
            split = f"{topic}/{partitions[row]}"
            try:
                self._known[split] = on_event(self._known.get(split), value, time)
                if self._known[split] is None:
                    raise UnfitValue("on_event returned None, which is what a split begins with")
                self._storable.check(self._known[split])
                reached = self._newest(self._known[split])
            except BaseException as raised:  # noqa: BLE001 - user code may raise anything; ``_at_fault`` judges it
                error = as_exception(raised)
                raise self._at_fault(batch, index, error) from error
            newest[split] = max(newest.get(split, MIN_EVENT_TIME), MIN_EVENT_TIME if reached is None else reached)
        self._splits = self._splits.record_rows(newest)
        for split in newest:
            self._state.put(split, self._known[split])

    def _newest(self, state: Any) -> int | None:
        """Return the newest time of a split by its state; with a generator, the moment after its watermark."""
        if self._generator is None:
            return int(state)
        time = self._generator.watermark(state)
        if time is not None and (type(time) is not int or time not in EVENT_TIMES):
            raise UnfitValue(
                f"a watermark is a whole number of milliseconds since 1970-01-01T00:00Z, not {show_value(time)}"
            )
        return None if time is None else time + 1

    def _at_fault(self, batch: Batch[Any], index: int, error: Exception) -> PoisonRecord:
        self._ctx.expect_record(batch, index, error)
        place = batch.origin.raw(batch.origin_rows[index]).location
        todo = (
            "Such a record cannot be dead-lettered here. Fix the functions given to generated(...), or drop such "
            "records before"
        )
        return PoisonRecord(place, self._ctx.operator, describe_error(error), todo)


def _are_times(times: Sequence[Any]) -> bool:
    """Return whether ``_time`` would accept all of them, without a call for each."""
    return not times or (set(map(type, times)) == {int} and min(times) in EVENT_TIMES and max(times) in EVENT_TIMES)


def _time(found: object) -> int:
    """Return a valid event time. Raises ValueError for anything else."""
    if found is None:
        raise UnfitValue(
            "the record has no timestamp: pass with_timestamps a function that returns the time of a value"
        )
    if type(found) is not int or found not in EVENT_TIMES:
        raise UnfitValue(
            f"an event time is a whole number of milliseconds since 1970-01-01T00:00Z, not {show_value(found)}; "
            "of a datetime with a time zone it is round(when.timestamp() * 1000)"
        )
    return found
