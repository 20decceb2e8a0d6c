"""A duration is a number of seconds or a timedelta, wherever the DSL takes one."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kafka_eos import (
    Pattern,
    Pipeline,
    Ttl,
    bounded,
    breaker,
    connect,
    monotonic,
    on_clock,
    retries,
    session,
    sliding,
    tumbling,
)
from kafka_eos.connectors.files import Roll
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.core.durations import to_seconds
from kafka_eos.plan.retries import check_request_options
from kafka_eos.plan.window_assigners import interval
from kafka_eos.testing import AdvanceClock, ListSource, MemorySink, TimestampedValue, run_local


@pytest.mark.parametrize(
    "build",
    [
        lambda d: tumbling(seconds=d(60), offset=d(5), early=d(10)),
        lambda d: sliding(seconds=d(60), every=d(10), offset=d(5)),
        lambda d: session(gap=d(0.5)),
        lambda d: on_clock(every=d(1)),
        lambda d: interval(lower=d(-1), upper=d(2)),
        lambda d: bounded(d(3)),
        lambda d: monotonic().with_idleness(d(60)),
        lambda d: monotonic().with_clock(after=d(60)),
        lambda d: monotonic().with_alignment(max_drift=d(60)),
        lambda d: Ttl(d(60), clock="event"),
        lambda d: retries(3, first=d(0.5), most=d(8)),
        lambda d: breaker(3, pause=d(8)),
        lambda d: check_request_options(1, d(8), (), None, None),
        lambda d: Pattern.begin("one", bool).within(seconds=d(8)).limit,
        lambda d: Roll(seconds=d(60)).describe(),
        lambda d: KafkaSink("out", transaction_timeout=d(60)).describe(),
    ],
)
def test_a_timedelta_is_the_same_as_its_seconds(build: Callable[[Callable[[float], Any]], object]) -> None:
    assert build(lambda seconds: timedelta(seconds=seconds)) == build(lambda seconds: seconds)


@pytest.mark.parametrize("duration", [timedelta(hours=1), 3600])
def test_whole_seconds_of_a_timedelta_are_an_int(duration: Any) -> None:
    assert repr(to_seconds(duration)) == "3600"


def test_operations_take_timedeltas(tmp_path: Any) -> None:
    pipeline = Pipeline("p")
    minute = timedelta(minutes=1)
    events = pipeline.source(ListSource([1]), name="in").with_timestamps(watermarks=bounded(minute))
    keyed = events.key_by(str, name="keyed")
    keyed.deduplicate(within=minute, name="once").sink(MemorySink(), name="out-1")
    keyed.sessionize(gap=minute, name="sessions").sink(MemorySink(), name="out-2")
    keyed.window(tumbling(seconds=minute), lateness=minute).rate(name="rate").sink(MemorySink(), name="out-3")
    both = connect(keyed, events.key_by(str, name="again"))
    both.interval_join(lambda a, b: a, lower=-minute, upper=minute, name="near").sink(MemorySink(), name="out-4")
    events.async_map(str, timeout=minute, name="asked").sink(
        HttpSink("http://x", outbox=tmp_path / "outbox", timeout=minute), name="out-5"
    )

    found = run_local(pipeline, {"in": [TimestampedValue(1, 0), AdvanceClock(minute)]})

    assert found["out-1"] == [1]
