"""What is run under schedules: pipelines with what they read, and what must have been committed in the end.

What a batch computation gives the tests of the operators say. Rows that came late are told by the side outputs: each is
there once, and the rest is what a batch computation gives without them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

from kafka_eos import (
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedStream,
    OutputTag,
    Pattern,
    Pipeline,
    Stream,
    Ttl,
    WatermarkStrategy,
    bounded,
    connect,
    monotonic,
    session,
    sliding,
    tumbling,
)
from kafka_eos.core.records import Record
from tests.schedules.job import ProvenanceSink, RandomSplitSource
from tests.unit.runtime.operators import test_as_of_joins, test_joins, test_patterns
from tests.unit.runtime.operators.test_windows import Row

_SPLITS = range(4)
_KEYS = "abcdefghijkl"
_SPAN = 150
"""Event times are up to here."""
_END: Row = ("z", 10_000, 0)
"""The last row of each split: event time comes to all others."""


@dataclass
class Case:
    """A pipeline under construction. ``max_rows``: rows of a split. ``check`` raises AssertionError."""

    pipeline: Pipeline
    chance: Random
    max_rows: int
    sinks: dict[str, ProvenanceSink] = field(default_factory=dict)
    checks: list[Callable[[], None]] = field(default_factory=list)
    clock: int = 1_700_000_000_000
    """Processing time; goes on with each look."""
    last_run_start: int = 0
    """What it was when the last run began."""
    ending: list[str] = field(default_factory=list)
    """Windows of rows of which nothing is left some hours later."""

    def look(self) -> int:
        """At the clock."""
        self.clock += 1
        return self.clock

    def sink(self, stream: Stream[Any], name: str) -> None:
        self.sinks[name] = ProvenanceSink()
        stream.sink(self.sinks[name], name=f"{name}-sink")

    def read(self, name: str, splits: Mapping[int, Sequence[Row]], strategy: WatermarkStrategy) -> Stream[Row]:
        rows = {split: [*mine, _END] for split, mine in splits.items()}
        source: Stream[Row] = self.pipeline.source(RandomSplitSource(name, rows, self.chance), name=name)
        return source.with_timestamps(lambda row: row[1], watermarks=strategy)

    def values(self, *names: str) -> Counter[Any]:
        """Of all these sinks."""
        return sum((self.sinks[name].values for name in names), Counter())

    def expect(self, names: Sequence[str], wanted: Callable[[], Counter[Any]]) -> None:
        def check() -> None:
            found, due = self.values(*names), wanted()
            assert (found - due, due - found) == (Counter(), Counter()), names

        self.checks.append(check)

    def check(self) -> None:
        for name, sink in self.sinks.items():
            assert not sink.doubled, f"{name}: {sink.doubled[:3]} are there twice"
        for check in self.checks:
            check()


def rows(chance: Random, max_rows: int, disorder: int) -> dict[int, list[Row]]:
    """Of each split, out of order by so much; no two have the same number."""
    found: dict[int, list[Row]] = {}
    for split in _SPLITS:
        times = [chance.randint(-20, _SPAN) for _ in range(chance.randint(0, max_rows))]
        times.sort(key=lambda at: at + chance.randint(0, disorder))
        found[split] = [(chance.choice(_KEYS), at, split * 1000 + n) for n, at in enumerate(times)]
    return found


def all_of(splits: Mapping[int, Sequence[Row]]) -> list[Row]:
    return [row for mine in splits.values() for row in mine]


def pair(left: Row, right: Row) -> tuple[Row, Row]:
    return tuple(left), tuple(right)  # type: ignore[return-value]


def keyed(stream: Stream[Row], name: str) -> KeyedStream[str, Row]:
    return stream.key_by(lambda row: row[0], name=name, values=Row)


# ---------------------------------------------------------------- what waits for event time


def joins(case: Case) -> None:
    """Two joins, windows and a pattern, and rows that are late for each of them."""
    bound = case.chance.choice([0, 5])
    strategy = bounded(bound / 1000) if bound else monotonic()
    sides = {side: rows(case.chance, case.max_rows, bound + 15) for side in ("left", "right")}
    left, right = (keyed(case.read(side, splits, strategy), f"by-{side}") for side, splits in sides.items())
    for kind in case.chance.sample([*test_joins.INTERVALS, "tumbling"], 2):
        joined = test_joins.joined(connect(left, right), kind, late=True, name=kind)
        case.sink(joined, f"{kind}-pairs")
        for tag in (*test_joins.ALONE, *test_joins.LATE):
            case.sink(joined.side_output(tag), f"{kind}-{tag.name}")
        case.checks.append(partial(_check_joined, case, kind, sides))
    _windows(case, left, sides["left"])
    _pattern(case, right, sides["right"])


def _check_joined(case: Case, kind: str, sides: Mapping[str, Mapping[int, Sequence[Row]]]) -> None:
    late = case.values(f"{kind}-left-late", f"{kind}-right-late")
    in_time = [_without(all_of(splits), case.values(f"{kind}-{side}-late")) for side, splits in sides.items()]
    found: Counter[Any] = Counter()
    for name in ("pairs", "left-alone", "right-alone"):
        found.update({(name, value): n for value, n in case.values(f"{kind}-{name}").items()})
    assert max(late.values(), default=1) == 1, "a row is late twice"
    assert found == test_joins.batch_computed(kind, *in_time), kind


def _without(every: Sequence[Row], late: Counter[Any]) -> list[Row]:
    return [row for row in every if tuple(row) not in late]


LATE, OVER = OutputTag("late", tuple), OutputTag("over", tuple)


def _windows(case: Case, stream: KeyedStream[str, Row], splits: Mapping[int, Sequence[Row]]) -> None:
    found = stream.window(tumbling(seconds=0.010), late=LATE).fold(
        name="window", init=list, step=lambda so_far, row: [*so_far, row[2]], state=list
    )
    case.sink(found.map(lambda each: (each.key, each.window.start, tuple(sorted(each.value)))), "windows")
    case.sink(found.side_output(LATE), "windows-late")

    def wanted() -> Counter[Any]:
        held: dict[tuple[str, int], list[int]] = {}
        for key, at, number in _without(all_of(splits), case.values("windows-late")):
            held.setdefault((key, at // 10 * 10), []).append(number)
        return Counter((*place, tuple(sorted(numbers))) for place, numbers in held.items())

    case.expect(["windows"], wanted)


def _pattern(case: Case, stream: KeyedStream[str, Row], splits: Mapping[int, Sequence[Row]]) -> None:
    pattern = Pattern[Row].begin("a", lambda row: row[2] % 3 == 0).followed_by("b", lambda row: row[2] % 3 == 1)
    pattern = pattern.within(seconds=0.012)
    pattern = pattern.overlapping() if case.chance.random() < 0.5 else pattern
    found = stream.match(
        pattern, test_patterns.told, name="match", timed_out=OVER, on_timeout=test_patterns.told, late=LATE
    )
    for name, part in {"match": found, "over": found.side_output(OVER), "match-late": found.side_output(LATE)}.items():
        case.sink(part, name)

    def wanted() -> Counter[Any]:
        late = case.values("match-late")
        placed = [(row, (split, n)) for split, mine in splits.items() for n, row in enumerate(mine)]
        expected = test_patterns.batch_computed(pattern, [each for each in placed if tuple(each[0]) not in late])
        return Counter(value for (_, value), n in expected.items() for _ in range(n))

    case.expect(["match", "over"], wanted)


def windows(case: Case) -> None:
    """Windows and joins of which a row may come too late for a part: here none does."""
    disorder = case.chance.choice([0, 8])
    strategy = bounded(disorder / 1000) if disorder else monotonic()
    sides = {side: rows(case.chance, case.max_rows, disorder) for side in ("left", "right")}
    left, right = (keyed(case.read(side, splits, strategy), f"by-{side}") for side, splits in sides.items())
    kinds: dict[str, Any] = {"sliding": sliding(seconds=0.010, every=0.004), "session": session(gap=0.004)}
    for kind, verb in kinds.items():
        joined = test_joins.joined(connect(left, right), kind, name=kind)
        case.sink(joined, f"{kind}-pairs")
        for tag in test_joins.ALONE:
            case.sink(joined.side_output(tag), f"{kind}-{tag.name}")
        names = [f"{kind}-{name}" for name in ("pairs", "left-alone", "right-alone")]
        case.expect(names, partial(_untold, kind, sides))
        summed = left.window(verb).fold(
            name=f"{kind}-sums", init=int, step=lambda so_far, row: so_far + row[2], merge=lambda a, b: a + b
        )
        case.sink(summed.map(lambda each: (each.key, each.window.start, each.window.end, each.value)), f"{kind}-summed")
        case.expect([f"{kind}-summed"], partial(_summed, kind, all_of(sides["left"])))


def _untold(kind: str, sides: Mapping[str, Mapping[int, Sequence[Row]]]) -> Counter[Any]:
    expected = test_joins.batch_computed(kind, all_of(sides["left"]), all_of(sides["right"]))
    return Counter(value for (_, value), n in expected.items() for _ in range(n))


def _summed(kind: str, every: Sequence[Row]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for key in {row[0] for row in every}:
        mine = [row for row in every if row[0] == key]
        for start, end in test_joins.windows(kind, sorted({row[1] for row in mine})):
            inside = [row[2] for row in mine if start <= row[1] < end]
            found.update([(key, start, end, sum(inside))] if inside else [])
    return found


# ---------------------------------------------------------------- tables


class Rate(msgspec.Struct):
    version: int


def tables(case: Case) -> None:
    """No row before the table is whole; and of each row what the table had at its time."""
    disorder = case.chance.choice([0, 8])
    strategy = bounded(disorder / 1000) if disorder else monotonic()
    stream, versions = rows(case.chance, case.max_rows, disorder), rows(case.chance, case.max_rows, disorder)
    # A key is in one partition of the table, and one in three versions takes it away.
    for split in _SPLITS:
        versions[split] = [(_KEYS[split::4][n % 3], at, 1 + n % 3) for _, at, n in versions[split]]
    if case.chance.random() < 0.3:
        versions[case.chance.choice(_SPLITS)] = []
    by_key = keyed(case.read("stream", stream, strategy), "by-key")
    upserts = {split: [_upsert(row) for row in [*mine, _END]] for split, mine in versions.items()}
    table: Any = case.pipeline.table(
        RandomSplitSource("table", upserts, case.chance, dated=True), name="table", values=Record[str, Rate]
    )
    dated = table.with_timestamps(lambda record: record.timestamp, watermarks=strategy)
    for outer, verb in ((False, by_key.join_as_of), (True, by_key.left_join_as_of)):
        case.sink(verb(dated, _rated, name=f"then-{outer}"), f"then-{outer}")
        case.expect(
            [f"then-{outer}"],
            partial(test_as_of_joins.batch_computed, all_of(stream), versions, outer=outer),  # type: ignore[arg-type]
        )
    case.sink(by_key.left_join(table, _rated, name="now"), "now")
    newest = {row[0]: row[2] for mine in versions.values() for row in mine} | {"z": 0}
    found = [(row, newest.get(row[0], 1)) for row in [*all_of(stream), *(_END for _ in _SPLITS)]]
    case.expect(["now"], lambda: Counter((row, None if version == 1 else version) for row, version in found))


def _upsert(row: Row) -> Record[str, Rate]:
    return Record(row[0], None if row[2] == 1 else Rate(row[2]), timestamp=row[1])


def _rated(row: Row, rate: Rate | None) -> Any:
    return tuple(row), None if rate is None else rate.version


# ---------------------------------------------------------------- rules, and services


class Met(KeyedBroadcastProcessFunction[str, Row, tuple[str, int], Any]):
    """Each row, how many its key had so far, and the rules that it met."""

    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, int)
        self.count, self.timers = ctx.value_state("count", int, 0), ctx.timers()

    def process(self, key: str, value: Row) -> Iterable[Any]:
        self.count.put(self.count.get() + 1)
        self.timers.register(value[1] + 7)
        return [(*value, self.count.get(), tuple(self.rules.items()))]

    def on_timer(self, key: str, time: int) -> Iterable[Any]:
        return [(key, time)]

    def process_broadcast(self, value: tuple[str, int]) -> None:
        self.rules.put(*value)


def rules(case: Case) -> None:
    """Rows of a key keep their order, and no rule goes back for it. ``JobProcess.decide`` compares the copies."""
    splits = rows(case.chance, case.max_rows, 0)
    changes = {split: [(f"{split}-{case.chance.randint(0, 3)}", n) for n in range(30)] for split in range(3)}
    rules: Stream[Any] = case.pipeline.source(RandomSplitSource("rules", changes, case.chance), name="rules")
    stream = keyed(case.read("stream", splits, monotonic()), "by-key")
    made = connect(stream, rules.broadcast(values=tuple)).process(Met, name="meet")
    case.sink(made.filter(lambda each: len(each) > 2), "met")
    case.sink(made.filter(lambda each: len(each) == 2), "timers")
    every = all_of(splits)
    case.expect(["timers"], lambda: Counter({(key, at + 7): 1 for key, at, _ in every}))

    def check() -> None:
        found = [value for value in case.values("met").elements() if value[0] != "z"]
        assert Counter(value[:3] for value in found) == Counter(every)
        for key in _KEYS:
            mine = sorted((value[3], value[2], value[4]) for value in found if value[0] == key)
            assert [count for count, *_ in mine] == list(range(1, len(mine) + 1))
            for split in _SPLITS:
                of_split = [number for _, number, _ in mine if number // 1000 == split]
                assert of_split == sorted(of_split), "rows of a key and a split are out of order"
            for (*_, before), (*_, after) in pairwise(mine):
                assert all(dict(after)[rule] >= version for rule, version in before), "a rule went back"

    case.checks.append(check)


def requests(case: Case) -> None:
    """Each row has one answer; windows behind miss none, and call none late."""
    splits = rows(case.chance, case.max_rows, 0)
    nap = Random(case.chance.random())

    async def itself(row: Row) -> Row:
        await asyncio.sleep(nap.choice([0, 0, 0.001]))
        return row

    async def of_key(key: str) -> str:
        await asyncio.sleep(nap.choice([0, 0.001]))
        if nap.random() < 0.1:
            raise ValueError("no answer")
        return key * 2

    stream = case.read("stream", splits, monotonic())
    given: dict[str, Any] = {"ordered": case.chance.random() < 0.5, "capacity": case.chance.choice([1, 5, 100])}
    answered = stream.async_map(itself, name="ask", values=Row, **given)
    case.sink(answered, "answered")
    counted = (
        keyed(answered, "by-answer")
        .window(tumbling(seconds=0.010))
        .fold(name="count", init=int, step=lambda so_far, row: so_far + 1, state=int)
    )
    case.sink(counted.map(lambda each: (each.key, each.window.start, each.value)), "counted")
    cache = Ttl(case.chance.choice([0.001, 10.0]))
    failed: OutputTag[Any] = OutputTag("failed", tuple)
    kept = keyed(stream, "by-key").async_map(
        of_key, lambda row, answer: (*row, answer), name="keep", cache=cache, failed=failed, **given
    )
    case.sink(kept.map(lambda each: each[:3]), "kept")
    case.sink(kept.side_output(failed).map(tuple), "failed")
    every = all_of(splits)
    whole = Counter([*every, *(_END for _ in _SPLITS)])
    case.expect(["answered"], lambda: whole)
    case.expect(["kept", "failed"], lambda: whole)
    numbers = Counter((key, at // 10 * 10) for key, at, _ in every)
    case.expect(["counted"], lambda: Counter((*place, n) for place, n in numbers.items()))


CASES: Mapping[str, Callable[[Case], None]] = {
    "joins": joins,
    "windows": windows,
    "tables": tables,
    "rules": rules,
    "requests": requests,
}
