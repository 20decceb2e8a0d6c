"""Windows of rows: the last so many of a key, with and without a time to live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import Pipeline, Stream, Ttl, Window, agg, global_, rows
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.codecs.operator_state.stored_codecs import get_plain_codec
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.runtime.operators.windows.count_windows import RowCountWindowOperator
from kafka_eos.testing import ListSource, MemorySink, run_local
from tests.examples import examples
from tests.unit.runtime.operators.conftest import Bench as Line
from tests.unit.runtime.operators.test_event_time import Bench
from tests.unit.runtime.operators.test_expiring_state import HOUR, letter, number, stored
from tests.unit.runtime.operators.test_windows import KINDS, Row, flow, left, listed, push, shown, summed


def adding(acc: int, text: str) -> int:
    return acc + number(text)


def ended(key: str, window: Window, acc: int) -> tuple[str, int, int, int]:
    return key, window.start, window.end, acc


def windows(assigner: Any, ttl: Ttl | None) -> Any:
    """Sums, with the window that each is of."""

    def verbs(stream: Any) -> Any:
        by_letter = stream.key_by(letter).window(assigner, ttl=ttl)
        return by_letter.fold(name="sums", init=int, step=adding, merge=int.__add__, emit=ended)

    return verbs


@pytest.mark.parametrize(("size", "every"), [(1, 1), (3, 3), (4, 2), (3, 2), (5, 1), (None, 2)])
@pytest.mark.parametrize("verb", [summed, listed])
@given(keys=st.lists(st.sampled_from("ab"), max_size=25), batch=st.integers(1, 7), restart=st.integers(0, 5))
@examples(25)
def test_windows_of_rows_hold_the_last_so_many(
    size: int | None, every: int, verb: Any, keys: list[str], batch: int, restart: int
) -> None:
    assigner = global_(every=every) if size is None else rows(size, every=every)
    given_: list[Row] = [(key, 0, 1 << n) for n, key in enumerate(keys)]
    pipeline = Pipeline("windows")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source")
    verb(source.key_by(lambda row: row[0], values=Row).window(assigner)).sink(MemorySink(), name="sink")
    with TemporaryDirectory() as directory, ExitStack() as closing:
        bench = Bench(pipeline.plan(), Path(directory), closing)
        bench.open()
        for number, at in enumerate(range(0, len(given_), batch)):
            push(bench.chain, given_[at : at + batch], 0, at)
            if number == restart:
                bench.open(bench.checkpoint())
        found = shown(bench.values)
        texts = [
            parse_provenance(text) for out in bench.out for text in format_provenance(out, "job", Term(1), Epoch(1))
        ]
        remains = left(bench)

    expected, held = [], set[str]()
    mine: dict[str, list[int]] = defaultdict(list)
    for key, _, amount in given_:
        mine[key].append(amount)
        held.add(key)
        if len(mine[key]) % every == 0:
            window = mine[key][-size:] if size else list(mine[key])
            end = size if size == every else len(mine[key])
            expected.append((key, end - len(window), end, sum(window) if verb is summed else window))
            held -= {key} if size == every else set()
    assert found == expected
    assert [text.topic for text in texts] == ["source"] * len(texts)
    assert remains == held


def test_a_row_that_is_refused_does_not_count() -> None:
    def step(total: int, row: Row) -> int:
        return total + 100 // row[2]

    pipeline = Pipeline("windows")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source", on_error=DeadLetters(MemorySink()))
    windows = source.key_by(lambda row: row[0]).window(rows(2))
    windows.fold(name="sums", init=lambda: 0, step=step).sink(MemorySink(), name="sink")

    out = run_local(pipeline, {"source": [("a", 0, 50), ("a", 0, 0), ("a", 0, 100)]})

    assert shown(out["sink"]) == [("a", 0, 2, 3)]
    assert len(out["source-dead-letters"]) == 1


@pytest.mark.parametrize("make", [lambda: rows(0), lambda: rows(2, every=3), lambda: rows(True), lambda: global_()])
def test_counts_that_make_no_sense_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(PlanError, match=r"(count must be at least 1|never ends)(.|\n)*test_row_windows.py"):
        make()


def test_windows_without_time_have_no_late_rows() -> None:
    with pytest.raises(PlanError, match=r"these windows do not use time(.|\n)*test_row_windows.py"):
        flow(lambda s: summed(s.window(rows(3), lateness=5)))


@pytest.mark.parametrize(
    ("assigner", "ttl", "why"),
    [(KINDS["tumbling"], Ttl(60), "event time ends them"), (rows(3), 60, r"ttl= must be a Ttl\(seconds\)")],
)
def test_a_time_to_live_is_for_windows_that_do_not_end(assigner: Any, ttl: Any, why: str) -> None:
    with pytest.raises(PlanError, match=rf"{why}(.|\n)*test_row_windows.py"):
        flow(lambda s: summed(s.window(assigner, ttl=ttl)))


def test_a_result_comes_from_the_row_that_fills_the_window_whatever_was_refused_before(bench: Any) -> None:
    out = bench.push(bench.line(windows(rows(2), None)), ["a1", "ax", "a2", "ay", "a4", "a8"])

    assert list(zip(out.values, out.origin_rows, strict=True)) == [(("a", 0, 2, 3), 2), (("a", 0, 2, 12), 5)]


def test_what_a_window_of_rows_holds_is_copied_for_its_result_and_not_for_each_row(bench: Any) -> None:
    copied: list[int] = []

    def merge(one: int, other: int) -> int:
        copied.append(one)
        return one + other

    line = bench.line(lambda s: s.key_by(letter).window(rows(9)).fold(name="sums", init=int, step=adding, merge=merge))

    assert [found.value for found in bench.push(line, ["a1"] * 18).values] == [9, 9]
    assert copied == [8, 8]


def test_none_cannot_be_held_by_a_window_of_rows(bench: Any) -> None:
    line = bench.line(lambda s: s.key_by(letter).window(rows(3)).reduce(lambda a, b: None, name="sums", state=str))
    bench.push(line, ["a1", "a2"])

    assert [error for _, error in bench.refused] == ["UnfitValue: the contents of a window cannot be None"]
    assert stored(bench, "sums", "windows") == 1


@pytest.mark.parametrize("ttl", [None, Ttl(3600)])
def test_a_row_whose_result_is_refused_is_in_no_window(bench: Any, ttl: Ttl | None) -> None:
    def even(key: str, window: Window, texts: list[str]) -> list[list[str]]:
        if sum(map(number, texts)) % 2:
            raise ValueError("odd")
        return [texts]

    line = bench.line(lambda s: s.key_by(letter).window(rows(2), ttl=ttl).process(even, name="sums", state=str))

    assert bench.push(line, ["a1", "a2", "a4", "a5", "a6"]).values == [["a1", "a5"]]
    assert stored(bench, "sums", "windows") == 1


def test_an_aggregate_of_event_time_goes_by_it_in_windows_of_rows_too() -> None:
    pipeline = flow(lambda s: s.window(rows(3)).aggregate(agg.last(lambda row: row[2]), name="rows"))

    (row,) = run_local(pipeline, {"source": [("a", 5, 1), ("a", 9, 2), ("a", 7, 4)]})["sink"]

    assert row.last == 2


@pytest.mark.parametrize("ttl", [None, Ttl(60)])
def test_windows_of_rows_declare_what_they_store(ttl: Ttl | None) -> None:
    node: Any = flow(lambda s: summed(s.window(rows(3), ttl=ttl))).plan().node("sums")

    assert [(state.name, state.ttl) for state in RowCountWindowOperator(node).states()] == [("windows", ttl)]


@pytest.mark.parametrize("ttl", [None, Ttl(3600)])
def test_what_a_global_window_holds_is_stored_under_the_first_row(bench: Any, ttl: Ttl | None) -> None:
    bench.push(bench.line(windows(global_(every=2), ttl)), ["a1", "a2", "a4"])
    held = dict(bench.backends["sums"]._open["windows"].items())

    assert held == {"a": (3, {0: 7})}


@pytest.mark.parametrize("assigner", [rows(2), global_(every=2)])
def test_what_cannot_be_stored_of_windows_of_rows_shows_at_the_first_row(assigner: Any) -> None:
    pipeline = flow(lambda s: s.window(assigner).fold(name="sums", init=set, step=lambda a, b: a | {b}))

    with pytest.raises(PoisonRecord, match="its accumulator cannot be stored"):
        run_local(pipeline, {"source": [("a", 1, 1)]})


def test_an_aggregate_of_event_time_needs_it_in_windows_of_rows_too() -> None:
    pipeline = Pipeline("windows")
    source: Stream[Row] = pipeline.source(ListSource([]), name="source")
    windows = source.key_by(lambda row: row[0]).window(rows(3))
    windows.aggregate(agg.last(lambda row: row[2])).sink(MemorySink(), name="sink")

    with pytest.raises(PlanError, match="orders rows by event time"):
        pipeline.plan()


# ---------------------------------------------------------------- with a time to live


@pytest.mark.parametrize(
    ("assigner", "before", "after"),
    [
        (rows(3), [("a", 0, 3, 7)], [("a", 0, 3, 0o70)]),
        (rows(3, every=1), [("a", 0, 1, 1), ("a", 0, 2, 3), ("a", 0, 3, 7)], [
            ("a", 0, 1, 0o10), ("a", 0, 2, 0o30), ("a", 0, 3, 0o70),
        ]),
        (global_(every=3), [("a", 0, 3, 7)], [("a", 0, 3, 0o70)]),
    ],
)  # fmt: skip
def test_windows_of_rows_of_a_key_that_has_expired_begin_anew(
    bench: Any, assigner: Any, before: Any, after: Any
) -> None:
    line = bench.line(windows(assigner, Ttl(3600)))
    alive = bench.push(line, ["a1", "a2", "a4"])
    bench.push(line, ["a8", "a16"] if assigner == rows(3) else [])
    bench.now += HOUR

    assert alive.values == before
    assert bench.push(line, ["a8", "a16", "a32"]).values == after


def test_rows_of_a_window_expire_together_or_not_at_all(bench: Any) -> None:
    """The first row is older than the time to live, but its key is not."""
    line = bench.line(windows(rows(4, every=2), Ttl(3600)))
    found = []
    for text in ("a1", "a2", "a4", "a8"):
        found += bench.push(line, [text]).values
        bench.now += HOUR - 1

    assert found == [("a", 0, 2, 3), ("a", 0, 4, 15)]


def test_in_event_time_windows_of_rows_end_by_the_times_of_records(bench: Any) -> None:
    line = bench.line(windows(rows(2), Ttl(10, clock="event")))
    at = bench.now - HOUR

    out = bench.push(line, ["a1", "b1", "a2", "b2", "b4"], [at, at, at + 9_999, at + 10_000, at + 19_999])

    assert out.values == [("a", 0, 2, 3), ("b", 0, 2, 6)]


def test_windows_of_rows_that_have_expired_leave_no_row(bench: Any) -> None:
    line = bench.line(windows(rows(9, every=3), Ttl(3600)))
    bench.push(line, [f"{chr(97 + n % 26)}1" for n in range(26 * 5)])
    assert stored(bench, "sums", "windows") == 26
    bench.now += HOUR

    assert stored(bench, "sums", "windows") == 0


@pytest.mark.parametrize("refresh", ["write", "read-write"])
def test_a_row_that_is_refused_does_not_renew_its_key(bench: Any, refresh: Any) -> None:
    line = bench.line(windows(rows(3, every=1), Ttl(3600, refresh=refresh)))
    bench.push(line, ["a1"])
    bench.now += HOUR - 1
    bench.push(line, ["ax"])
    bench.now += 1

    assert bench.push(line, ["a2"]).values == [("a", 0, 1, 2)]


def test_a_full_window_leaves_no_row_with_a_time_to_live_either(bench: Any) -> None:
    bench.push(bench.line(windows(rows(2), Ttl(3600))), ["a1", "a2", "b1"])

    assert stored(bench, "sums", "windows") == 1


@pytest.mark.parametrize(("before", "after"), [(None, Ttl(3600)), (Ttl(3600), None)])
def test_windows_of_rows_go_on_when_a_time_to_live_is_given_or_taken_away(
    bench: Any, before: Ttl | None, after: Ttl | None
) -> None:
    bench.push(bench.line(windows(rows(3), before)), ["a1", "a2"])

    line = bench.line(windows(rows(3), after), [bench.snapshot("sums")])
    assert bench.push(line, ["a4", "a8"]).values == [("a", 0, 3, 7)]
    bench.now += HOUR
    assert bench.push(line, ["a16", "a32"]).values == ([("a", 0, 3, 56)] if after is None else [])


def test_what_windows_of_rows_hold_is_read_without_the_program(bench: Any) -> None:
    bench.push(bench.line(windows(rows(4, every=2), Ttl(3600))), ["a1", "a2", "a4"])
    (state,) = bench.snapshot("sums").states
    name, schema = state["value"]["name"], state["value"]["schema"]
    codec = get_plain_codec(name, schema)
    held = {"updates": 3, "accumulator": [{"first": 0, "value": 3}, {"first": 2, "value": 4}]}

    assert (name, codec.decode(codec.encode(held))) == ("counted-row-panes-msgpack", held)


@given(
    texts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8)), max_size=30),
    size=st.integers(1, 4),
    every=st.integers(1, 4),
    restart=st.integers(0, 30),
)
@examples(40)
def test_windows_of_rows_hold_rows_since_the_key_began_anew(
    texts: list[tuple[str, int]], size: int, every: int, restart: int
) -> None:
    """Each row comes so many seconds behind the one before it, of whatever key."""
    every = min(size, every)
    made: list[Any] = []
    with TemporaryDirectory() as directory, ExitStack() as closing:
        bench = Line(Path(directory), closing)
        verbs = windows(rows(size, every=every), Ttl(10))
        line = bench.line(verbs)
        for n, (key, later) in enumerate(texts):
            bench.now += later * 1000
            made += bench.push(line, [f"{key}{1 << n}"]).values
            if n == restart:
                line = bench.line(verbs, [bench.snapshot("sums")])

    expected, held, last, now = [], dict[str, list[int]](), dict[str, int](), 0
    for n, (key, later) in enumerate(texts):
        now += later
        if now - last.get(key, now) >= 10:
            held.pop(key)
        held.setdefault(key, []).append(1 << n)
        last[key] = now
        if (end := len(held[key])) % every == 0:
            expected.append((key, max(0, end - size), end, sum(held[key][-size:])))
            if every == size:
                held.pop(key)
                last.pop(key)
    assert made == expected
