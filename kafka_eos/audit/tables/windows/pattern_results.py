"""Expected results of patterns, by the user's functions inside Spark's Python workers.

Rules: this follows from the definition of a pattern, and shares nothing with ``runtime.operators.patterns``: no table,
no partial matches, no timers. Each possible first row is followed to the end of its match, one after the other. Then
the rows that lie inside of a match are dropped. It runs on all rows of a key together, in the order of event time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from kafka_eos.audit.tables.python_tasks import columns_of, cut_of
from kafka_eos.audit.tables.windows.window_rows import Part, RequestedRows, TakenRow, results_of
from kafka_eos.core.provenance import TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan import KeyByNode, PatternNode, Plan
from kafka_eos.plan.pattern import Pattern
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.timer_firing import FiringOrigin, branch_of


def results(
    app: str, workers: int, operator: str, wanted: RequestedRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of a pattern, up to the next patterns.

    Input: TAKEN rows that were counted, in the order of keys and times, each with the final watermark as its ``turn``.
    """
    plan = cut_of(app, workers).whole
    with Part.open(plan, frozenset({operator}), wanted) as part:
        found = _Sequences(plan, operator, part)
        rows = (row for batch in batches for row in zip(*columns_of(batch), strict=True))
        for _, of_key in groupby(rows, key=lambda row: row[0]):
            key_rows = list(of_key)
            found.hand_on([TakenRow(*row[:-1]) for row in key_rows], key_rows[0][-1])
            yield part.take()


def asides(
    app: str, workers: int, operator: str, wanted: RequestedRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the late rows, as a pattern emits them. Input: TAKEN rows."""
    plan = cut_of(app, workers).whole
    node, values = _node(plan, operator)
    with Part.open(plan, frozenset({operator}), wanted) as part:
        for batch in batches:
            for row in map(TakenRow, *columns_of(batch)):
                (value,) = values.decode(row.payload)
                late = [TaggedValue(str(node.late), value)]
                out = Batch(
                    late, [0], row.origin(part.plan), lane=row.lane, branch=[row.branch], event_times=[row.time]
                )
                part.push(operator, out, [(row.grp, False)])
            yield part.take()


def _node(plan: Plan, operator: str) -> tuple[PatternNode, Any]:
    """Return the node, and the codec of its input rows."""
    node = plan.node(operator)
    assert isinstance(node, PatternNode)
    stage = plan.node(node.inputs[0])
    assert isinstance(stage, KeyByNode)
    return node, stage.value_codec


@dataclass(frozen=True)
class Fate:
    """The outcome of a row as the first one of a match: the rows found.

    ``whole``: the match is complete. ``over``: its time limit ended first. Neither: another row has broken the match.
    """

    places: Sequence[int]
    whole: bool = False
    over: bool = False


def fates(pattern: Pattern[Any], values: Sequence[Any], times: Sequence[int]) -> dict[int, Fate]:
    """Return the outcome of each row of a key that may be the first one, by row number. ``values`` are in the order of
    ``times``.
    """
    return {at: _fate(pattern, values, times, at) for at, value in enumerate(values) if pattern.stages[0].where(value)}


def _fate(pattern: Pattern[Any], values: Sequence[Any], times: Sequence[int], first: int) -> Fate:
    places, until = [first], times[first] + (pattern.limit or 0)
    for stage in pattern.stages:
        for nth in range(stage.count):
            if len(places) == 1 and nth == 0 and stage is pattern.stages[0]:
                continue
            behind = stage.consecutive if nth else stage.follows
            at = places[-1] + 1
            while not behind and at < len(values) and times[at] < until and not stage.where(values[at]):
                at += 1
            if at >= len(values) or times[at] >= until:
                return Fate(places, over=True)
            if not stage.where(values[at]):
                return Fate(places)
            places.append(at)
    return Fate(places, whole=True)


def kept(pattern: Pattern[Any], found: dict[int, Fate], times: Sequence[int]) -> dict[int, Fate]:
    """Drop possible matches inside another match, unless matches may overlap."""
    if pattern.overlaps:
        return found
    left = dict(found)
    for first, fate in sorted(found.items(), key=lambda each: (each[1].places[-1], each[0])):
        if not fate.whole or first not in left:
            continue
        end = fate.places[-1]
        inside = [at for at in left if at <= end and at != first and not _is_done(pattern, left[at], times, at, end)]
        for at in inside:
            del left[at]
    return left


def _is_done(pattern: Pattern[Any], fate: Fate, times: Sequence[int], first: int, end: int) -> bool:
    """Return whether the match was complete, or its time limit over, before the row ``end``."""
    if fate.whole:
        return fate.places[-1] < end
    return times[end] >= times[first] + (pattern.limit or 0)


def _one(fn: Callable[..., Any], *args: Any) -> list[Any]:
    return [fn(*args)]


class _Sequences:
    """The rows of one key after the other."""

    def __init__(self, plan: Plan, operator: str, part: Part) -> None:
        self._node, self._codec = _node(plan, operator)
        self._part = part

    def hand_on(self, rows: Sequence[TakenRow], floor: int) -> None:
        """Return all results of a key, up to the final watermark."""
        pattern, key = self._node.pattern, self._node.key_codec.decode(rows[0].grp)
        decoded = [(row, *self._codec.decode(row.payload)) for row in rows if row.time <= floor]
        encode = self._node.value_codec.encode
        decoded.sort(key=lambda each: (each[0].time, each[0].s_partition, each[0].s_offset, encode(each[1])))
        values, times = [value for _, value in decoded], [row.time for row, _ in decoded]
        found = kept(pattern, fates(pattern, values, times), times)
        made: dict[int, list[Any]] = defaultdict(list)
        for first, fate in sorted(found.items(), key=lambda each: (each[1].over, each[1].places[-1], each[0])):
            of_stages = self._by_stage([values[place] for place in fate.places])
            if fate.whole:
                made[times[fate.places[-1]]] += results_of(_one, self._node.fn, key, of_stages)
            elif fate.over and (on_timeout := self._node.on_timeout) is not None:
                outputs = results_of(_one, on_timeout, key, of_stages)
                tag = str(self._node.timed_out)
                made[times[first] + (pattern.limit or 0) - 1] += [TaggedValue(tag, output) for output in outputs]
        self._push(rows[0], {time: outputs for time, outputs in made.items() if time <= floor})

    def _push(self, row: TakenRow, made: dict[int, list[Any]]) -> None:
        moments = sorted(made)
        numbers = [number for number, time in enumerate(moments) for _ in made[time]]
        if not numbers:
            return
        batch = Batch(
            [output for time in moments for output in made[time]],
            numbers,
            FiringOrigin(self._node.name, TIMERS, [row.group] * len(moments), moments),
            branch=[branch_of(row.grp)] * len(numbers),
            event_times=[moments[number] for number in numbers],
        )
        self._part.push(self._node.name, batch, [(row.grp, False)] * len(moments))

    def _by_stage(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        left = list(values)
        for stage in self._node.pattern.stages:
            mine, left = left[: stage.count], left[stage.count :]
            if mine:
                found[stage.name] = mine
        return found
