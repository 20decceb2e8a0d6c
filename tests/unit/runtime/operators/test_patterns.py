"""Patterns through a chain of operators: what matches, what is timed out, what it is called, what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import OutputTag, Pattern, Pipeline, bounded, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.errors import ConfigError, PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.unit.runtime.operators.test_event_time import Bench
from tests.unit.runtime.operators.test_windows import Row, _keys

LATE, OVER = OutputTag("late", tuple), OutputTag("over", tuple)
Told = tuple[str, Any]
WITHIN = 12


def kind(number: int) -> Callable[[Row], bool]:
    return lambda row: row[2] == number


def at_most(number: int) -> Callable[[Row], bool]:
    return lambda row: row[2] <= number


PATTERNS: dict[str, Pattern[Row]] = {
    "one": Pattern[Row].begin("a", kind(1)),
    "followed": Pattern[Row].begin("a", kind(1)).followed_by("b", kind(2)),
    "next": Pattern[Row].begin("a", kind(1)).next("b", kind(2)),
    "often": Pattern[Row].begin("a", kind(1)).times(3).followed_by("b", kind(2)),
    "in-a-row": Pattern[Row].begin("a", kind(1)).times(2, consecutive=True).followed_by("b", kind(2)).times(2),
    "mixed": Pattern[Row].begin("a", at_most(2)).followed_by("b", at_most(1)).next("c", kind(3)),
    "all-the-same": Pattern[Row].begin("a", kind(1)).followed_by("b", kind(1)).followed_by("c", kind(1)),
}
PATTERNS = {name: each.within(seconds=WITHIN / 1000) for name, each in PATTERNS.items()}
PATTERNS |= {f"{name}-overlapping": each.overlapping() for name, each in PATTERNS.items()}


def told(key: str, found: dict[str, list[Row]]) -> tuple[Any, ...]:
    return key, *((name, tuple(map(tuple, values))) for name, values in found.items())


def flow(pattern: Pattern[Row], *, delay: float = 0, late: bool = False, on_error: Any = "stop") -> Pipeline:
    pipeline = Pipeline("patterns")
    source: Any = pipeline.source(ListSource([]), name="source", on_error=on_error)
    timed = source.with_timestamps(lambda row: row[1], watermarks=bounded(delay) if delay else monotonic())
    keyed = timed.key_by(lambda row: row[0], name="by-key", values=Row)
    tags: dict[str, Any] = {"late": LATE} if late else {}
    found = keyed.match(pattern, told, name="match", timed_out=OVER, on_timeout=told, **tags)
    found.sink(MemorySink(), name="found")
    found.side_output(OVER).sink(MemorySink(), name="over")
    if late:
        found.side_output(LATE).sink(MemorySink(), name="late")
    return pipeline


# ---------------------------------------------------------------- the same as a batch computation


def outcomes(pattern: Pattern[Row], rows: Sequence[tuple[Row, Any]]) -> Iterator[tuple[int, str, Any]]:
    """When what comes out, of rows with their places: from the definition, one first row after the other; what it
    would come to, and whether a match is in its way.
    """
    for key in sorted({row[0] for row, _ in rows}):
        mine = [row for row, place in sorted(rows, key=lambda each: (each[0][1], each[1], each[0])) if row[0] == key]
        fates = {at: fate(pattern, mine, at) for at in range(len(mine)) if pattern.stages[0].where(mine[at])}
        gone: set[int] = set()
        for end, last in enumerate(mine):
            ended = [at for at, (how, places) in fates.items() if how == "whole" and places[-1] == end]
            whole = [at for at in ended if at not in gone]
            for at in whole if pattern.overlaps else whole[:1]:
                yield last[1], "found", told(key, named(pattern, [mine[place] for place in fates[at][1]]))
            if whole and not pattern.overlaps:
                # Whoever has begun by then is over, unless its time was up before.
                gone |= {at for at in fates if at <= end and mine[at][1] + limit(pattern) > last[1]}
        for at, (how, places) in fates.items():
            if how == "over" and at not in gone:
                begun = [mine[place] for place in places]
                yield mine[at][1] + limit(pattern) - 1, "over", told(key, named(pattern, begun))


def limit(pattern: Pattern[Row]) -> int:
    assert pattern.limit is not None
    return pattern.limit


def batch_computed(pattern: Pattern[Row], rows: Sequence[tuple[Row, Any]]) -> Counter[Told]:
    return Counter((sink, value) for _, sink, value in outcomes(pattern, rows))


def fate(pattern: Pattern[Row], rows: Sequence[Row], first: int) -> tuple[str, list[int]]:
    """What becomes of the row as a first one, with the rows that it has found: whole, broken, or over."""
    places = [first]
    for number, behind in pattern.steps[1:]:
        where = pattern.stages[number].where
        for at in range(places[-1] + 1, len(rows)):
            if rows[at][1] >= rows[first][1] + limit(pattern):
                return "over", places
            if where(rows[at]):
                places.append(at)
                break
            if behind:
                return "broken", places
        else:
            return "over", places
    return "whole", places


def named(pattern: Pattern[Row], rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for (number, _), row in zip(pattern.steps, rows, strict=False):
        found[pattern.stages[number].name].append(row)
    return dict(found)


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[list[list[Row]], int]:
    """Rows of two partitions, each out of order by so many milliseconds at most."""
    disorder = draw(st.integers(0, 12))
    row = st.tuples(st.sampled_from("ab"), st.integers(-10, 30), st.integers(1, 3))
    partitions = []
    for _ in range(2):
        found = draw(st.lists(row, max_size=16))
        delays = draw(st.lists(st.integers(0, disorder), min_size=len(found), max_size=len(found)))
        arriving = sorted(zip(found, delays, strict=True), key=lambda each: each[0][1] + each[1])
        partitions.append([row for row, _ in arriving])
    return partitions, disorder


class Sinks(Bench):
    """A bench whose outputs are told apart."""

    def open(self, handles: Sequence[Any] = (), splits: Sequence[str] = ("source/0", "source/1")) -> OperatorChain:
        return super().open(handles, splits)

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        self.told: list[tuple[str, Batch[Any]]] = getattr(self, "told", [])
        return {sink.name: partial(self._told, sink.name) for sink in self.plan.sinks}

    def _told(self, sink: str, batch: Batch[Any]) -> None:
        self.told.append((sink, batch))

    def push(self, partition: int, given: Sequence[Row], first: int = 0) -> None:
        origin = ListOrigin("source", "source", partition, first, given, [at for _, at, _ in given])
        self.chain.push("source", Batch(list(given), range(len(given)), origin))

    def came_out(self) -> list[tuple[str, str, Any]]:
        """The sink of each output, what it calls itself, and its value."""
        return [
            (sink, parse_provenance(text).identity, value)
            for sink, batch in self.told
            for text, value in zip(format_provenance(batch, "job", Term(1), Epoch(1)), batch.values, strict=True)
        ]

    def left(self) -> set[Any]:
        """Keys of which the operator's checkpoint holds anything."""
        (handle,) = [handle for handle in self.checkpoint() if handle.operator == "match"]
        return {key for state in ("rows", "partials", "event-timers") for key in _keys(self, handle, state)}


