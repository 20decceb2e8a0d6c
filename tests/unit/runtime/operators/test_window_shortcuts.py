"""``sessionize``, ``top_n`` and ``rate``: windows under the names that people look for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from kafka_eos import (
    OutputTag,
    Pipeline,
    PlanError,
    Stream,
    Window,
    Windowed,
    agg,
    bounded,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local


class Click(Struct, frozen=True):
    user: str
    page: str
    seconds: int = 0


LATE = OutputTag("late", Click)
CLICKS = [("ann", "/a"), ("ann", "/c"), ("ann", "/b"), ("bob", "/x")]
SECONDS = [10, 12, 11, 13]
END = TimestampedValue(Click("end", "/"), 1_000_000)


def keyed(pipeline: Pipeline) -> Any:
    clicks: Stream[Click] = pipeline.source(KafkaSource("clicks", value=Click), name="clicks")
    return clicks.with_timestamps(watermarks=bounded(5)).key_by(lambda click: click.user, name="by-user")


def ran(pipeline: Pipeline, stream: Any, *more: TimestampedValue) -> list[Any]:
    stream.sink(MemorySink(), name="out")
    told = zip(CLICKS, SECONDS, strict=True)
    clicks = [TimestampedValue(Click(user, page, second), second * 1000) for (user, page), second in told]
    return run_local(pipeline, {"clicks": [*clicks, *more, END]}, batch_size=1)["out"]


def test_a_session_is_a_list_in_the_order_of_event_time() -> None:
    pipeline = Pipeline("p")
    ann = [Click("ann", "/a", 10), Click("ann", "/b", 11), Click("ann", "/c", 12)]

    assert ran(pipeline, keyed(pipeline).sessionize(gap=4, name="sessions")) == [
        Windowed("ann", Window(10_000, 16_000), ann),
        Windowed("bob", Window(13_000, 17_000), [Click("bob", "/x", 13)]),
    ]


def test_a_click_that_is_late_for_its_session_has_a_side_output() -> None:
    pipeline = Pipeline("p")
    sessions = keyed(pipeline).sessionize(gap=4, name="sessions", late=LATE)
    sessions.side_output(LATE).sink(MemorySink(), name="late")
    sessions.sink(MemorySink(), name="out")
    late = TimestampedValue(Click("bob", "/late"), 1_000)

    out = run_local(pipeline, {"clicks": [TimestampedValue(Click("ann", "/"), 60_000), late, END]}, batch_size=1)

    assert out["late"] == [late.value]


def test_the_greatest_of_each_key_and_window_come_first() -> None:
    pipeline = Pipeline("p")
    best = keyed(pipeline).window(tumbling(seconds=12)).top_n(2, by=lambda click: click.page, name="best")

    assert [
        (found.key, found.window.start, [click.page for click in found.value]) for found in ran(pipeline, best)
    ] == [
        ("ann", 0, ["/b", "/a"]),
        ("ann", 12_000, ["/c"]),
        ("bob", 12_000, ["/x"]),
    ]


def test_a_rate_is_by_the_second() -> None:
    pipeline = Pipeline("p")
    rates = keyed(pipeline).window(sliding(seconds=4, every=2)).rate(name="rate")

    assert [(found.key, found.window.start, found.value) for found in ran(pipeline, rates)] == [
        ("ann", 8_000, 0.5),
        ("ann", 10_000, 0.75),
        ("bob", 10_000, 0.25),
        ("ann", 12_000, 0.25),
        ("bob", 12_000, 0.25),
    ]


@pytest.mark.parametrize("verb", ["sessions", "best", "rate"])
def test_results_come_back_as_they_were_where_they_are_sent(verb: str) -> None:
    pipeline = Pipeline("p")
    by_user = keyed(pipeline)
    stream = {
        "sessions": lambda: by_user.sessionize(gap=4, name="made"),
        "best": lambda: by_user.window(session(gap=4)).top_n(2, by=lambda click: click.page, name="made"),
        "rate": lambda: by_user.window(session(gap=4)).rate(name="made"),
    }[verb]()
    stream.rebalance(name="spread").sink(MemorySink(), name="unused")
    wire: Any = next(node.exchange_codec for node in pipeline.plan().nodes if node.name == "spread")
    found = ran(pipeline, stream)

    assert len(found) == 2
    assert wire.decode(wire.encode(found)) == found


def test_a_result_of_a_window_may_be_kept_by_an_aggregate_that_is_told_its_type() -> None:
    pipeline = Pipeline("p")
    rates = keyed(pipeline).window(tumbling(seconds=12)).rate(name="rate").key_by(lambda found: found.key, name="again")
    highest = rates.aggregate(agg.max_by(lambda found: found.value, state=Windowed[str, float]), name="highest")

    assert ran(pipeline, highest)[-1].max_by == Windowed("bob", Window(12_000, 24_000), 1 / 12)


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        (lambda keyed: keyed.sessionize(gap=0), "gap"),
        (lambda keyed: keyed.window(tumbling(seconds=60)).top_n(0, by=len), "n must be at least 1"),
        (lambda keyed: keyed.window(rows(3)).rate(), "these windows have no duration"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_users_line(verb: Any, says: str) -> None:
    with pytest.raises(PlanError, match=rf"{says}(?s:.)*test_window_shortcuts.py"):
        verb(keyed(Pipeline("p")))


def test_a_stream_without_keys_has_no_sessions() -> None:
    stream: Any = Pipeline("p").source(ListSource([]), name="in")

    with pytest.raises(PlanError, match=r"put .key_by\(...\) before it"):
        stream.sessionize(gap=4)
