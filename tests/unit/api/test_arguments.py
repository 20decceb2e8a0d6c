"""What verbs are given beside functions: a wrong one is refused with the plan, and the error says what is wanted."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos import (
    OutputTag,
    Pattern,
    Pipeline,
    PlanError,
    Ttl,
    agg,
    bounded,
    breaker,
    connect,
    monotonic,
    retries,
    tumbling,
)
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.testing import ListSource, MemorySink

TAG = OutputTag("late", int)


class Flow:
    """A pipeline under construction."""

    def __init__(self) -> None:
        self.pipeline = Pipeline("p")
        self.plain: Any = self.pipeline.source(ListSource([1]), name="in")
        self.timed: Any = self.plain.with_timestamps(watermarks=monotonic())
        self.keyed: Any = self.timed.key_by(_text)
        self.table: Any = self.pipeline.table(KafkaSource.records("t", key=str, value=int), name="t")


def _text(value: int) -> str:
    return str(value)


def _number(value: int) -> int:
    return value


def _windows(flow: Flow) -> Any:
    return flow.keyed.window(tumbling(seconds=5))


WRONG: dict[str, tuple[Callable[[Flow], Any], str]] = {
    "watermarks of another type": (lambda f: f.plain.with_timestamps(watermarks=60), r"bounded\(seconds\).*not 60"),
    "watermarks without brackets": (lambda f: f.plain.with_timestamps(watermarks=bounded), "brackets missing"),
    "watermarks of a table": (lambda f: f.table.with_timestamps(watermarks="60 s"), "not '60 s'"),
    "windows without brackets": (lambda f: f.keyed.window(tumbling), "window must be tumbling.*brackets missing"),
    "windows of a number": (lambda f: f.keyed.window(300), "window must be tumbling.*not 300"),
    "lateness of another type": (
        lambda f: f.keyed.window(tumbling(seconds=5), lateness="1"),
        "lateness= must be a number",
    ),
    "negative lateness": (lambda f: f.keyed.window(tumbling(seconds=5), lateness=-1), "0 or more .got -1"),
    "late rows of windows": (lambda f: f.keyed.window(tumbling(seconds=5), late="late"), "late= is a side output"),
    "late rows of deduplicate": (lambda f: f.keyed.deduplicate(within=5, late="late"), "late= is a side output"),
    "deduplicate within a text": (lambda f: f.keyed.deduplicate(within="1h"), "within= must be a number of seconds"),
    "late rows of patterns": (
        lambda f: f.keyed.match(Pattern[int].begin("a", bool).within(seconds=1), max, late="late"),
        "late= is a side output",
    ),
    "late rows of an as-of join": (
        lambda f: f.keyed.join_as_of(f.table.with_timestamps(watermarks=monotonic()), max, late="late"),
        "late= is a side output",
    ),
    "failed requests": (lambda f: f.plain.async_map(_text, failed="failed"), "failed= is a side output"),
    "requests of keys without a join": (lambda f: f.keyed.async_map(_text), r"fn\(key\) and join\(value, response\)"),
    "requests of keys that keep nothing": (lambda f: f.keyed.async_map(_text, max), r"cache=Ttl\(seconds\)"),
    "time to live of a fold": (lambda f: f.keyed.fold(init=int, step=max, ttl=5), r"Ttl\(seconds\) \(got 5"),
    "time to live of reduce": (lambda f: f.keyed.reduce(max, ttl=5), r"Ttl\(seconds\) \(got 5"),
    "time to live of distinct": (lambda f: f.keyed.distinct(ttl=5), r"Ttl\(seconds\) \(got 5"),
    "an aggregate called key": (lambda f: f.keyed.aggregate(key=agg.count()), "key= name fields .* another name"),
    "an aggregate called start": (
        lambda f: _windows(f).aggregate(start=agg.sum(int)),
        "key=, start=, end= name fields .* another name",
    ),
    "an aggregate called as the key is": (
        lambda f: f.keyed.aggregate(user=agg.count(), key="user"),
        r"two fields of a row are named 'user'; rename this one: other=count\(",
    ),
    "two streams without keys": (lambda f: connect(f.timed, f.plain), r"Put \.key_by\(\.\.\.\) behind both"),
    "what is broadcast first": (lambda f: connect(f.plain.broadcast(), f.timed), "must be the argument of connect"),
    "a table as a stream": (lambda f: connect(f.keyed, f.table), r"to all workers; keyed\.join\(table, fn\)"),
    "keys of two types": (
        lambda f: connect(f.keyed, f.timed.key_by(_number)),
        "are str, but those of .* int, so no keys",
    ),
    "a table with event times": (
        lambda f: f.keyed.left_join(f.table.with_timestamps(watermarks=monotonic()), max),
        "left_join_as_of looks it up",
    ),
}


@pytest.mark.parametrize(("build", "says"), WRONG.values(), ids=WRONG)
def test_what_a_verb_cannot_take_is_refused_with_the_users_line(build: Callable[[Flow], Any], says: str) -> None:
    with pytest.raises(PlanError, match=rf"{says}(?s:.)*test_arguments.py"):
        build(Flow())


@pytest.mark.parametrize(
    "given", [{"clock": "evnt"}, {"refresh": "read"}, {"seconds": "5"}, {"seconds": math.inf}], ids=str
)
def test_a_time_to_live_is_one_of_those_that_there_are(given: dict[str, Any]) -> None:
    with pytest.raises(
        PlanError, match=rf"time to live .*(not|got) {next(iter(given.values()))!r}(?s:.)*test_arguments.py"
    ):
        Ttl(**{"seconds": 5, **given})


@pytest.mark.parametrize(
    "make",
    [
        bounded,
        monotonic().with_idleness,
        lambda s: monotonic().with_clock(after=s),
        lambda s: monotonic().with_alignment(max_drift=s),
    ],
)
def test_a_text_is_no_number_of_seconds(make: Any) -> None:
    with pytest.raises(PlanError, match=r" 0.*'60'(?s:.)*test_arguments.py:\d+: "):
        make("60")


@pytest.mark.parametrize(
    "make",
    [
        lambda: monotonic().with_alignment(max_drift=1, group=""),
        lambda: retries(0),
        lambda: breaker(0, pause=1),
        lambda: Pattern[int].begin("", bool),
        lambda: Pattern[int].begin("a", bool).next("a", bool),
        lambda: Pattern[int].begin("a", bool).followed_by("b", None),  # type: ignore[arg-type]
        lambda: Pattern[int].begin("a", bool).times(0),
        lambda: Pattern[int].begin("a", bool).within(seconds=0),
    ],
)
def test_what_cannot_be_is_refused_with_the_users_line_once(make: Any) -> None:
    with pytest.raises(PlanError) as refused:
        make()

    assert str(refused.value).count("test_arguments.py") == 1


def test_keys_of_one_type_and_of_an_unknown_one_are_connected() -> None:
    flow = Flow()

    connect(flow.keyed, flow.timed.key_by(lambda value: value))
    connect(flow.keyed, flow.timed.key_by(_text))


def test_a_name_that_is_no_text_is_refused() -> None:
    flow = Flow()
    flow.plain.map(str, name=5).sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match="the map name 5 is not usable as a name"):
        flow.pipeline.plan()
