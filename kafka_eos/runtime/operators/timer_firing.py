"""The outputs of timers, which come from no record, and their provenance.

Each output belongs to a *firing*: an operator, a key and a time, of events or of the clock. In its provenance the
operator replaces the source, the kind of timer the topic, the key group the partition, and the time the offset; two
numbers derived from the key's bytes begin the ordinal. Rule: a time of a key fires once. So two outputs with the same
firing are a duplicate, in any attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any, Final

from kafka_eos._util.failpoints import hit
from kafka_eos.core.error_messages import describe_error, show_value
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Origin, RawRecord
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.state.key_groups import group_of

EVENT_STATE, CLOCK_STATE = "event-timers", "processing-timers"
"""The names of the timer states, in event and processing time; no other state of their operators may have them."""
_NUMBER_BYTES = 7
_NO_DEAD_LETTER: Final = (
    "A timer's output becomes a dead letter only if all sources above it write dead letters: set "
    'on_error=dead_letter("topic") on each'
)


class FiringOrigin(Origin):
    """The origin of one operator's timer outputs: a row for each firing. ``topic`` is the kind of timers."""

    def __init__(self, operator: str, topic: str, groups: Sequence[int], times: Sequence[int]) -> None:
        self.source = operator
        self.topic = topic
        self.partitions = groups
        self.offsets = times

    def timestamps(self) -> Sequence[int]:
        """Return the times of the firings; -2 for -1, which means that there is none."""
        return [-2 if time == -1 else time for time in self.offsets]

    def raw(self, row: int) -> RawRecord:
        return RawRecord(
            describe_timers(self.source, self.topic),
            self.partitions[row],
            self.offsets[row],
            self.timestamps()[row],
            None,
            None,
            (),
        )


class Firings:
    """Firings of an operator's timers in one kind of time: collects their outputs until they are emitted."""

    def __init__(self, ctx: OperatorContext, topic: str, encode: Callable[[Any], bytes], called: str) -> None:
        """``called``: the user's function that returns the outputs, for messages."""
        self._ctx = ctx
        self._topic = topic
        self._encode = encode
        self._called = called
        self._start()

    def fire(
        self, due: Iterable[tuple[int, Any, int]], call: Callable[[Any, int], Sequence[Any]]
    ) -> Iterator[Batch[Any]]:
        """Yield what ``call`` returns for the key and the time of each ``due`` timer; see ``abc.TimerService``."""
        rows, slice_ = LIMITS.rows_per_firing, LIMITS.firings_per_slice
        for fired, (time, key, group) in enumerate(due, 1):
            if outputs := call(key, time):
                self._add(key, group, time, outputs, [time] * len(outputs))
            if len(self._values) >= rows or not fired % slice_:
                yield self._take()
        if self._values:
            yield self._take()

    def fire_with_times(
        self, due: Iterable[tuple[int, Any, int]], call: Callable[[Any, int], Sequence[tuple[int, Sequence[Any]]]]
    ) -> Iterator[Batch[Any]]:
        """Yield outputs as ``fire`` does, where ``call`` returns event times, each with its outputs."""
        rows, slice_ = LIMITS.rows_per_firing, LIMITS.firings_per_slice
        for fired, (time, key, group) in enumerate(due, 1):
            made = call(key, time)
            if outputs := [output for _, found in made for output in found]:
                self._add(key, group, time, outputs, [moment for moment, found in made for _ in found])
            if len(self._values) >= rows or not fired % slice_:
                yield self._take()
        if self._values:
            yield self._take()

    def together(
        self, time: int, groups: Sequence[int], encoded: Iterable[bytes], made: Sequence[Sequence[Any]]
    ) -> Batch[Any]:
        """Return the outputs of many firings of one time: of the keys ``encoded``, in those groups."""
        if groups:
            hit("timers.fired")
        origin = FiringOrigin(self._ctx.operator, self._topic, groups, [time] * len(groups))
        values, rows, branch = list(chain.from_iterable(made)), list(range(len(made))), list(map(branch_of, encoded))
        outputs = list(map(len, made))
        if outputs.count(1) < len(outputs):
            rows = list(chain.from_iterable(map(repeat, rows, outputs)))
            branch = list(chain.from_iterable(map(repeat, branch, outputs)))
        return Batch(values, rows, origin, branch=branch, event_times=[time] * len(values))

    def call(self, key: Any, time: int, fn: Callable[..., Sequence[Any]], *args: Any) -> Sequence[Any]:
        """Return what a function makes of its arguments, or nothing if the timer of ``key`` and ``time`` is rejected
        for its error.
        """
        try:
            return fn(*args)
        except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
            error = as_exception(raised)
            return self.reject(key, time, error)

    def reject(self, key: Any, time: int, error: Exception) -> Sequence[Any]:
        """Handle a timer whose function raised; return its outputs, which are none.

        Raises PoisonRecord under policy "stop", and what is not the fault of the user's function.
        """
        ctx, operator = self._ctx, self._ctx.operator
        if not ctx.writes_dead_letters(operator):
            at = f"{describe_timers(operator, self._topic)}, key {show_value(key)}, time {time}"
            ctx.attribution(operator).expect_record(error, operator, at)
            todo = f"{_NO_DEAD_LETTER}, or fix {self._called}"
            raise PoisonRecord(at, operator, describe_error(error), todo, what="firing") from error
        encoded = self._encode(key)
        origin = FiringOrigin(operator, self._topic, [group_of(encoded)], [time])
        ctx.reject(Batch([{"key": key}], [0], origin, branch=[branch_of(encoded)]), 0, error)
        return ()

    def _start(self) -> None:
        self._values: list[Any] = []
        self._rows: list[int] = []
        self._groups: list[int] = []
        self._times: list[int] = []
        self._branches: list[str] = []
        self._moments: list[int] = []

    def _add(self, key: Any, group: int, time: int, outputs: Sequence[Any], moments: list[int]) -> None:
        self._rows += [len(self._times)] * len(outputs)
        self._values += outputs
        self._branches += [branch_of(self._encode(key))] * len(outputs)
        self._moments += moments
        self._groups.append(group)
        self._times.append(time)

    def _take(self) -> Batch[Any]:
        """Return all collected outputs."""
        hit("timers.fired")
        origin = FiringOrigin(self._ctx.operator, self._topic, self._groups, self._times)
        batch = Batch(self._values, self._rows, origin, branch=self._branches, event_times=self._moments)
        self._start()
        return batch


def branch_of(key: bytes) -> str:
    """Return two numbers that identify an encoded key; parsers of provenance can hold them, and no other key has
    them."""
    digest = blake2b(key, digest_size=2 * _NUMBER_BYTES).digest()
    return f"{int.from_bytes(digest[:_NUMBER_BYTES], 'big')}-{int.from_bytes(digest[_NUMBER_BYTES:], 'big')}-"


def make_output_error(source: str, raw: RawRecord, operator: str, error: Exception) -> PoisonRecord:
    """Build the error for a timer's output that a later operator rejects."""
    timers = describe_timers(source, raw.topic.removesuffix(describe_timers(source, "")))
    at = f"{timers}, key group {raw.partition}, time {raw.offset}"
    todo = f"{_NO_DEAD_LETTER}, or fix the function that emits it or the operator that rejects it"
    return PoisonRecord(at, operator, describe_error(error), todo, what="firing")


def describe_timers(operator: str, topic: str) -> str:
    """Describe the timers of an operator, for messages."""
    return f"{topic} of {operator}"
