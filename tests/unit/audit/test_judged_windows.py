"""Which windows an audit computes again, and why it leaves the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kafka_eos import (
    OutputTag,
    Pipeline,
    Stream,
    WatermarkStrategy,
    bounded,
    connect,
    monotonic,
    on_clock,
    on_count,
    session,
    tumbling,
)
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.audit.facts.audit_subject import Directory, Subject
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.tables.plan_cut import cut
from kafka_eos.audit.tables.windows.judgeable_windows import JudgeableWindows, judged
from kafka_eos.connectors.kafka import dead_letter
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Json
from kafka_eos.storage.epoch_ledger import LedgerEntries, LedgerEntry, StateDigest
from kafka_eos.storage.job_records import Manifest
from kafka_eos.testing import ListSource, MemorySink

Keyed = Any
LATE = OutputTag("late", str)


def words(pipeline: Pipeline, on_error: Any = "stop") -> Keyed:
    stream: Stream[str] = pipeline.source(ListSource([]), name="words", on_error=on_error)
    return stream.with_timestamps(watermarks=monotonic()).key_by(str, name="word")


def counted(keyed: Keyed, **options: Any) -> Keyed:
    return keyed.window(tumbling(seconds=1), **options).fold(name="counts", init=int, step=lambda n, word: n + 1)


def look(
    pipeline: Pipeline,
    *,
    strict: bool = True,
    events: Any = (),
    plans: Sequence[str] = (),
    committed: int = 0,
    **manifest: Any,
) -> JudgeableWindows:
    """With all sinks audited, as if each operator with state had come to the time 99 in all of its key groups.

    ``plans``: the fingerprint of the plan of each epoch. ``committed``: how many epochs are.
    """
    plan = pipeline.plan()
    stored: dict[str, Json] = {"name": "event-timers", "watermarks": [[0, 127, 99]]}
    handles = tuple(StateHandle(n.name, "memory", (0, 127), (), (stored,)) for n in plan.nodes if n.keyed)
    newest = Manifest(
        job=plan.name, epoch=1, term=1, created_at=0, plan="", max_key_groups=128, parallelism=1, states=handles,
        committables=(), sources={}, identity="0123456789ab",
    )  # fmt: skip
    sinks = tuple(Directory(sink.name, "/", "x") for sink in plan.sinks)
    done = frozenset(EpochId(Epoch(n), Term(1)) for n in range(committed + 1))
    ledger = Ledger(frozenset({plan.name}), None, None, {}, {}, done, {}, events=[{"event": "committed"}, *events])
    ledger = replace(ledger, entries=LedgerEntries(entry(n, plan) for n, plan in enumerate(plans)))
    of = Subject(plan, (), sinks, {}, (), frozenset({plan.name}))
    return judged(of, cut(plan), ledger, msgspec.structs.replace(newest, **manifest), strict=strict)


def entry(number: int, plan: str) -> LedgerEntry:
    """Of an epoch that had the state of the windows."""
    states = {"counts": (StateDigest(0, 127, "", ""),)}
    return LedgerEntry(EpochId(Epoch(number), Term(1)), 0, plan, 1, False, {}, {}, 0, {}, states)


def late_tag(pipeline: Pipeline) -> None:
    results = counted(words(pipeline), late=LATE)
    results.sink(MemorySink(), name="out")
    results.side_output(LATE).filter(lambda word: word != "a").sink(MemorySink(), name="late")


def behind_a_fold(pipeline: Pipeline) -> None:
    highest = words(pipeline).reduce(max, name="highest")
    counted(highest.key_by(str, name="again")).sink(MemorySink(), name="out")


def purging(pipeline: Pipeline) -> None:
    counted(words(pipeline), trigger=on_count(2).purging()).sink(MemorySink(), name="out")


def by_count_with_lateness(pipeline: Pipeline) -> None:
    counted(words(pipeline), trigger=on_count(2), lateness=1).sink(MemorySink(), name="out")


def by_count_and_fewer(pipeline: Pipeline) -> None:
    counted(words(pipeline), trigger=on_count(2)).filter(lambda found: found.value > 2).sink(MemorySink(), name="out")


def by_count_with_late_rows(pipeline: Pipeline) -> None:
    results = counted(words(pipeline), trigger=on_count(2), late=LATE)
    results.map(str, name="text").union(results.side_output(LATE), name="both").sink(MemorySink(), name="out")


def behind_a_trigger(pipeline: Pipeline) -> None:
    again = counted(words(pipeline), trigger=on_clock(every=1)).key_by(lambda found: found.key, name="by-key")
    again.window(session(gap=1)).reduce(lambda a, b: a, name="sessions").sink(MemorySink(), name="out")


def listed_with_lateness(pipeline: Pipeline) -> None:
    windows = words(pipeline).window(session(gap=1), lateness=1)
    windows.process(lambda key, window, found: found, name="all").sink(MemorySink(), name="out")


def test_windows_behind_windows_are_judged_with_what_the_checkpoint_tells() -> None:
    pipeline = Pipeline("counts")
    again = counted(words(pipeline)).key_by(lambda found: found.key, name="by-key")
    again.window(session(gap=1)).reduce(lambda a, b: a, name="sessions").sink(MemorySink(), name="out")

    found = look(pipeline)

    assert found.sinks == {"out"}
    assert not found.why
    assert [(each.name, each.stage, each.floors) for each in found.operators] == [
        ("counts", "word", ((0, 127, 99),)),
        ("sessions", "by-key", ((0, 127, 99),)),
    ]


@pytest.mark.parametrize(
    ("strategy", "delay"),
    [(bounded(3), 3000), (bounded(3).with_idleness(5), None), (bounded(3).with_clock(after=5), None)],
)
def test_rows_tell_which_of_them_were_behind_a_watermark_unless_silence_moves_it(
    strategy: WatermarkStrategy, delay: int | None
) -> None:
    pipeline = Pipeline("counts")
    source: Stream[str] = pipeline.source(ListSource([]), name="words")
    keyed = source.with_timestamps(watermarks=strategy).key_by(str, name="word")
    keyed.window(session(gap=1)).reduce(max, name="longest").sink(MemorySink(), name="out")

    (operator,) = look(pipeline).operators

    assert operator.clocks["words"].delay == delay


def test_how_late_rows_may_be_is_not_known_if_another_plan_has_said_so_before() -> None:
    def delay(*plans: str) -> int | None:
        pipeline = Pipeline("counts")
        counted(words(pipeline)).sink(MemorySink(), name="out")
        mine = pipeline.plan().fingerprint
        (operator,) = look(pipeline, plans=[plan or mine for plan in plans]).operators
        return operator.clocks["words"].delay

    assert delay("", "", "") == 0
    assert delay("", "another", "") is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (behind_a_fold, "it is behind both windows and the state of 'highest'"),
        (
            purging,
            "'counts' has windows with a result every 2 rows, each row in one result only, and no record shows "
            "which rows had arrived by then",
        ),
        (
            by_count_with_lateness,
            "'counts' has windows with a result every 2 rows, whose results cannot be told from those that late "
            "rows caused",
        ),
        (by_count_and_fewer, "no record shows which of its outputs are early results of 'counts'"),
        (by_count_with_late_rows, "no record shows which of its outputs are early results of 'counts'"),
        (
            behind_a_trigger,
            "'counts' has windows with a result every 1 s of the clock, and 'sessions' receives all of their results",
        ),
        (listed_with_lateness, "no output shows which rows arrived after windows of 'all' had closed"),
    ],
)
def test_what_cannot_be_judged_is_named(make: Callable[[Pipeline], None], reason: str) -> None:
    pipeline = Pipeline("counts")
    make(pipeline)

    assert look(pipeline).why["out"] == reason


def test_results_before_the_end_are_told_by_their_names() -> None:
    """Those by the clock also where rows are left out behind them: a firing of the clock is of no window's end."""
    pipeline = Pipeline("counts")
    by_word = words(pipeline)
    counted(by_word, trigger=on_count(2)).sink(MemorySink(), name="by-count")
    clocked = by_word.window(tumbling(seconds=1), trigger=on_clock(every=1)).reduce(max, name="clocked")
    clocked.filter(lambda found: found.value > "a").sink(MemorySink(), name="by-clock")

    found = look(pipeline)

    assert {each.name: each.early for each in found.operators} == {"counts": {"by-count"}, "clocked": {"by-clock"}}
    assert found.sinks == {"by-count", "by-clock"}


