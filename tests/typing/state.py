"""What a type checker must infer for the state of a ``ProcessFunction``. Checked with ``mypy --strict``; never run."""

from collections.abc import Iterable, Iterator
from typing import assert_type

from kafka_eos import (
    AggregatingState,
    ListState,
    MapState,
    ProcessContext,
    ProcessFunction,
    ReducingState,
    Timers,
    Ttl,
    ValueState,
)


def longer(acc: list[int], value: int) -> list[int]:
    return [*acc, value]


def mean(acc: list[int]) -> float:
    return sum(acc) / len(acc)


class All(ProcessFunction[str, int, str]):
    def open(self, ctx: ProcessContext) -> None:
        day = Ttl(86_400, clock="event")
        self.last = ctx.value_state("last", int, ttl=day)
        self.count = ctx.value_state("count", int, 0, namespaced=True)
        self.items = ctx.list_state("items", int, ttl=day)
        self.by_name = ctx.map_state("by-name", str, int)
        self.by_pair = ctx.map_state("by-pair", tuple[str, int], bytes)
        self.highest = ctx.reducing_state("highest", int, max)
        self.timers = ctx.timers()
        assert_type(self.timers, Timers)
        assert_type((ctx.timestamp, ctx.watermark), tuple[int, int])
        self.mean = ctx.aggregating_state("mean", list[int], create=list, add=longer, result=mean)

    def process(self, key: str, value: int) -> Iterable[str]:
        assert_type(self.timers.register(5), int)
        assert_type(self.last, ValueState[int | None])
        assert_type(self.count.of("window"), ValueState[int])
        assert_type(self.items, ListState[int])
        assert_type(self.items.get(), list[int])
        assert_type(self.by_name, MapState[str, int])
        assert_type(self.by_name.get("a"), int | None)
        assert_type(self.by_pair.items(), Iterator[tuple[tuple[str, int], bytes]])
        assert_type(self.highest, ReducingState[int])
        assert_type(self.mean.get(), float | None)
        assert_type(self.mean, AggregatingState[int, float])
        self.by_name.put(1, 1)  # type: ignore[arg-type]
        self.items.add("1")  # type: ignore[arg-type]
        return []
