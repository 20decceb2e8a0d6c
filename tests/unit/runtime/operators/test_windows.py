"""Windows through a chain of operators: what is in which, when it comes out, what it is called, and what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_eos import (
    KeyedStream,
    OutputTag,
    Pipeline,
    Stream,
    Window,
    Windowed,
    bounded,
    days,
    monotonic,
    on_clock,
    on_count,
    session,
    sliding,
    tumbling,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.codecs import exchange_codec
from kafka_eos.core.errors import Bug, PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan, WindowNode
from kafka_eos.runtime.operators import OperatorContext, build_operator
from kafka_eos.runtime.operators.event_time import WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.memory_store import read_rows
from kafka_eos.runtime.state.row_keys import create_key_locator
from kafka_eos.runtime.state.schema_evolution import UNFIRED
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.unit.runtime.operators.test_event_time import Bench

Row = tuple[str, int, int]
"""Key, event time in milliseconds, amount."""
Found = tuple[str, int, int, Any]
"""Key, start and end of the window, value."""

KINDS: dict[str, Any] = {
    "tumbling": tumbling(seconds=0.010),
    "offset": tumbling(seconds=0.010, offset=0.003),
    "early": tumbling(seconds=0.010, early=0.005),
    "sliding": sliding(seconds=0.010, every=0.004),
    "shared": sliding(seconds=0.012, every=0.004, offset=-0.001),
    "session": session(gap=0.004),
}


def keyed(stream: Stream[Row], **given: Any) -> KeyedStream[str, Row]:
    timed = stream.with_timestamps(lambda row: row[1], watermarks=given.pop("watermarks", monotonic()))
    return timed.key_by(lambda row: row[0], values=Row)


def flow(verbs: Callable[[KeyedStream[str, Row]], Stream[Any]], on_error: Any = "stop", **given: Any) -> Pipeline:
    found = Pipeline("windows")
    source: Stream[Row] = found.source(ListSource([]), name="source", on_error=on_error)
    verbs(keyed(source, **given)).sink(MemorySink(), name="sink")
    return found


def summed(windows: Any) -> Stream[Windowed[str, int]]:
    found: Stream[Windowed[str, int]] = windows.fold(
        name="sums", init=lambda: 0, step=lambda total, row: total + row[2], merge=lambda a, b: a + b
    )
    return found


def listed(windows: Any) -> Stream[Windowed[str, list[int]]]:
    def all_of(key: str, window: Window, values: list[Row]) -> Iterable[Windowed[str, list[int]]]:
        yield Windowed(key, window, [amount for _, _, amount in values])

    found: Stream[Windowed[str, list[int]]] = windows.process(all_of, name="lists")
    return found


def sales(*given: Row) -> list[Row]:
    return list(given)


def shown(values: Iterable[Windowed[str, Any]]) -> list[Found]:
    return [(each.key, each.window.start, each.window.end, each.value) for each in values]


class LettersToo(Bench):
    """A bench for a pipeline whose bad rows are sent aside."""

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        return {**super().outputs(), "source-dead-letters": lambda letters: None}


@pytest.mark.parametrize("lateness", [0, 0.005])
@pytest.mark.parametrize(("assigner", "last"), [(tumbling(seconds=0.010), [9, 9]), (session(gap=0.004), [5, 7])])
def test_a_row_whose_result_is_refused_is_in_no_window_and_no_result_comes_from_another_row_for_it(
    assigner: Any, last: list[int], lateness: float, tmp_path: Path
) -> None:
    def all_of(key: str, window: Window, values: list[Row]) -> list[list[int]]:
        if (found := [amount for _, _, amount in values])[-1] == 2:
            raise ValueError("bad")
        return [found]

    def verbs(stream: KeyedStream[str, Row]) -> Stream[Any]:
        return stream.window(assigner, lateness=lateness, trigger=on_count(2)).process(all_of, name="lists")

    with ExitStack() as closing:
        bench = LettersToo(flow(verbs, DeadLetters(MemorySink())).plan(), tmp_path, closing)
        bench.open()
        push(bench.chain, [("a", at, 1 << at) for at in range(5)], 0, 0)
        (out,) = bench.out

    assert (out.values, list(out.origin_rows), list(out.event_times or ())) == ([[1, 4], [1, 4, 8, 16]], [2, 4], last)


# ---------------------------------------------------------------- which rows are in a window


@pytest.mark.parametrize(
    ("assigner", "expected"),
    [
        (tumbling(seconds=0.010), [(-10, 0, 1), (0, 10, 6), (10, 20, 24), (20, 30, 32)]),
        (tumbling(seconds=0.010, offset=0.001), [(-9, 1, 3), (1, 11, 12), (11, 21, 16 + 32)]),
        (tumbling(seconds=0.010, early=0.005), [
            (-10, 0, 1), (0, 5, 2), (0, 10, 6), (10, 15, 8), (10, 20, 24), (20, 25, 32), (20, 30, 32),
        ]),
        (sliding(seconds=0.010, every=0.005), [
            (-10, 0, 1), (-5, 5, 3), (0, 10, 6), (5, 15, 12), (10, 20, 24), (15, 25, 48), (20, 30, 32),
        ]),
        (session(gap=0.004), [(-1, 4, 3), (9, 14, 12), (17, 24, 48)]),
    ],
)  # fmt: skip
def test_edges_belong_to_the_window_that_begins_there(assigner: Any, expected: list[Any]) -> None:
    given = sales(*[("a", at, 1 << n) for n, at in enumerate((-1, 0, 9, 10, 17, 20))], ("z", 1000, 0))

    out = run_local(flow(lambda s: summed(s.window(assigner))), {"source": given})["sink"]

    assert [(start, end, value) for _, start, end, value in shown(out)] == expected


@pytest.mark.parametrize("lateness", [0, 5])
def test_rows_of_which_none_has_a_calendar_day_are_refused(lateness: int) -> None:
    verbs = flow(lambda s: summed(s.window(days("UTC"), lateness=lateness)), DeadLetters(MemorySink()))

    out = run_local(verbs, {"source": [("a", 10**15, 1), ("b", 10**15, 2)]})

    assert (out["sink"], len(out["source-dead-letters"])) == ([], 2)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2024-03-31", 23),
        ("Europe/Berlin", "2024-10-27", 25),
        ("Europe/Berlin", "1969-12-31", 24),
        ("America/Havana", "2024-03-10", 23),
        ("Asia/Kathmandu", "2024-05-05", 24),
    ],
)
def test_a_calendar_day_has_as_many_hours_as_the_clock_has_there(zone: str, day: str, hours: int) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    start = round(begin.timestamp() * 1000)
    end = start + hours * 3_600_000
    given = sales(("a", start - 1, 1), ("a", start, 2), ("a", end - 1, 4), ("a", end, 8), ("z", end + 10**9, 0))

    out = run_local(flow(lambda s: summed(s.window(days(zone)))), {"source": given})["sink"]

    assert [found[1:] for found in shown(out)][1] == (start, end, 6)
    assert [value for *_, value in shown(out)] == [1, 6, 8]


def test_a_day_whose_last_minute_has_two_dates_is_one() -> None:
    """In St. John's clocks went back from 00:01 to 23:01, until 2011: midnight came twice."""
    zone, first = ZoneInfo("America/St_Johns"), datetime(2006, 10, 29, 0, 0, 30, tzinfo=ZoneInfo("America/St_Johns"))
    moments = [round(first.timestamp() * 1000) + minute * 60_000 for minute in (-1, 0, 1, 30, 59, 61)]
    assert {(datetime.fromtimestamp(at / 1000, UTC)).astimezone(zone).day for at in moments} == {28, 29}

    windows = [days("America/St_Johns").ends(days("America/St_Johns").pane(at)) for at in moments]

    assert windows[0] != windows[1]
    assert len(set(windows[1:])) == 1


