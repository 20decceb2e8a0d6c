"""More pipelines under schedules: functions with timers, sessions that merge, and the verbs that are built of both.

Rows of a key come from several splits, so which of two comes first is chance; what is checked holds in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Any

from kafka_eos import (
    OutputTag,
    ProcessContext,
    ProcessFunction,
    Stream,
    Windowed,
    bounded,
    monotonic,
    on_clock,
    on_count,
    session,
    sliding,
    tumbling,
)
from kafka_eos import rows as so_many_rows
from tests.schedules.job import RandomSplitSource
from tests.schedules.pipelines import Case, all_of, keyed, rows
from tests.unit.runtime.operators.test_windows import Row

LAST = 9_000
"""No row but the last ones of the splits is later, and no timer of the others."""


# ---------------------------------------------------------------- timers


class Alarms(ProcessFunction[str, Row, Any]):
    """Tells each timer that it sets, deletes or hears of; fails if one fires that is not set, or time goes back."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.waiting = ctx.map_state("waiting", int, int)
        self.reached = ctx.value_state("reached", int, -(2**63))

    def process(self, key: str, value: Row) -> Iterable[Any]:
        self._come_to(self.ctx.watermark, self.ctx.watermark)
        chance = Random(value[2])
        for _ in range(chance.randint(0, 3)):
            yield from self._set(key, value[1] + chance.randint(-5, 30))
        self.timers.delete(value[1] + 5000)
        if (there := sorted(self.waiting.keys())) and chance.random() < 0.6:
            time = chance.choice(there)
            yield from self._delete(key, time)
            if chance.random() < 0.5:
                yield from self._set(key, time)

    def on_timer(self, key: str, time: int) -> Iterable[Any]:
        self._come_to(time, time - 1)
        assert time in self.waiting, f"{key} has no timer at {time}"
        self.waiting.remove(time)
        yield "fired", key, time
        if time % 4 == 0:
            yield from self._set(key, time + 3)
        if time % 5 == 0 and (there := sorted(self.waiting.keys())):
            yield from self._delete(key, there[0])

    def _come_to(self, time: int, least: int) -> None:
        assert self.reached.get() <= least, f"time goes back from {self.reached.get()} to {time}"
        self.reached.put(time)

    def _set(self, key: str, time: int) -> Iterable[Any]:
        at = self.timers.register(time)
        assert at > self.ctx.watermark
        if at not in self.waiting:
            self.waiting.put(at, 1)
            yield "set", key, at

    def _delete(self, key: str, time: int) -> Iterable[Any]:
        self.timers.delete(time)
        self.waiting.remove(time)
        yield "deleted", key, time


def timers(case: Case) -> None:
    """Each timer that was set fires once, or was deleted, in the order of time; also where silence makes time go on."""
    splits, chance = rows(case.chance, case.max_rows, 0), case.chance
    strategy = chance.choice([monotonic(), bounded(0.020)])
    silence = chance.choice([0, 0, 0.005, 0.050])
    if silence:
        strategy = chance.choice([strategy.with_idleness(silence), strategy.with_clock(after=silence)])
    case.sink(keyed(case.read("stream", splits, strategy), "by-key").process(Alarms, name="alarms"), "alarms")

    def check() -> None:
        counts: Mapping[str, Counter[Any]] = {kind: Counter() for kind in ("set", "deleted", "fired")}
        for (kind, key, time), times in case.values("alarms").items():
            if time < LAST:
                counts[kind][key, time] += times
        assert counts["set"] == counts["deleted"] + counts["fired"]

    case.checks.append(check)


