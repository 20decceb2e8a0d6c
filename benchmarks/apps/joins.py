"""Streams that meet something: BENCH_OPERATION says what.

plain            two streams in one, without keys and state: what the sources, event time and the sink cost
interval-join    each row has one partner, and waits ten seconds of event time for others
window-join      the same, in windows of ten seconds
table-join       each row of a stream finds its key in a table of BENCH_KEYS rows
broadcast        each row is held against eight rules that all workers have
asked            each row is asked for; the answer comes at once, so what is measured is the waiting
kept             the same, for its key, whose answer is kept
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from benchmarks.apps.events import COUNT, COUNTERS, KEYS, Event
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import BroadcastContext, BroadcastProcessFunction, Pipeline, Stream, Ttl, connect, monotonic, tumbling
from kafka_eos.api.connected_streams import ConnectedStreams
from kafka_eos.connectors.kafka import Record

OPERATION = os.environ["BENCH_OPERATION"]
SPLITS = 4
RULES = 8


class Numbered(Sequence[Any]):
    """What ``made`` makes of the numbers of a split's rows, without an end."""

    def __init__(self, split: int, made: Callable[[int, int], Any]) -> None:
        self._split, self._made = split, made

    def __len__(self) -> int:
        return 1 << 60

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, int):
            return self._made(self._split, at)
        split, made = self._split, self._made
        return [made(split, number) for number in range(*at.indices(len(self)))]


def source(of: Any, made: Callable[[int, int], Any], count: int | None) -> GeneratedSource:
    return GeneratedSource(of, lambda split: Numbered(split, made), COUNTERS, splits=SPLITS, count=count)


def once(split: int, number: int) -> Event:
    """No other row of its stream has its key. ``amount`` is its event time."""
    return Event(number * SPLITS + split, number)


def again(split: int, number: int) -> Event:
    return Event((number * SPLITS + split) % KEYS, number)


def row(split: int, number: int) -> Record[int, int]:
    return Record(number * SPLITS + split, number)


def timed(pipeline: Pipeline, name: str) -> Stream[Event]:
    """Half of the rows, each with a key that a row of the other half has, too."""
    read = pipeline.source(source(Event, once, None if COUNT is None else COUNT // 2), name=name)
    return read.with_timestamps(lambda event: event.amount, watermarks=monotonic())


def matched(pipeline: Pipeline) -> ConnectedStreams[int, Event, Event]:
    """Both halves by key."""
    left, right = (
        timed(pipeline, name).key_by(lambda event: event.key, name=f"by-{name}") for name in ("left", "right")
    )
    return connect(left, right)


def stream(pipeline: Pipeline) -> Stream[Event]:
    return pipeline.source(source(Event, again, COUNT), name="events")


def pair(left: Event, right: Event) -> Event:
    return left


def first(event: Event, other: int) -> Event:
    return event


class Watch(BroadcastProcessFunction[Event, Record[int, int], Event]):
    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", int, int)

    def process(self, value: Event) -> Iterable[Event]:
        if all(value.amount >= least for _, least in self.rules.items()):
            yield value

    def process_broadcast(self, change: Record[int, int]) -> None:
        if change.key is not None and change.value is not None:
            self.rules.put(change.key, 0)


async def itself(event: Event) -> Event:
    return event


async def known(key: int) -> int:
    return key


def made(pipeline: Pipeline) -> Stream[Event]:
    match OPERATION:
        case "plain":
            return timed(pipeline, "left").union(timed(pipeline, "right"), name="both")
        case "interval-join":
            return matched(pipeline).interval_join(pair, name="pairs", lower=-10, upper=0)
        case "window-join":
            return matched(pipeline).window_join(tumbling(seconds=10), pair, name="pairs")
        case "table-join":
            table = pipeline.table(source(Record[int, int], row, KEYS), name="known", values=Record[int, int])
            return stream(pipeline).key_by(lambda event: event.key, name="by-key").join(table, first, name="found")
        case "broadcast":
            rules = pipeline.table(source(Record[int, int], row, RULES), name="rules", values=Record[int, int])
            return connect(stream(pipeline), rules.broadcast()).process(Watch, name="watched")
        case "asked":
            return stream(pipeline).async_map(itself, name="asked", capacity=1000)
        case "kept":
            by_key = stream(pipeline).key_by(lambda event: event.key, name="by-key")
            return by_key.async_map(known, first, name="kept", cache=Ttl(3600), capacity=1000)
    raise ValueError(f"BENCH_OPERATION={OPERATION!r} is none of those that are told above")


pipeline = Pipeline("bench")
made(pipeline).sink(CountingSink(COUNTERS), name="out")