def test_which_results_there_are_by_count_is_known_where_rows_come_in_one_order() -> None:
    def ordered(make: Callable[[Keyed], Keyed], *plans: str) -> bool:
        pipeline = Pipeline("counts")
        make(words(pipeline)).sink(MemorySink(), name="out")
        mine = pipeline.plan().fingerprint
        (*_, operator) = look(pipeline, plans=[plan or mine for plan in plans]).operators
        return operator.ordered

    def by_count(keyed: Keyed) -> Keyed:
        return counted(keyed, trigger=on_count(2))

    def in_sessions(keyed: Keyed) -> Keyed:
        return keyed.window(session(gap=1), trigger=on_count(2)).reduce(max, name="counts")

    def behind_windows(keyed: Keyed) -> Keyed:
        longest = keyed.window(tumbling(seconds=1)).reduce(max, name="longest")
        return by_count(longest.key_by(lambda found: found.key, name="by-key"))

    assert ordered(by_count)
    assert ordered(by_count, "", "")
    assert not ordered(by_count, "", "another")
    assert not ordered(counted)
    assert not ordered(in_sessions)
    assert not ordered(behind_windows)


def joined(pipeline: Pipeline, *, late: bool = False) -> Stream[str]:
    one, other = (
        pipeline.source(ListSource([]), name=name).with_timestamps(watermarks=bounded(n)).key_by(str, name=f"by-{name}")
        for n, name in enumerate(("words", "others"), start=1)
    )
    near = connect(one, other, name="both").interval_join(
        lambda one, other: f"{one} {other}", name="near", lower=0, upper=1, late_left=LATE if late else None
    )
    near.sink(MemorySink(), name="out")
    return near