class Reminders(ProcessFunction[str, Row, Any]):
    """The same by the clock, which is set back at times."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.processing_timers()
        self.waiting = ctx.map_state("waiting", int, int)
        self.reached = ctx.value_state("reached", int, 0)

    def process(self, key: str, value: Row) -> Iterable[Any]:
        chance = Random(value[2])
        if (there := sorted(self.waiting.keys())) and chance.random() < 0.4:
            self.timers.delete(there[-1])
            self.waiting.remove(there[-1])
            yield "deleted", key, there[-1]
        at = self.timers.register(self.ctx.processing_time + chance.choice([0, 5, 20, 60, 2000]))
        assert at > self.reached.get()
        if at not in self.waiting:
            self.waiting.put(at, 1)
            yield "set", key, at

    def on_processing_timer(self, key: str, time: int) -> Iterable[Any]:
        assert time in self.waiting, f"{key} has no timer at {time}"
        assert self.reached.get() < time <= self.ctx.processing_time
        self.reached.put(time)
        self.waiting.remove(time)
        yield "fired", key, time


def reminders(case: Case) -> None:
    """Each timer of the clock that was set fires once, not before its time, or was deleted."""
    splits = rows(case.chance, case.max_rows, 20)
    stream: Stream[Row] = case.pipeline.source(RandomSplitSource("stream", splits, case.chance), name="stream")
    case.sink(keyed(stream, "by-key").process(Reminders, name="reminders"), "reminders")

    def check() -> None:
        counts: Mapping[str, Counter[Any]] = {kind: Counter() for kind in ("set", "deleted", "fired")}
        for (kind, key, time), times in case.values("reminders").items():
            counts[kind][key, time] += times
        left = counts["set"] - counts["deleted"] - counts["fired"]
        assert counts["set"] == counts["deleted"] + counts["fired"] + left
        assert not [time for _, time in left if time <= case.last_run_start], left

    case.checks.append(check)


# ---------------------------------------------------------------- sessions, and windows that take late rows

LATE: OutputTag[Any] = OutputTag("late", tuple)


def sessions(case: Case) -> None:
    """With results before the end and after it, the last result of each window is what a batch computation gives."""
    chance, lateness = case.chance, case.chance.choice([0, 10, 40])
    bound = chance.choice([0, 5])
    more = chance.choice([0, 0, 25])
    splits = rows(chance, case.max_rows, bound + lateness + more)
    strategy = bounded(bound / 1000) if bound else monotonic()
    if more and chance.random() < 0.5:
        after = chance.choice([0.005, 0.050])
        strategy = chance.choice([strategy.with_idleness(after), strategy.with_clock(after=after)])
    stream = keyed(case.read("stream", splits, strategy), "by-key")
    kinds: dict[str, Any] = {
        "session": session(gap=0.004),
        "tumbling": tumbling(seconds=0.010),
        "sliding": sliding(seconds=0.010, every=0.004),
        "early": tumbling(seconds=0.012, early=0.004),
    }
    if more:  # a row may come too late for some windows that it is in, and not for all: which is chance
        kinds = {"tumbling": kinds["tumbling"]}
    for kind, assigner in kinds.items():
        triggers = [None, on_clock(every=0.001), *([on_count(2)] if kind in ("session", "tumbling") else [])]
        found = stream.window(assigner, lateness=lateness / 1000, late=LATE, trigger=chance.choice(triggers)).fold(
            name=kind, init=tuple, step=_more, merge=_together, state=tuple
        )
        case.sink(found.map(_told), kind)
        case.sink(found.side_output(LATE).map(tuple), f"{kind}-late")
        case.checks.append(_Results(case, kind, assigner, all_of(splits)))


def _more(so_far: tuple[int, ...], row: Row) -> tuple[int, ...]:
    return tuple(sorted((*so_far, row[2])))


def _together(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted((*one, *other)))


def _told(found: Windowed[str, tuple[int, ...]]) -> Any:
    return found.key, found.window.start, found.window.end, tuple(found.value)


class _Results:
    """What must be true of all results of a window operator."""

    def __init__(self, case: Case, kind: str, assigner: Any, every: Sequence[Row]) -> None:
        self._case, self._kind, self._assigner, self._every = case, kind, assigner, every

    def __call__(self) -> None:
        late = self._case.values(f"{self._kind}-late")
        assert max(late.values(), default=1) == 1, f"{self._kind}: a row is late twice"
        in_time = [row for row in self._every if tuple(row) not in late]
        found: dict[tuple[str, int, int], list[set[int]]] = {}
        for key, start, end, numbers in self._case.values(self._kind):
            if start < LAST:
                assert len(set(numbers)) == len(numbers), f"{self._kind}: a row counts twice"
                found.setdefault((key, start, end), []).append(set(numbers))
        whole = dict(self._batch_computed(in_time))
        last = {window: max(results, key=len) for window, results in found.items()}
        for window, numbers in whole.items():
            assert last.get(window) == numbers, (self._kind, window, last.get(window), numbers)
        for (key, start, end), numbers in last.items():
            wholes = [mine for (k, s, e), mine in whole.items() if k == key and s <= start and end <= e]
            assert any(numbers <= mine for mine in wholes), (self._kind, key, start, end, numbers)

    def _batch_computed(self, every: Sequence[Row]) -> Iterable[tuple[tuple[str, int, int], set[int]]]:
        for key in {row[0] for row in every}:
            mine = [row for row in every if row[0] == key]
            for start, end in self._windows({row[1] for row in mine}):
                if inside := {row[2] for row in mine if start <= row[1] < end}:
                    yield (key, start, end), inside

    def _windows(self, times: Iterable[int]) -> Iterable[tuple[int, int]]:
        if self._kind == "session":
            spans: list[tuple[int, int]] = []
            for at in sorted(times):
                before = spans.pop() if spans and at < spans[-1][1] else (at, at)
                spans.append((before[0], at + 4))
            return spans
        ends = {end for at in times for end in self._assigner.ends(self._assigner.pane(at))}
        return [(self._assigner.start(end), end) for end in ends]


# ---------------------------------------------------------------- verbs

WITHIN = 12


def verbs(case: Case) -> None:
    """``deduplicate``, ``distinct``, ``top_n``, ``sessionize`` and windows of so many rows."""
    chance, bound = case.chance, case.chance.choice([0, 5])
    more = chance.choice([0, 25])
    splits = rows(chance, case.max_rows, bound + more)
    stream = keyed(case.read("stream", splits, bounded(bound / 1000) if bound else monotonic()), "by-key")
    every = {tuple(row) for row in all_of(splits)}
    fresh = stream.deduplicate(within=WITHIN / 1000, late=LATE, name="fresh")
    case.sink(fresh.map(tuple), "fresh")
    case.sink(fresh.side_output(LATE).map(tuple), "fresh-late")
    case.checks.append(lambda: _check_fresh(case, every))
    case.sink(stream.distinct(ttl=None, name="first").map(lambda row: row[0]), "first")
    case.expect(["first"], lambda: Counter({row[0] for row in every} | {"z"}))
    best = stream.window(tumbling(seconds=0.020), late=LATE).top_n(2, by=lambda row: row[2], name="best")
    case.sink(best.map(lambda found: (found.key, found.window.start, *(row[2] for row in found.value))), "best")
    case.sink(best.side_output(LATE).map(tuple), "best-late")
    case.checks.append(lambda: _check_best(case, every))
    whole = stream.sessionize(gap=0.006, late=LATE, name="whole")
    case.sink(whole.map(lambda found: (found.key, *(tuple(row)[1:] for row in found.value))), "whole")
    case.sink(whole.side_output(LATE).map(tuple), "whole-late")
    case.checks.append(lambda: _check_whole(case, every, apart=not more))
    for size, step in ((3, 3), (4, 2)):
        name = f"last-{size}"
        counted = stream.window(so_many_rows(size, every=step)).process(_numbers, name=name)
        case.sink(counted, name)
        case.checks.append(lambda name=name, size=size, step=step: _check_counted(case, name, size, step, every))  # type: ignore[misc]


def _numbers(key: str, window: Any, values: list[Row]) -> Iterable[Any]:
    return [(key, window.start, window.end, tuple(row[2] for row in values))]


def _check_fresh(case: Case, every: set[Any]) -> None:
    passed, late = case.values("fresh"), case.values("fresh-late")
    assert max([*passed.values(), *late.values()], default=1) <= 4 and not set(passed) & set(late)
    by_key: dict[str, list[int]] = {}
    for key, at, _ in passed:
        by_key.setdefault(key, []).append(at)
    for key, times in by_key.items():
        near = [pair for pair in combinations(sorted(times), 2) if pair[1] - pair[0] < WITHIN]
        assert not near, f"{key}: passed twice: {near}"
    for row in every - set(passed) - set(late):
        assert any(abs(row[1] - at) < WITHIN for at in by_key.get(row[0], ())), f"{row} is lost"


def _check_best(case: Case, every: set[Any]) -> None:
    held: dict[tuple[str, int], list[int]] = {}
    for key, at, number in every - set(case.values("best-late")):
        held.setdefault((key, at // 20 * 20), []).append(number)
    wanted = Counter((*place, *sorted(numbers, reverse=True)[:2]) for place, numbers in held.items())
    assert case.values("best") == wanted


def _check_whole(case: Case, every: set[Any], *, apart: bool) -> None:
    """``apart``: no row comes behind the end of a session that it could have been in; there it is alone."""
    in_time = every - set(case.values("whole-late"))
    found = case.values("whole")
    assert Counter((key, *row) for (key, *mine), n in found.items() for row in mine) == Counter(in_time)
    spans: dict[str, list[tuple[int, int]]] = {}
    for key, *mine in found:
        times = [at for at, _ in mine]
        assert times == sorted(times) and all(b - a < 6 for a, b in pairwise(times))
        spans.setdefault(key, []).append((times[0], times[-1]))
    for mine in spans.values() if apart else ():
        mine.sort()
        assert all(after[0] - before[1] >= 6 for before, after in pairwise(mine))


def _check_counted(case: Case, name: str, size: int, step: int, every: set[Any]) -> None:
    by_key: dict[str, dict[int, tuple[int, tuple[int, ...]]]] = {}
    for (key, start, end, numbers), n in case.values(name).items():
        if key != "z":
            assert n == 1 or size == step
            assert len(numbers) == end - start == (size if size == step else min(size, end))
            by_key.setdefault(key, {})[end] = (start, numbers)
    rows_of = Counter(row[0] for row in every)
    if size == step:
        found = Counter(
            number for key, _, _, numbers in case.values(name).elements() if key != "z" for number in numbers
        )
        assert max(found.values(), default=1) == 1
        assert Counter(key for key, *_ in case.values(name).elements() if key != "z") == Counter(
            {key: n // size for key, n in rows_of.items() if n >= size}
        )
        return
    for key, n in rows_of.items():
        ends = by_key.get(key, {})
        assert sorted(ends) == list(range(step, n + 1, step)), (name, key, n, sorted(ends))
        order: dict[int, int] = {}
        for start, numbers in ends.values():
            for place, number in enumerate(numbers, start):
                assert order.setdefault(place, number) == number
        assert len(set(order.values())) == len(order)


CASES: Mapping[str, Callable[[Case], None]] = {
    "timers": timers,
    "reminders": reminders,
    "sessions": sessions,
    "verbs": verbs,
}