def test_windows_of_a_millisecond_take_all_rows_of_that_moment() -> None:
    given = sales(("a", 1, 1), ("a", 2, 2), ("a", 2, 4), ("a", 3, 8), ("z", 9, 0))

    out = run_local(flow(lambda s: summed(s.window(tumbling(seconds=0.001)))), {"source": given}, batch_size=1)["sink"]

    assert shown(out)[:3] == [("a", 1, 2, 1), ("a", 2, 3, 6), ("a", 3, 4, 8)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_the_first_moment_that_is_not_over_is_in_all_of_its_windows(kind: str) -> None:
    for moment in range(12):
        given = sales(("b", moment, 1), ("a", moment, 5), ("z", 1000, 0))
        found = shown(run_local(flow(lambda s: summed(s.window(KINDS[kind]))), {"source": given}, batch_size=1)["sink"])
        assert Counter(each for each in found if each[0] != "z") == batch_computed(kind, given[:2])


# ---------------------------------------------------------------- the same as a batch computation


def batch_computed(kind: str, given: Sequence[Row]) -> Counter[Found]:
    """What the windows of all rows hold, from the definition of each."""
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, at, amount in given:
        by_key[key].append((at, amount))
    found: Counter[Found] = Counter()
    for key, mine in by_key.items():
        for start, end in _sessions(mine) if kind == "session" else _regular(kind, mine):
            inside = [amount for at, amount in mine if start <= at < end]
            if inside:
                found[key, start, end, sum(inside)] += 1
    return found


def _sessions(mine: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    times = sorted(at for at, _ in mine)
    start = last = times[0]
    for at in times[1:]:
        if at - last >= 4:
            yield start, last + 4
            start = at
        last = at
    yield start, last + 4


def _regular(kind: str, mine: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    size, every, offset = {
        "tumbling": (10, 10, 0), "offset": (10, 10, 3), "early": (10, 10, 0), "sliding": (10, 4, 0),
        "shared": (12, 4, -1),
    }[kind]  # fmt: skip
    times = [at for at, _ in mine]
    for start in range(min(times) - 40, max(times) + 40):
        if (start - offset) % every == 0:
            if kind == "early":
                yield start, start + 5
            yield start, start + size


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[list[list[Row]], int]:
    """Rows of two partitions, each out of order by so many milliseconds at most."""
    disorder = draw(st.integers(0, 15))
    row = st.tuples(st.sampled_from("abc"), st.integers(-30, 60), st.integers(1, 9))
    partitions = []
    for _ in range(2):
        found = draw(st.lists(row, max_size=25))
        delays = draw(st.lists(st.integers(0, disorder), min_size=len(found), max_size=len(found)))
        arriving = sorted(zip(found, delays, strict=True), key=lambda each: each[0][1] + each[1])
        partitions.append([sale for sale, _ in arriving])
    return partitions, disorder


@pytest.mark.parametrize("lateness", [0, 0.007])
@pytest.mark.parametrize("kind", KINDS)
@given(given=shuffled(), batch=st.integers(1, 9), restart=st.integers(0, 8))
@examples(10)
def test_any_order_within_the_bound_and_any_restart_gives_what_a_batch_computation_gives(
    kind: str, lateness: float, given: tuple[list[list[Row]], int], batch: int, restart: int
) -> None:
    partitions, disorder = given
    assigner, strategy = KINDS[kind], bounded(disorder / 1000)
    plan = flow(lambda s: summed(s.window(assigner, lateness=lateness)), watermarks=strategy).plan()
    with TemporaryDirectory() as directory, ExitStack() as closing:
        bench = Bench(plan, Path(directory), closing)
        splits = ("source/0", "source/1")
        bench.open(splits=splits)
        reads = [(partition, at) for partition in (0, 1) for at in range(0, len(partitions[partition]), batch)]
        for number, (partition, at) in enumerate(sorted(reads, key=lambda read: read[1])):
            push(bench.chain, partitions[partition][at : at + batch], partition)
            if number == restart:
                bench.open(bench.checkpoint(), splits)
        for partition in (0, 1):
            push(bench.chain, [("z", 10_000, 0)], partition)
        bench.open(bench.checkpoint(), splits)

        expected = batch_computed(kind, [*partitions[0], *partitions[1]])
        assert Counter(shown(bench.values)) == expected
        assert {
            parse_provenance(text).topic
            for out in bench.out
            for text in format_provenance(out, "job", Term(1), Epoch(1))
        } <= {"timers"}
        assert [time for out in bench.out for time in out.event_times or ()] == [
            end - 1 for _, _, end, _ in shown(bench.values)
        ]
        names = [
            parse_provenance(text).identity
            for out in bench.out
            for text in format_provenance(out, "job", Term(1), Epoch(1))
        ]
        assert len(set(names)) == len(names)
        assert left(bench) <= {"z"}


def push(chain: OperatorChain, given: Sequence[Row], partition: int, first: int = 0) -> None:
    if given:
        origin = ListOrigin("source", "source", partition, first, given, [at for _, at, _ in given])
        chain.push("source", Batch(list(given), range(len(given)), origin))


def left(bench: Bench) -> set[Any]:
    """Keys of which the operator's checkpoint holds anything."""
    bench.chain.flush()
    (found,) = [handle for handle in bench.checkpoint() if handle.operator in ("sums", "lists")]
    return {key for state in ("windows", "sessions", "counts", "event-timers") for key in _keys(bench, found, state)}


def _keys(bench: Bench, handle: StateHandle, state: str) -> Iterator[Any]:
    spans = {str(each["name"]): create_key_locator(each) for each in handle.states}
    with TemporaryDirectory() as scratch:
        for name, block in read_rows(handle, bench.storage, Path(scratch)):
            if name == state:
                for row, _ in block:
                    start, end = spans[name](row)
                    yield msgspec.msgpack.decode(row[start:end])


@given(given=shuffled(), batch=st.integers(1, 9), kind=st.sampled_from(sorted(KINDS)), turn=st.booleans())
@examples(30)
def test_all_values_of_a_window_come_in_the_order_of_time_partition_and_offset_however_they_came(
    given: tuple[list[list[Row]], int], batch: int, kind: str, turn: bool
) -> None:
    partitions, disorder = given
    plan = flow(lambda s: listed(s.window(KINDS[kind])), watermarks=bounded(disorder / 1000)).plan()
    with TemporaryDirectory() as directory, ExitStack() as closing:
        bench = Bench(plan, Path(directory), closing)
        bench.open(splits=("source/0", "source/1"))
        for partition in (1, 0) if turn else (0, 1):
            for at in range(0, len(partitions[partition]), batch):
                push(bench.chain, partitions[partition][at : at + batch], partition, at)
        for partition in (0, 1):
            push(bench.chain, [("z", 10_000, 0)], partition)
        found = shown(bench.values)

    places = [(at, p, n, key, amount) for p in (0, 1) for n, (key, at, amount) in enumerate(partitions[p])]
    assert [value for *_, value in found] == [
        [amount for at, _, _, key, amount in sorted(places) if key == mine and start <= at < end]
        for mine, start, end, _ in found
    ]


def test_values_that_come_from_one_record_come_in_the_order_of_their_bytes() -> None:
    pipeline = Pipeline("p")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source")
    letters = source.with_timestamps(lambda row: row[1], watermarks=monotonic()).flat_map(lambda row: ["b", "a"])
    found = letters.key_by(len, values=str).window(tumbling(seconds=1))
    found.process(lambda key, window, values: [values], name="all").sink(MemorySink(), name="out")

    assert run_local(pipeline, {"source": [("x", 0, 1), ("x", 1000, 1)]})["out"] == [["a", "b"]]


# ---------------------------------------------------------------- rows that come late


LATE: OutputTag[Any] = OutputTag("late", tuple)


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_a_late_row_stops_the_job_if_nobody_says_what_is_to_become_of_it(kind: str) -> None:
    given = sales(("a", 1, 1), ("a", 30, 1), ("a", 2, 5))

    with pytest.raises(
        PoisonRecord,
        match="late: the row's event time is 2, and the watermark has passed the end.* set late= to a side output",
    ):
        run_local(flow(lambda s: summed(s.window(KINDS[kind]))), {"source": given}, batch_size=1)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_or_goes_to_the_dead_letters(kind: str) -> None:
    pipeline = flow(lambda s: summed(s.window(KINDS[kind])), on_error=DeadLetters(MemorySink()))

    out = run_local(pipeline, {"source": sales(("a", 1, 1), ("a", 30, 1), ("a", 2, 5))}, batch_size=1)

    assert [letter.error_type for letter in out["source-dead-letters"]] == ["LateRow"]
    assert {value for *_, value in shown(out["sink"])} == {1}


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_or_to_a_side_output_as_it_is(kind: str) -> None:
    pipeline = Pipeline("windows")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source")
    windows = summed(keyed(source).window(KINDS[kind], late=LATE))
    windows.sink(MemorySink(), name="sink")
    windows.side_output(LATE).sink(MemorySink(), name="late")

    out = run_local(pipeline, {"source": sales(("a", 1, 1), ("a", 30, 1), ("a", 2, 5))}, batch_size=1)

    assert out["late"] == [("a", 2, 5)]
    assert {value for *_, value in shown(out["sink"])} == {1}


@pytest.mark.parametrize("lateness", [0, 7])
@pytest.mark.parametrize(("kind", "end"), [("tumbling", 10), ("early", 10), ("sliding", 10), ("session", 7)])
def test_a_row_is_late_from_the_very_moment_at_which_its_last_window_is_over(
    kind: str, end: int, lateness: int
) -> None:
    def late_at(watermark: int) -> list[Row]:
        pipeline = Pipeline("windows")
        source: Stream[Row] = pipeline.source(ListSource([]), name="source")
        windows = summed(keyed(source).window(KINDS[kind], late=LATE, lateness=lateness / 1000))
        windows.side_output(LATE).sink(MemorySink(), name="late")
        windows.sink(MemorySink(), name="sink")
        given = sales(("b", watermark + 1, 1), ("a", 3, 5))
        return list(run_local(pipeline, {"source": given}, batch_size=1)["late"])

    assert late_at(end + lateness - 2) == []
    assert late_at(end + lateness - 1) == [("a", 3, 5)]


@pytest.mark.parametrize(("kind", "end"), [("tumbling", 10), ("sliding", 10), ("session", 7)])
def test_a_row_makes_the_result_again_from_the_very_moment_at_which_its_window_is_over(kind: str, end: int) -> None:
    def found_at(watermark: int) -> list[Found]:
        given = sales(("b", watermark + 1, 1), ("a", 3, 5))
        pipeline = flow(lambda s: summed(s.window(KINDS[kind], lateness=1)))
        found = shown(run_local(pipeline, {"source": given}, batch_size=1)["sink"])
        return [each for each in found if each[0] == "a" and each[2] == end]

    assert found_at(end - 2) == []
    assert [value for *_, value in found_at(end - 1)] == [5]


@pytest.mark.parametrize(("kind", "first"), [("sliding", 6), ("early", 5)])
def test_a_row_makes_no_result_again_of_a_window_from_the_very_moment_at_which_that_takes_no_rows_any_more(
    kind: str, first: int
) -> None:
    def ends_at(watermark: int) -> list[int]:
        given = sales(("b", watermark + 1, 1), ("a", 3, 5))
        pipeline = flow(lambda s: summed(s.window(KINDS[kind], lateness=0.009)))
        found = shown(run_local(pipeline, {"source": given}, batch_size=1)["sink"])
        return [end for key, _, end, _ in found if key == "a"]

    assert ends_at(first + 9 - 2) == [first, 10]
    assert ends_at(first + 9 - 1) == [10]


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_after_a_restart_a_late_row_makes_no_result_again(kind: str, tmp_path: Path, closing: ExitStack) -> None:
    """What was restored is given out, and its rows are there until the next checkpoint."""
    pipeline = flow(lambda s: summed(s.window(KINDS[kind])), on_error=DeadLetters(MemorySink()))
    bench = LettersToo(pipeline.plan(), tmp_path, closing)
    push(bench.open(), sales(("a", 1, 1)), 0)
    push(bench.open(bench.checkpoint()), sales(("a", 30, 2)), 0)
    found = bench.values

    push(bench.chain, sales(("a", 2, 5)), 0)
    push(bench.chain, sales(("a", 31, 2)), 0)
    bench.open(bench.checkpoint())

    assert found and bench.values == found
    assert {value for *_, value in shown(found)} == {1}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tumbling", [(0, 10, 1), (0, 10, 6), (0, 10, 14)]),
        ("early", [(0, 5, 1), (0, 10, 1), (0, 5, 6), (0, 10, 6), (0, 10, 14)]),
        ("sliding", [(-8, 2, 1), (-4, 6, 1), (0, 10, 1), (-4, 6, 6), (0, 10, 6), (0, 10, 14), (4, 14, 8), (8, 18, 8)]),
        ("session", [(1, 5, 1), (1, 6, 6), (9, 13, 8)]),
    ],
)
def test_within_the_lateness_a_row_makes_the_result_again(kind: str, expected: list[Any]) -> None:
    """At 14 windows to 4 and later ones still take rows; at 27 none of those does."""
    pipeline = flow(lambda s: summed(s.window(KINDS[kind], lateness=0.011)), on_error=DeadLetters(MemorySink()))
    given = sales(("a", 1, 1), ("b", 15, 1), ("a", 2, 5), ("a", 9, 8), ("b", 28, 1), ("a", 1, 99))

    out = run_local(pipeline, {"source": given}, batch_size=1)

    assert [(start, end, value) for key, start, end, value in shown(out["sink"]) if key == "a"] == expected
    assert [letter.raw.offset for letter in out["source-dead-letters"]] == [5]


@pytest.mark.parametrize("lateness", [0, 0.005])
@pytest.mark.parametrize("kind", KINDS)
def test_a_late_row_beside_one_in_time_is_late(kind: str, lateness: float) -> None:
    pipeline = flow(lambda s: summed(s.window(KINDS[kind], lateness=lateness)), on_error=DeadLetters(MemorySink()))
    given = sales(("b", 49, 1), ("b", 50, 1), ("a", 1, 5), ("a", 60, 8))

    out = run_local(pipeline, {"source": given}, batch_size=2)

    assert [letter.raw.offset for letter in out["source-dead-letters"]] == [2]
    assert {value for key, *_, value in shown(out["sink"]) if key == "a"} <= {8}


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_rows_whose_windows_are_over_are_counted(kind: str, tmp_path: Path) -> None:
    counted: list[int] = []
    refused: list[int] = []
    backend = open_backend("memory", "sums", tmp_path / "state", range(128), (), MemoryStorage())
    operator = build_operator(flow(lambda s: summed(s.window(KINDS[kind]))).plan().node("sums"))
    operator.open(
        OperatorContext(
            "sums", backend.value, lambda batch, index, error: refused.append(index), timers=backend.timers,
            count_late=counted.append, panes=backend.panes,
        )
    )  # fmt: skip
    list(operator.advance(29))

    origin = ListOrigin("source", "source", 0, 0, "abc", [2, 3, 31])
    given_ = [("a", 2, 1), ("a", 3, 1), ("a", 31, 1)]
    operator.process(Batch(given_, range(3), origin, keys=["a"] * 3, event_times=[2, 3, 31]))

    assert (sum(counted), refused) == (2, [0, 1])


def test_a_result_that_a_late_row_makes_again_says_that_it_comes_from_that_row(
    tmp_path: Path, closing: ExitStack
) -> None:
    bench = Bench(flow(lambda s: summed(s.window(KINDS["sliding"], lateness=1))).plan(), tmp_path, closing)
    bench.open()
    push(bench.chain, [("a", 1, 1), ("b", 40, 1)], 0)
    bench.out.clear()
    push(bench.chain, [("a", 2, 5)], 0)

    texts = [parse_provenance(text) for out in bench.out for text in format_provenance(out, "job", Term(1), Epoch(1))]
    assert [(text.topic, text.offset, text.ordinal) for text in texts] == [("source", 0, "0"), ("source", 0, "1")]
    assert [time for out in bench.out for time in out.event_times or ()] == [5, 9]


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_it_does_so_behind_a_row_that_is_refused(kind: str, tmp_path: Path, closing: ExitStack) -> None:
    pipeline = flow(lambda s: summed(s.window(KINDS[kind], lateness=0.020)), on_error=DeadLetters(MemorySink()))
    bench = LettersToo(pipeline.plan(), tmp_path, closing)
    push(bench.open(), [("b", 50, 1)], 0)
    push(bench.chain, [("a", 1, 1), ("a", 31, 5)], 0, first=1)

    texts = [parse_provenance(text) for out in bench.out for text in format_provenance(out, "job", Term(1), Epoch(1))]
    assert {(text.topic, text.offset) for text in texts} == {("source", 2)}
    assert {value for key, *_, value in shown(bench.values) if key == "a"} == {5}


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_nothing_is_left_of_a_window_that_only_a_late_row_was_in(kind: str, tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(lambda s: summed(s.window(KINDS[kind], lateness=0.020))).plan(), tmp_path, closing)
    push(bench.open(), [("b", 20, 1)], 0)
    push(bench.chain, [("a", 3, 5)], 0)
    assert "a" in left(bench)

    push(bench.chain, [("b", 100, 1)], 0)

    assert left(bench) == {"b"}


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_a_late_row_whose_result_is_refused_has_changed_nothing(kind: str) -> None:
    def shown_unless(key: str, window: Window, values: list[Row]) -> list[Any]:
        amounts = [amount for *_, amount in values]
        return [amounts] if 99 not in amounts else [1 / 0]

    given = sales(("a", 1, 1), ("a", 50, 1), ("a", 2, 99), ("a", 3, 5))
    pipeline = flow(
        lambda s: s.window(KINDS[kind], lateness=1).process(shown_unless, name="sums"),
        on_error=DeadLetters(MemorySink()),
    )

    out = run_local(pipeline, {"source": given}, batch_size=1)

    assert out["sink"] == [[1], [1, 5]]
    assert [letter.raw.offset for letter in out["source-dead-letters"]] == [2]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# ---------------------------------------------------------------- snapshots between two results of one moment


@pytest.mark.limits(pane_keys_per_batch=1)
def test_what_a_snapshot_has_left_of_windows_comes_first_and_nothing_that_is_not_over_does(
    tmp_path: Path, closing: ExitStack
) -> None:
    """Before any row, any watermark, and any result by the clock."""
    plan = flow(lambda s: summed(s.window(KINDS["tumbling"], trigger=on_clock(every=10)))).plan()
    now = [1_700_000_000_000]
    bench = Bench(plan, tmp_path, closing, pace=WatermarkSchedule(0.0, lambda: 0.0, slice=0.0), clock=lambda: now[0])

    def restore() -> bool:
        """Does the snapshot say that something is left?"""
        bench.chain.flush(whole=False)
        handles = [backend.snapshot(Epoch(1))(bench.storage) for backend in bench.backends.values()]
        bench.open(handles)
        bench.chain.resume()
        while bench.chain.has_due_work:
            bench.chain.continue_due()
        told = {str(state["name"]): UNFIRED in state for handle in handles for state in handle.states}
        return told["event-timers"]

    bench.open()
    push(bench.chain, [(key, 2, 1) for key in "abcd"], 0)
    push(bench.chain, [("d", 9, 2)], 0)
    assert not restore()
    assert bench.values == [], "event time is at 8: the window is open for one moment more"
    push(bench.chain, [("e", 10, 4)], 0)
    while not bench.values:
        bench.chain.continue_due()
    assert bench.chain.has_due_work and len(bench.values) == 1
    assert restore()
    whole = [("a", 0, 10, 1), ("b", 0, 10, 1), ("c", 0, 10, 1), ("d", 0, 10, 3)]
    assert sorted(shown(bench.values)) == whole

    now[0] += 20_000
    bench.chain.tick()
    while bench.chain.has_due_work:
        bench.chain.continue_due()

    assert sorted(shown(bench.values)) == [*whole, ("e", 10, 20, 4)]


# ---------------------------------------------------------------- sessions


def test_a_row_between_two_sessions_makes_them_one() -> None:
    given = sales(("a", 0, 1), ("a", 6, 2), ("a", 3, 4), ("z", 100, 0))

    out = run_local(flow(lambda s: summed(s.window(session(gap=0.004))), watermarks=bounded(0.01)), {"source": given})

    assert shown(out["sink"]) == [("a", 0, 10, 7)]


def test_a_session_that_a_late_row_opens_again_has_a_result_at_its_new_end() -> None:
    """Its first one was over at that very moment; and one that is over a moment later is no late one."""
    pipeline = flow(lambda s: summed(s.window(session(gap=0.004), lateness=1)))
    given = sales(("a", 1, 1), ("b", 5, 1), ("a", 2, 5), ("c", 2, 7), ("b", 100, 1))

    found = shown(run_local(pipeline, {"source": given}, batch_size=1)["sink"])

    assert [each for each in found if each[0] != "b"] == [("a", 1, 5, 1), ("a", 1, 6, 6), ("c", 2, 6, 7)]


def test_of_two_sessions_the_one_that_is_over_is_forgotten() -> None:
    given = sales(("a", 1, 1), ("a", 8, 2), ("b", 16, 1), ("a", 3, 5), ("b", 100, 1))
    pipeline = flow(lambda s: summed(s.window(session(gap=0.004))), watermarks=bounded(0.010))

    found = shown(run_local(pipeline, {"source": given}, batch_size=1)["sink"])

    assert [each for each in found if each[0] == "a"] == [("a", 1, 5, 1), ("a", 3, 7, 5), ("a", 8, 12, 2)]


def test_a_session_is_kept_for_its_lateness_and_no_longer(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(lambda s: summed(s.window(session(gap=0.004), lateness=0.020))).plan(), tmp_path, closing)
    push(bench.open(), [("a", 3, 1), ("b", 20, 1)], 0)
    assert "a" in left(bench)

    push(bench.chain, [("b", 100, 1)], 0)

    assert left(bench) == {"b"}


def test_a_session_that_grows_costs_no_timer_a_row(tmp_path: Path, closing: ExitStack) -> None:
    bench = Bench(flow(lambda s: summed(s.window(session(gap=0.004)))).plan(), tmp_path, closing)
    bench.open()
    for at in range(3, 9):
        push(bench.chain, [("a", at, 1)], 0, first=at)
    (handle,) = [handle for handle in bench.checkpoint() if handle.operator == "sums"]

    assert list(_keys(bench, handle, "event-timers")) == ["a"]


def test_rows_as_far_apart_as_the_gap_are_in_two_sessions() -> None:
    given = sales(("a", 0, 1), ("a", 4, 2), ("z", 100, 0))

    out = run_local(flow(lambda s: summed(s.window(session(gap=0.004)))), {"source": given})

    assert shown(out["sink"]) == [("a", 0, 4, 1), ("a", 4, 8, 2)]


def test_a_gap_of_years_is_no_harm() -> None:
    given = sales(("a", 0, 1), ("a", 10**15, 2), ("z", 10**17, 0))

    out = run_local(flow(lambda s: summed(s.window(session(gap=3_000_000_000)))), {"source": given})

    assert [value for *_, value in shown(out["sink"])] == [1, 2]


# ---------------------------------------------------------------- what the user's functions do


class Order(pydantic.BaseModel):
    user: str
    amount: int


def test_values_reduce_and_keep_their_type_on_their_way() -> None:
    def larger(a: Order, b: Order) -> Order:
        return max(a, b, key=lambda order: order.amount)

    pipeline = Pipeline("windows")
    orders: Stream[Order] = pipeline.source(ListSource([]), name="source")
    timed = orders.with_timestamps(watermarks=monotonic()).key_by(lambda o: (o.user, 7), values=Order)
    largest = timed.window(tumbling(seconds=0.010)).reduce(larger, name="largest")
    again = largest.key_by(lambda found: found.key[0])
    again.reduce(lambda a, b: b, name="last").sink(MemorySink(), name="sink")
    given = [TimestampedValue(Order(user="ann", amount=n), n) for n in (1, 5, 3, 12)]

    out = run_local(pipeline, {"source": given})

    assert out["sink"] == [Windowed(("ann", 7), Window(0, 10), Order(user="ann", amount=5))]


@pytest.mark.parametrize("kind", ["tumbling", "offset", "early", "session"])
def test_a_row_on_which_a_function_fails_is_refused_and_leaves_nothing(kind: str) -> None:
    def add(total: int, row: Row) -> int:
        return total + 100 // row[2]

    pipeline = flow(
        lambda s: s.window(KINDS[kind]).fold(name="sums", init=lambda: 0, step=add, merge=lambda a, b: a + b),
        on_error=DeadLetters(MemorySink()),
    )

    out = run_local(pipeline, {"source": sales(("a", 1, 0), ("a", 2, 50), ("b", 3, 0), ("z", 50, 1))})

    assert {(key, value) for key, _, _, value in shown(out["sink"])} == {("a", 2)}
    assert len(out["source-dead-letters"]) == 2


@pytest.mark.parametrize(("kind", "last"), [("tumbling", 9), ("early", 4), ("sliding", 1), ("session", 4)])
def test_a_function_that_fails_on_a_result_stops_the_job_and_the_error_says_where(kind: str, last: int) -> None:
    def result(key: str, window: Window, total: int) -> int:
        raise ValueError("no")

    pipeline = flow(
        lambda s: s.window(KINDS[kind]).fold(
            name="sums", init=lambda: 0, step=lambda total, row: total + row[2], merge=int.__add__, emit=result
        ),
    )

    with pytest.raises(PoisonRecord, match=rf"timers of sums, key 'a', time {last}.*no"):
        run_local(pipeline, {"source": sales(("a", 1, 1), ("z", 50, 1))})


@pytest.mark.parametrize("kind", ["tumbling", "early"])
@pytest.mark.parametrize(("lateness", "allowed"), [(0, ""), (0.002, " and 0.002 s more")])
def test_a_late_row_is_told_how_late_it_may_be(kind: str, lateness: float, allowed: str) -> None:
    pipeline = flow(lambda s: summed(s.window(KINDS[kind], lateness=lateness)))

    with pytest.raises(
        PoisonRecord, match=rf"the row's event time is 5, .* the end of its window, 10{allowed}\. To keep such rows"
    ):
        run_local(pipeline, {"source": sales(("a", 1, 1), ("z", 50, 1), ("a", 5, 1))}, batch_size=1)


@pytest.mark.parametrize("parts", [1, 2])
def test_parts_that_nobody_can_put_together_are_a_bug_of_ours(parts: int, tmp_path: Path) -> None:
    """The plan has seen to it; a result of one part only would be wrong."""
    plan = flow(lambda s: summed(s.window(KINDS["early"]))).plan()
    nodes = [
        replace(node, contents=replace(node.contents, merge=None)) if isinstance(node, WindowNode) else node
        for node in plan.nodes
    ]
    given = [("a", 1, 1), ("a", 6, 2)][:parts]
    with ExitStack() as closing:
        bench = Bench(Plan(plan.name, tuple(nodes), plan.where), tmp_path, closing)
        bench.open()
        push(bench.chain, given, 0, 0)

        with nullcontext() if parts == 1 else pytest.raises(Bug, match="cannot be put together"):
            push(bench.chain, [("z", 90, 0)], 0, parts)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_none_cannot_be_held(kind: str) -> None:
    pipeline = flow(lambda s: s.window(KINDS[kind]).reduce(lambda a, b: None, name="sums"))  # type: ignore[arg-type,return-value]

    with pytest.raises(PoisonRecord, match="the contents of a window cannot be None"):
        run_local(pipeline, {"source": sales(("a", 1, 1), ("a", 1, 1))})


@pytest.mark.parametrize("assigner", [KINDS["tumbling"], KINDS["sliding"], KINDS["session"]])
def test_what_cannot_be_stored_shows_at_the_first_row(assigner: Any) -> None:
    pipeline = flow(
        lambda s: s.window(assigner).fold(name="sums", init=set, step=lambda a, b: a | {b}, merge=lambda a, b: a | b)
    )

    with pytest.raises(PoisonRecord, match="its accumulator cannot be stored"):
        run_local(pipeline, {"source": sales(("a", 1, 1))})


# ---------------------------------------------------------------- what is refused


def test_windows_that_could_never_emit_are_refused_with_the_reason() -> None:
    pipeline = Pipeline("windows")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source")
    summed(source.key_by(lambda row: row[0]).window(tumbling(seconds=1))).sink(MemorySink(), name="sink")

    with pytest.raises(PlanError, match=r"'sums' waits for event time and would never emit(.|\n)*test_windows.py"):
        pipeline.plan()


@pytest.mark.parametrize("kind", ["early", "sliding", "session"])
def test_windows_that_are_made_of_parts_need_to_know_how_to_merge_them(kind: str) -> None:
    with pytest.raises(PlanError, match=r"needs merge=(.|\n)*test_windows.py"):
        flow(lambda s: s.window(KINDS[kind]).fold(name="sums", init=lambda: 0, step=lambda a, b: a + b[2]))


def test_a_tag_for_late_rows_that_nobody_reads_is_refused() -> None:
    with pytest.raises(PlanError, match="late"):
        flow(lambda s: summed(s.window(KINDS["tumbling"], late=LATE))).plan()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: tumbling(seconds=0), "at least one"),
        (lambda: tumbling(seconds=0.0005), "whole milliseconds"),
        (lambda: tumbling(seconds=True), "number of seconds"),
        (lambda: tumbling(seconds=float("inf")), "number of seconds"),
        (lambda: tumbling(seconds=60, early=7), "must be a proper divisor"),
        (lambda: tumbling(seconds=60, early=60), "must be a proper divisor"),
        (lambda: sliding(seconds=5, every=6), "skip the rows"),
        (lambda: days("Middle/Earth"), "unknown time zone"),
        (lambda: session(gap=-1), "at least one"),
    ],
)
def test_windows_that_make_no_sense_are_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(PlanError, match=rf"{why}(.|\n)*test_windows.py"):
        make()


