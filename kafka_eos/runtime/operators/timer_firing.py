"""What timers make: rows that come from no record, and where they say that they come from.

Each is of a *firing*: an operator, a key and a time, of events or of the clock. In their provenance the operator stands
where a source would, which time it is where a topic, its key group where a partition, the time where an offset, and two
numbers made of the key's bytes begin the ordinal.
Rule: a time of a key fires once, so that two outputs which agree there are a duplicate, whatever attempt made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import told
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.runtime.operators.operator import OperatorContext

EVENT_STATE, CLOCK_STATE = "event-timers", "processing-timers"
"""The states that timers are, in event time and by the clock; no other of their operators may have their names."""
_NUMBER_BYTES = 7


class FiringOrigin:
    """The origin of what one operator's timers made: a row for each firing. ``topic`` says which timers."""

    def __init__(self, operator: str, topic: str, groups: Sequence[int], times: Sequence[int]) -> None:
        self.source, self.topic, self.partitions, self.offsets = operator, topic, groups, times

    def timestamps(self) -> Sequence[int]:
        """A record's timestamp cannot be before 1970."""
        return [max(time, -1) for time in self.offsets]

    def raw(self, row: int) -> RawRecord:
        return RawRecord(
            where(self.source, self.topic),
            self.partitions[row],
            self.offsets[row],
            self.timestamps()[row],
            None,
            None,
            (),
        )


class Firings:
    """The timers of an operator in one kind of time, as they fire: their outputs, until they are handed on."""

    def __init__(self, ctx: OperatorContext, topic: str, encode: Callable[[Any], bytes], called: str) -> None:
        """``called``: the user's function that makes the outputs, for people."""
        self._operator, self._topic, self._encode = ctx.operator, topic, encode
        self._attribution, self._called = ctx.attribution, called
        self._start()

    def fire(
        self, due: Iterable[tuple[int, Any, int]], call: Callable[[Any, int], Sequence[Any]]
    ) -> Iterator[Batch[Any]]:
        """What ``call`` makes of the key and the time of each timer that is ``due``; see ``abc.Timers``."""
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
        """As ``fire``, where ``call`` gives event times, and the outputs of each."""
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
        """What many firings of one time have made, or none: of the keys ``encoded``, in those groups."""
        if groups:
            hit("timers.fired")
        origin = FiringOrigin(self._operator, self._topic, groups, [time] * len(groups))
        values, rows, branch = list(chain.from_iterable(made)), list(range(len(made))), list(map(branch_of, encoded))
        outputs = list(map(len, made))
        if outputs.count(1) < len(outputs):
            rows = list(chain.from_iterable(map(repeat, rows, outputs)))
            branch = list(chain.from_iterable(map(repeat, branch, outputs)))
        return Batch(values, rows, origin, branch=branch, times=[time] * len(values))

    def stopped_by(self, key: Any, time: int, error: Exception) -> PoisonRecord:
        """The error that stops the job at a timer. Raises what is not the fault of the user's function."""
        at = f"{where(self._operator, self._topic)}, key {key!r}, time {time}"
        self._attribution(self._operator).expect_record(error, self._operator, at)
        todo = f"It comes from no record that could be sent aside. Fix {self._called}"
        return PoisonRecord(at, self._operator, told(error), todo, what="firing")

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
        """All outputs."""
        hit("timers.fired")
        origin = FiringOrigin(self._operator, self._topic, self._groups, self._times)
        batch = Batch(self._values, self._rows, origin, branch=self._branches, times=self._moments)
        self._start()
        return batch


def branch_of(key: bytes) -> str:
    """What stands for an encoded key: two numbers that whoever parses provenance can hold, and no other key has."""
    digest = blake2b(key, digest_size=2 * _NUMBER_BYTES).digest()
    return f"{int.from_bytes(digest[:_NUMBER_BYTES], 'big')}-{int.from_bytes(digest[_NUMBER_BYTES:], 'big')}-"


def output_refused(source: str, raw: RawRecord, operator: str, error: Exception) -> PoisonRecord:
    """The error for an output of a firing of ``source``, in whichever subtask, that an operator behind it refuses."""
    timers = where(source, raw.topic.removesuffix(where(source, "")))
    at = f"{timers}, key group {raw.partition}, time {raw.offset}"
    todo = "It comes from no record that could be sent aside. Fix what made the output, or what refuses it"
    return PoisonRecord(at, operator, told(error), todo, what="firing")


def where(operator: str, topic: str) -> str:
    """For people: in place of a topic."""
    return f"{topic} of {operator}"