def test_a_join_is_judged_with_the_clocks_of_both_streams() -> None:
    pipeline = Pipeline("counts")
    joined(pipeline)

    found = look(pipeline)

    (operator,) = found.operators
    assert found.sinks == {"out"}
    assert (operator.name, operator.stage, operator.may_miss) == ("near", "both", False)
    assert {source: clock.delay for source, clock in operator.clocks.items()} == {"words": 1000, "others": 2000}


def test_late_rows_of_either_stream_of_a_join_must_be_told() -> None:
    pipeline = Pipeline("counts")
    joined(pipeline, late=True).side_output(LATE).filter(lambda word: word != "a").sink(MemorySink(), name="late")
    told = {"event": "late-rows", "epoch": 1, "counts": {"near": 2}}

    assert look(pipeline).sinks == {"out", "late"}
    assert look(pipeline, events=[told]).why["out"] == "rows were late for 'near', and no audited output shows which"


def test_late_rows_that_no_output_names_matter_only_if_there_were_some() -> None:
    pipeline = Pipeline("counts")
    late_tag(pipeline)
    told = {"event": "late-rows", "epoch": 1, "counts": {"counts": 2}}

    assert "out" in look(pipeline).sinks
    assert look(pipeline, events=[told]).why["out"] == (
        "rows were late for 'counts', and no audited output shows which"
    )


def test_of_an_epoch_that_the_next_start_committed_nothing_tells_whether_rows_were_late() -> None:
    pipeline = Pipeline("counts")
    late_tag(pipeline)
    told = {"event": "decided", "epoch": 1}

    assert "out" in look(pipeline, events=[told], committed=1).sinks
    assert look(pipeline, events=[told], committed=2).why["out"] == (
        "rows were late for 'counts', and no audited output shows which"
    )


def test_in_the_epoch_that_a_job_begins_with_no_row_is_late() -> None:
    pipeline = Pipeline("counts")
    late_tag(pipeline)
    begun = [{"event": "began"}, {"event": "committed", "epoch": 1}]

    assert "out" in look(pipeline, events=begun, committed=1).sinks


def test_dead_letters_name_late_rows() -> None:
    pipeline = Pipeline("counts")
    counted(words(pipeline, dead_letter("letters"))).sink(MemorySink(), name="out")
    told = {"event": "late-rows", "epoch": 1, "counts": {"counts": 2}}

    (operator,) = look(pipeline, events=[told]).operators

    assert operator.letters == {"words-dead-letters"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"states": ()}, "the last checkpoint does not show the watermark of 'counts'"),
        ({"in_flight": (InFlightRows("word", {}, (), False),)}, "the last checkpoint contains in-flight rows"),
        ({"strict": False}, 'with checkpoint_mode="at-least-once" a row may be in a window twice'),
    ],
)
def test_without_sound_ground_nothing_is_judged(given: Any, reason: str) -> None:
    pipeline = Pipeline("counts")
    counted(words(pipeline)).sink(MemorySink(), name="out")

    found = look(pipeline, **given)

    assert not found.operators
    assert found.why["out"].startswith(reason)