END: Row = ("z", 10_000, 9)


@pytest.mark.parametrize("name", PATTERNS)
@given(given=shuffled(), batch=st.integers(1, 6), restart=st.integers(0, 8))
@examples(10)
def test_any_order_within_the_bound_and_any_restart_gives_what_a_batch_computation_gives(
    name: str, given: tuple[list[list[Row]], int], batch: int, restart: int
) -> None:
    partitions, disorder = given
    pattern, called = PATTERNS[name], list[Counter[Any]]()
    plan = flow(pattern, delay=disorder / 1000).plan()
    for turn in ((0, 1), (1, 0)):
        with TemporaryDirectory() as directory, ExitStack() as closing:
            bench = Sinks(plan, Path(directory), closing)
            bench.open()
            reads = [(at, partition) for partition in turn for at in range(0, len(partitions[partition]), batch)]
            for number, (at, partition) in enumerate(sorted(reads, key=lambda read: read[0])):
                bench.push(partition, partitions[partition][at : at + batch], at)
                if number == restart:
                    bench.open(bench.checkpoint())
            for partition in turn:
                bench.push(partition, [END], len(partitions[partition]))
            bench.open(bench.checkpoint())

            out = bench.came_out()
            rows = [(row, (p, at)) for p, found in enumerate(partitions) for at, row in enumerate(found)]
            assert Counter((sink, value) for sink, _, value in out) == batch_computed(pattern, rows)
            assert bench.left() <= {"z"}
            called.append(Counter(out))
    assert called[0] == called[1], "the same outputs have the same names, however their rows have come"
    assert all(count == 1 for count in called[0].values())


# ---------------------------------------------------------------- one thing at a time


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(pipeline: Pipeline, directory: Path, closing: ExitStack) -> Sinks:
    bench = Sinks(pipeline.plan(), directory, closing)
    bench.open()
    return bench


def run(pattern: Pattern[Row], tmp_path: Path, closing: ExitStack, *rows: tuple[int, int]) -> list[Told]:
    bench = opened(flow(pattern), tmp_path, closing)
    bench.push(1, [END])
    bench.push(0, [("a", at, number) for at, number in rows])
    bench.push(0, [END], len(rows))
    return [(sink, [(n, [at for _, at, _ in v]) for n, v in value[1:]]) for sink, _, value in bench.came_out()]


