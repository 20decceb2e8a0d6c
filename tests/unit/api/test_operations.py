"""What every verb has in common: where its name stands, which functions it takes, and which types it knows."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest
from msgspec import Struct
from pydantic import BaseModel

from kafka_eos import (
    KeyedStream,
    OutputTag,
    Pipeline,
    PlanError,
    PoisonRecord,
    ProcessFunction,
    Stream,
    tumbling,
)
from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import JsonCodec
from kafka_eos.connectors.kafka import KafkaSource, Record
from kafka_eos.testing import ListSource, MemorySink, run_local

VERBS = [
    verb
    for kind in (Pipeline, Stream, KeyedStream)
    for verb in vars(kind).values()
    if inspect.isfunction(verb) and "name" in inspect.signature(verb).parameters and not verb.__name__.startswith("_")
]


class Order(Struct, frozen=True):
    user: str
    amount: int


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_the_name_is_a_keyword_and_the_first_one(verb: Callable[..., Any]) -> None:
    keywords = [p.name for p in inspect.signature(verb).parameters.values() if p.kind is p.KEYWORD_ONLY]

    assert keywords[0] == "name"


def test_all_verbs_are_looked_at() -> None:
    stateful = {"fold", "reduce", "aggregate", "process", "deduplicate", "distinct", "sessionize", "match"}
    stateful |= {"join", "left_join", "join_as_of", "left_join_as_of"}
    others = {
        "table",
        "map",
        "filter",
        "flat_map",
        "map_batches",
        "async_map",
        "key_by",
        "rebalance",
        "broadcast",
        "forward",
        "iterate",
        "union",
        "with_timestamps",
    }

    assert {verb.__name__ for verb in VERBS} == stateful | others | {"source", "sink"}


async def later(value: Any, *_: Any) -> Any:
    return value


async def many(value: Any, *_: Any) -> AsyncIterator[Any]:
    yield value


class Caller:
    async def __call__(self, value: Any, *_: Any) -> Any:
        return value

    async def method(self, value: Any, *_: Any) -> Any:
        return value


class Waits(ProcessFunction[str, int, int]):
    async def process(self, key: str, value: int) -> list[int]:  # type: ignore[override]
        return [value]


ASYNCHRONOUS = {
    "function": later,
    "generator": many,
    "object": Caller(),
    "method": Caller().method,
    "partial": functools.partial(later, 1),
    "partial-of-an-object": functools.partial(functools.partial(Caller()), 1),
}
VERBS_WITH_FUNCTIONS: dict[str, Callable[[Stream[Any], Any], Any]] = {
    "map": lambda stream, fn: stream.map(fn),
    "filter": lambda stream, fn: stream.filter(fn),
    "flat-map": lambda stream, fn: stream.flat_map(fn),
    "map-batches": lambda stream, fn: stream.map_batches(fn),
    "key-by": lambda stream, fn: stream.key_by(fn),
    "reduce": lambda stream, fn: stream.key_by(str).reduce(fn),
    "fold init": lambda stream, fn: stream.key_by(str).fold(init=fn, step=max),
    "fold step": lambda stream, fn: stream.key_by(str).fold(init=int, step=fn),
    "fold emit": lambda stream, fn: stream.key_by(str).fold(init=int, step=max, emit=fn),
    "fold merge": lambda stream, fn: stream.key_by(str).fold(init=int, step=max, merge=fn),
}


@pytest.mark.parametrize("fn", ASYNCHRONOUS.values(), ids=ASYNCHRONOUS)
@pytest.mark.parametrize("verb", VERBS_WITH_FUNCTIONS)
def test_what_nothing_would_await_is_refused_with_the_users_line(verb: str, fn: Any) -> None:
    stream = Pipeline("p").source(ListSource([1]), name="in")

    with pytest.raises(PlanError, match=rf"of {verb.split()[0]} is an? .*async.*(?s:.)*test_operations.py"):
        VERBS_WITH_FUNCTIONS[verb](stream, fn)


@pytest.mark.parametrize("function", [Waits, Waits()], ids=["class", "object"])
def test_a_process_function_that_waits_is_refused(function: Any) -> None:
    keyed = Pipeline("p").source(ListSource([1]), name="in").key_by(str)

    with pytest.raises(PlanError, match="process of process is a coroutine function"):
        keyed.process(function)


def generated(value: Any, *_: Any) -> Iterator[Any]:
    yield value


@pytest.mark.parametrize("fn", [5, None, b"user"])
@pytest.mark.parametrize("verb", [verb for verb in VERBS_WITH_FUNCTIONS if verb not in ("fold emit", "fold merge")])
def test_what_cannot_be_called_is_refused_with_the_users_line(verb: str, fn: Any) -> None:
    stream = Pipeline("p").source(ListSource([1]), name="in")

    with pytest.raises(PlanError, match=rf"of {verb.split()[0]} is a function, not {fn!r}(?s:.)*test_operations.py"):
        VERBS_WITH_FUNCTIONS[verb](stream, fn)


@pytest.mark.parametrize("verb", [verb for verb in VERBS_WITH_FUNCTIONS if verb not in ("flat-map", "map-batches")])
def test_a_generator_is_refused_where_one_value_is_expected(verb: str) -> None:
    stream = Pipeline("p").source(ListSource([1]), name="in")

    with pytest.raises(
        PlanError, match=rf"of {verb.split()[0]} is a generator(?s:.)*flat_map(?s:.)*test_operations.py"
    ):
        VERBS_WITH_FUNCTIONS[verb](stream, generated)


def test_a_generator_makes_many_values_of_one() -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([1]), name="in").flat_map(generated).sink(MemorySink(), name="out")

    assert run_local(pipeline, {"in": [1, 2]}) == {"out": [1, 2]}


def test_requests_are_made_by_functions_that_give_one_value() -> None:
    stream = Pipeline("p").source(ListSource([1]), name="in")

    wrong: list[tuple[Any, str]] = [
        ("http://users", "is a function, not"),
        (many, "is an asynchronous generator"),
        (generated, "is a generator"),
    ]
    for fn, why in wrong:
        with pytest.raises(PlanError, match=rf"fn of async_map {why}"):
            stream.async_map(fn)


class Silent(ProcessFunction[str, int, int]):
    pass


class NeedsLimit(ProcessFunction[str, int, int]):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def process(self, key: str, value: int) -> list[int]:
        return [value][: self.limit]


class OneTag(NeedsLimit):
    side_outputs = OutputTag("late", int)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (str.upper, r"runs a ProcessFunction, not the function upper: .*flat_map"),
        (Order, r"runs a ProcessFunction, not \w+"),
        (Silent, r"Silent does not define process\(key, value\)"),
        (NeedsLimit, r"missing .* 'limit'.*process\(NeedsLimit\(\.\.\.\)\)"),
        (OneTag(1), r"a tuple of tags, side_outputs = \(TAG,\)"),
    ],
)
def test_what_no_session_could_run_is_refused_with_the_users_line(function: Any, why: str) -> None:
    keyed = Pipeline("p").source(ListSource([1]), name="in").key_by(str)

    with pytest.raises(PlanError, match=rf"{why}(?s:.)*test_operations.py"):
        keyed.process(function, name="fn")


class Answers(ProcessFunction[str, Any, Any]):
    """Returns what it is given."""

    def process(self, key: str, value: Any) -> Any:
        return value


class Model(BaseModel):
    user: str = "ann"


class Pair(NamedTuple):
    user: str = "ann"
    amount: int = 1


MADE_BY: dict[str, Callable[[Stream[Any]], Any]] = {
    "flat_map": lambda stream: stream.flat_map(lambda value: value),
    "process": lambda stream: stream.key_by(lambda value: "k").process(Answers, name="fn"),
}


@pytest.mark.parametrize("returns", [None, "text", b"text", 5, {"user": "ann"}, Model(), Pair()], ids=repr)
@pytest.mark.parametrize("verb", MADE_BY)
def test_what_is_no_list_of_outputs_refuses_its_record(verb: str, returns: Any) -> None:
    pipeline = Pipeline("p")
    MADE_BY[verb](pipeline.source(ListSource([]), name="in")).sink(MemorySink(), name="out")

    with pytest.raises(PoisonRecord, match=r"in/0/0 .*returned as a list \(\[\] for none\) or with yield"):
        run_local(pipeline, {"in": [returns]})


def test_ordinary_callables_are_taken() -> None:
    class Adds:
        def __call__(self, value: int) -> int:
            return value + 1

    pipeline = Pipeline("p")
    stream = pipeline.source(ListSource([1]), name="in").map(Adds()).map(functools.partial(pow, 2)).map(str)
    stream.sink(MemorySink(), name="out")

    assert run_local(pipeline, {"in": [1]}) == {"out": ["4"]}


def test_reduce_stores_the_type_of_its_stream() -> None:
    pipeline = Pipeline("p")
    orders = pipeline.source(KafkaSource("orders", value=Order), name="orders")
    largest = orders.key_by(lambda order: order.user).reduce(lambda a, b: max(a, b, key=lambda o: o.amount), name="max")
    largest.sink(MemorySink(), name="out")
    codec = next(node.entry_codec for node in pipeline.plan().nodes if node.name == "max")  # type: ignore[attr-defined]

    entry = (3, Order("a", 5))
    assert codec.decode(codec.encode(entry)) == entry


def test_parts_of_a_fold_change_subtasks_as_what_they_are_and_not_as_values_of_its_stream() -> None:
    pipeline = Pipeline("sums")
    orders: Stream[Order] = pipeline.source(KafkaSource("orders", value=Order), name="orders")
    orders.key_by(lambda o: o.user).fold(
        name="sum", init=int, step=lambda total, o: total + o.amount, merge=lambda one, other: one + other
    ).sink(MemorySink(), name="out")

    wire = pipeline.plan().node("sum-partial").exchange_codec

    assert wire is not None
    assert wire.decode(wire.encode([1, 2])) == [1, 2]


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, None), (str, Order), (bytes, dict), (str, JsonCodec(Order))],
    ids=["raw", "types", "dict", "codec"],
)
def test_whole_records_change_subtasks_as_what_they_are(key: Any, value: Any) -> None:
    """Their type is known, so it need not be given again with values=."""
    pipeline = Pipeline("p")
    rows = pipeline.source(KafkaSource.records("orders", key=key, value=value), name="rows")
    rows.rebalance(name="spread").sink(MemorySink(), name="out")
    wire = next(node.exchange_codec for node in pipeline.plan().nodes if node.name == "spread")
    made: Any = {None: b"v", Order: Order("a", 1), dict: {"a": 1}}.get(value, Order("b", 2))
    sent: list[Any] = [
        Record("k" if key is str else b"k", made, (("h", b"x"), ("none", None)), 17),
        Record(None, None),
    ]

    assert wire is not None and wire.decode(wire.encode(sent)) == sent


def test_records_in_a_codec_without_a_type_keep_to_plain_values() -> None:
    class Own(Codec[Any]):
        name, schema = "own", None

        def encode(self, value: Any) -> bytes:
            return bytes(value)

        def decode(self, data: bytes) -> Any:
            return data

        def reader_of(self, schema: Any) -> Any:
            return self

    assert KafkaSource.records("orders", value=Own()).value_type is None


@pytest.mark.parametrize(
    "verb",
    [
        lambda keyed: keyed.fold(name="f", init=dict, step=max, state=dict[int, int]),
        lambda keyed: keyed.reduce(max, name="r", state=dict[int, int]),
        lambda keyed: keyed.window(tumbling(seconds=1)).reduce(max, name="w", state=dict[int, int]),
        lambda keyed: keyed.window(tumbling(seconds=1)).process(lambda *_: [], name="p", state=dict[int, int]),
    ],
)
def test_a_state_that_cannot_be_stored_is_shown_at_its_line(verb: Callable[[Any], Any]) -> None:
    keyed = Pipeline("p").source(ListSource([]), name="in").key_by(lambda value: value)

    with pytest.raises(PlanError, match=rf"(?s)cannot be stored: .*{__file__}:\d+: lambda keyed"):
        verb(keyed)
