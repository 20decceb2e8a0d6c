"""What a job says of its event times, while it runs and when it ends."""

from __future__ import annotations

import pytest

from kafka_eos import Pipeline, WatermarkStrategy, monotonic
from kafka_eos.abc.source import Source
from kafka_eos.api.run import describe_event_time
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.coordination.time_unit_check import TimeUnitObserver
from kafka_eos.plan import Plan
from kafka_eos.testing import MemorySink

NOW = 1_795_648_000_123


@pytest.mark.parametrize(("time", "unit"), [(NOW // 1000, "seconds"), (NOW * 1000, "microseconds")])
def test_times_of_another_unit_are_remarked_once_by_operator(time: int, unit: str) -> None:
    said = list[str]()
    observe = TimeUnitObserver(said.append)
    times = {"in-timestamps": {"in/0": time, "in/1": time + 1}, "other-timestamps": {"other/0": NOW}}
    observe("aborted", {"watermarks": times})
    assert not said

    observe("decided", {"watermarks": times})
    observe("decided", {"watermarks": {"in-timestamps": {"in/0": time + 2}}})

    (text,) = said
    assert text.startswith(
        f"the times of 'in-timestamps' look like {unit} since 1970, but event times are milliseconds"
    )


@pytest.mark.parametrize("time", [-1, 0, 1, 86_400_000, 999_999_999, 4_200_000_000, -NOW, NOW, 4_102_444_800_000])
def test_no_time_that_may_be_meant_is_remarked(time: int) -> None:
    said = list[str]()

    TimeUnitObserver(said.append)("decided", {"watermarks": {"in-timestamps": {"in/0": time}}})

    assert not said


def plan(source: Source[str], watermarks: WatermarkStrategy) -> Plan:
    pipeline = Pipeline("times")
    pipeline.source(source, name="in").with_timestamps(watermarks=watermarks).sink(MemorySink(), name="out")
    return pipeline.plan()


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"in/0": NOW, "in/1": NOW + 5000}, "2026-11-25T23:06:40Z"),
        ({"in/0": NOW, "in/1": NOW * 1_000_000}, "2026-11-25T23:06:40Z"),
        ({"in/0": NOW * 1000, "in/1": NOW * 1000}, "1795648000123000 ms since 1970"),
        (
            {"in/0": NOW},
            "none, because in/1 has had no records yet (watermarks=….with_idleness(seconds) would not wait)",
        ),
        (
            {},
            "none, because in/0 and 1 more have had no records yet "
            "(watermarks=….with_idleness(seconds) would not wait)",
        ),
    ],
)
def test_the_end_of_a_run_tells_how_far_event_time_is_or_what_it_waits_for(known: dict[str, int], said: str) -> None:
    times = {"in-timestamps": known} if known else {}

    told = describe_event_time(plan(KafkaSource("in", value=str), monotonic()), times, {"in": ["in/0", "in/1"]}, {})

    assert told == f"; watermark of in: {said}"


@pytest.mark.parametrize(
    ("source", "watermarks"),
    [
        (KafkaSource("in", value=str), monotonic().with_idleness(1)),
        (KafkaSource("in", value=str, until="latest"), monotonic()),
    ],
)
def test_a_silent_split_that_nobody_waits_for_is_not_named(
    source: KafkaSource[str], watermarks: WatermarkStrategy
) -> None:
    told = describe_event_time(plan(source, watermarks), {"in-timestamps": {"in/0": NOW}}, {"in": ["in/0", "in/1"]}, {})

    assert told == "; watermark of in: 2026-11-25T23:06:40Z"


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ({"watermark": NOW, "waits_for": "in/1"}, "2026-11-25T23:06:40Z"),
        ({"watermark": NOW, "waits_for": None}, "2026-11-25T23:06:40Z"),
        (
            {"watermark": None, "waits_for": "in/1"},
            "none, because it waits for in/1, which had no records yet (the run ended before the partition "
            "counted as idle; results that wait for it stay in the checkpoint, and a run without "
            "--until-caught-up emits them)",
        ),
    ],
)
def test_the_watermark_of_the_engine_is_told_and_not_that_of_some_splits(at: dict[str, object], said: str) -> None:
    """A run that ends before a split is idle has emitted nothing: splits with records do not show that."""
    known = {"in-timestamps": {"in/0": NOW}}
    strategy = monotonic().with_idleness(60)

    told = describe_event_time(
        plan(KafkaSource("in", value=str), strategy), known, {"in": ["in/0", "in/1"]}, {"in-timestamps": at}
    )

    assert told == f"; watermark of in: {said}"


def test_a_plan_without_event_time_tells_nothing_of_it() -> None:
    pipeline = Pipeline("times")
    pipeline.source(KafkaSource("in", value=str), name="in").sink(MemorySink(), name="out")

    assert describe_event_time(pipeline.plan(), {}, {"in": ["in/0"]}, {}) == ""