@pytest.mark.parametrize("lateness", [-1, float("inf"), float("nan")])
def test_a_lateness_that_is_none_is_refused(lateness: float) -> None:
    with pytest.raises(PlanError, match="lateness= must be a number of seconds"):
        flow(lambda s: summed(s.window(KINDS["tumbling"], lateness=lateness)))


def test_explain_says_what_windows_there_are() -> None:
    text = flow(lambda s: summed(s.window(sliding(seconds=60, every=10), lateness=5))).explain()

    assert "keeps state; windows of 60 s every 10 s, and 5 s more for late rows" in text


def test_a_result_is_a_record_of_its_own_in_json() -> None:
    found = Windowed("ann", Window(0, 10), 7)

    assert msgspec.json.encode(found) == b'{"key":"ann","window":{"start":0,"end":10},"value":7}'
    assert msgspec.json.decode(msgspec.json.encode(found), type=Windowed[str, int]) == found


def test_results_of_windows_that_hold_the_same_are_streams_of_one_type() -> None:
    """Else nobody would know how to write those that a barrier finds behind a union."""
    pipeline = Pipeline("windows")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source")
    rows_ = keyed(source)
    first = rows_.window(KINDS["tumbling"]).fold(name="first", init=Order, step=lambda acc, row: acc, state=Order)
    second = rows_.window(KINDS["offset"]).fold(name="second", init=Order, step=lambda acc, row: acc, state=Order)
    other = rows_.window(KINDS["offset"]).fold(name="other", init=int, step=lambda acc, row: acc)
    found = Windowed(("ann", 7), Window(-10, 0), Order(user="ann", amount=1))

    codec = exchange_codec(first.union(second)._type)

    assert codec.decode(codec.encode([found])) == [found]
    assert first.union(other)._type is None