def test_a_match_takes_the_first_rows_that_it_can_and_none_begins_inside_of_it(
    tmp_path: Path, closing: ExitStack
) -> None:
    rows = ((1, 1), (2, 3), (3, 1), (4, 2), (5, 2))

    assert run(PATTERNS["followed"], tmp_path, closing, *rows) == [("found", [("a", [1]), ("b", [4])])]
    assert run(PATTERNS["followed-overlapping"], tmp_path / "2", closing, *rows) == [
        ("found", [("a", [1]), ("b", [4])]),
        ("found", [("a", [3]), ("b", [4])]),
    ]


def test_the_last_row_is_less_than_within_behind_the_first(tmp_path: Path, closing: ExitStack) -> None:
    in_time, too_late = ((1, 1), (WITHIN, 2)), ((1, 1), (WITHIN + 1, 2))

    assert run(PATTERNS["followed"], tmp_path, closing, *in_time) == [("found", [("a", [1]), ("b", [WITHIN])])]
    assert run(PATTERNS["followed"], tmp_path / "2", closing, *too_late) == [("over", [("a", [1])])]


def test_a_row_that_comes_late_is_refused_or_sent_aside(tmp_path: Path, closing: ExitStack) -> None:
    with pytest.raises(PoisonRecord, match="late: the row's event time is 5"):
        late(opened(flow(PATTERNS["followed"]), tmp_path, closing))

    aside = opened(flow(PATTERNS["followed"], late=True), tmp_path / "2", closing)
    late(aside)
    assert [(sink, value) for sink, _, value in aside.came_out()] == [("late", ("a", 5, 1))]


def late(bench: Sinks) -> None:
    bench.push(1, [END])
    bench.push(0, [("a", 50, 9)])
    bench.push(0, [("a", 5, 1)], 1)


def test_a_row_on_which_a_condition_fails_is_refused_alone(tmp_path: Path, closing: ExitStack) -> None:
    pattern = Pattern[Row].begin("a", lambda row: 1 / row[2] == 1).followed_by("b", kind(2)).within(seconds=1)
    bench = opened(flow(pattern, on_error=DeadLetters(MemorySink())), tmp_path, closing)

    bench.push(1, [END])
    bench.push(0, [("a", 1, 1), ("a", 2, 0), ("a", 3, 2), END])

    found = [(sink, value) for sink, _, value in bench.came_out()]
    assert ("found", ("a", ("a", (("a", 1, 1),)), ("b", (("a", 3, 2),)))) in found
    assert [sink for sink, _ in found].count("source-dead-letters") == 1


def test_rows_that_no_stage_asks_for_are_not_kept_unless_they_could_break_a_match(
    tmp_path: Path, closing: ExitStack
) -> None:
    for number, (name, kept) in enumerate({"followed": set(), "next": {"a"}}.items()):
        bench = opened(flow(PATTERNS[name]), tmp_path / str(number), closing)
        bench.push(0, [("a", at, 3) for at in range(5)])
        assert bench.left() == kept


CHANGES: dict[str, Pattern[Row]] = {
    "a longer time": PATTERNS["followed"].within(seconds=1),
    "another stage": PATTERNS["next"],
    "another name": Pattern[Row].begin("x", kind(1)).followed_by("b", kind(2)).within(seconds=WITHIN / 1000),
    "more rows": PATTERNS["followed"].times(2),
    "overlapping": PATTERNS["followed-overlapping"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_pattern_under_the_name_is_refused(change: str, tmp_path: Path, closing: ExitStack) -> None:
    """Its rows would wait for what nobody asks for any more."""
    before = opened(flow(PATTERNS["followed"]), tmp_path, closing)
    before.push(1, [END])
    before.push(0, [("a", 1, 1)])
    after = Sinks(flow(CHANGES[change]).plan(), tmp_path / "2", closing, storage=before.storage)

    with pytest.raises(
        ConfigError, match="of operator 'match' was stored with another definition .*give the operator a new name"
    ):
        after.open(before.checkpoint())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PATTERNS["one"].times(0), "times must be at least 1"),
        (lambda: PATTERNS["one"].within(), "at least a millisecond"),
        (lambda: PATTERNS["one"].next("a", kind(2)), "two stages of a pattern are called 'a'"),
        (lambda: Pattern[Row].begin("", kind(1)), "has a name"),
        (lambda: Pattern[Row].begin("a", 3), "must be a function"),  # type: ignore[arg-type]
        (lambda: flow(Pattern[Row].begin("a", kind(1))), r"\.within\(minutes="),
    ],
)
def test_patterns_that_make_no_sense_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        make()


def test_a_side_output_for_timeouts_and_what_goes_there_are_given_together() -> None:
    pipeline = Pipeline("patterns")
    keyed: Any = pipeline.source(ListSource([]), name="source").with_timestamps(watermarks=monotonic()).key_by(str)

    with pytest.raises(PlanError, match="timed_out= and on_timeout="):
        keyed.match(PATTERNS["one"], told, name="match", timed_out=OVER)
