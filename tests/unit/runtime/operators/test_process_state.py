"""The state types of ``process``: each follows its key, survives a restart, and forgets what a refused record wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic import BaseModel

from kafka_eos import PlanError, ProcessContext, ProcessFunction
from kafka_eos.abc.state import Ttl
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

Step = Callable[[Any, str, str], Iterable[Any]]


def function(declare: Callable[[Any, ProcessContext], None], step: Step) -> type[ProcessFunction[str, str, Any]]:
    """A function of two: one declares states on it, one is called with it, the key and the value."""

    class Made(ProcessFunction[str, str, Any]):
        def open(self, ctx: ProcessContext) -> None:
            declare(self, ctx)

        def process(self, key: str, value: str) -> Iterable[Any]:
            return step(self, key, value)

    return Made


def verbs(made: Any) -> Any:
    return lambda stream: stream.key_by(lambda text: text[0]).process(made, name="op")


def test_counters_are_made_in_open_and_only_grow(bench: Any) -> None:
    """What becomes of the numbers is told with each engine, in tests/conformance."""

    def declare(self: Any, ctx: ProcessContext) -> None:
        self.ctx, self.seen = ctx, ctx.counter("seen")
        self.seen.inc(2)

    def step(self: Any, _: str, value: str) -> list[Any]:
        self.seen.inc({"a1": 1, "a2": -1, "a3": 0.5}[value])
        return [self.seen.count]

    assert bench.run(verbs(function(declare, step)), ["a1", "a2", "a3", "a1"]).values == [3, 4]
    assert [why for _, why in bench.refused] == [
        f"UnfitValue: a counter can only grow by a whole number that is not negative (got inc({n}))" for n in (-1, 0.5)
    ]

    with pytest.raises(PlanError, match=r"the name of a counter must be a str, not ''"):
        bench.run(verbs(function(lambda _, ctx: ctx.counter(""), step)), [])
    late = function(lambda self, ctx: setattr(self, "ctx", ctx), lambda self, key, _: self.ctx.counter(key))
    with pytest.raises(PlanError, match=r"call counter\('a'\) in open"):
        bench.run(verbs(late), ["a1"])


def refused(bench: Any) -> list[int]:
    return [offset for offset, _ in bench.refused]


# ---------------------------------------------------------------- list


def declare_list(self: Any, ctx: ProcessContext) -> None:
    self.seen = ctx.list_state("seen", str)


def collect(self: Any, _: str, value: str) -> list[Any]:
    """ax adds x; a! clears; a? refuses after writing; a+ adds two."""
    match value[1]:
        case "!":
            self.seen.clear()
        case "?":
            self.seen.clear()
            self.seen.add("never")
            raise ValueError(value)
        case "+":
            self.seen.add_all(["one", "two"])
        case other:
            self.seen.add(other)
    assert self.seen.get() == list(self.seen)
    return [self.seen.get()]


def test_a_list_keeps_the_order_in_which_it_grew(bench: Any) -> None:
    line = bench.line(verbs(function(declare_list, collect)))
    out = bench.push(line, ["ac", "bx", "aa", "a+", "a?", "ab"])

    assert out.values == [["c"], ["x"], ["c", "a"], ["c", "a", "one", "two"], ["c", "a", "one", "two", "b"]]
    assert refused(bench) == [4]

    restored = bench.line(verbs(function(declare_list, collect)), [bench.snapshot("op")])

    assert bench.push(restored, ["a0", "b!", "by"]).values == [["c", "a", "one", "two", "b", "0"], [], ["y"]]


def test_none_is_not_an_element(bench: Any) -> None:
    bench.run(verbs(function(declare_list, lambda self, key, value: [self.seen.add(None)])), ["a1"])

    assert refused(bench) == [0]


# ---------------------------------------------------------------- map


def declare_map(self: Any, ctx: ProcessContext) -> None:
    self.counts = ctx.map_state("counts", str, int)


def count(self: Any, _: str, value: str) -> list[Any]:
    """axy counts x and y; a? refuses after writing; a!x removes x; a!! clears."""
    words = value[1:]
    if words == "!!":
        self.counts.clear()
        assert list(self.counts.keys()) == []
    elif words[0] == "!":
        self.counts.remove(words[1])
        assert words[1] not in self.counts
    for word in words.strip("!?"):
        if words[0] != "!":
            self.counts.put(word, (self.counts.get(word) or 0) + 1)
            assert self.counts.contains(word)
    if "?" in words:
        self.counts.clear()
        self.counts.put("never", 1)
        raise ValueError(value)
    assert list(zip(self.counts.keys(), self.counts.values(), strict=True)) == list(self.counts.items())
    return [dict(self.counts.items())]


def test_a_map_has_entries_of_its_key_in_one_order(bench: Any) -> None:
    line = bench.line(verbs(function(declare_map, count)))
    out = bench.push(line, ["azb", "bz", "ab", "ac?", "a!z", "aa"])

    assert out.values == [{"b": 1, "z": 1}, {"z": 1}, {"b": 2, "z": 1}, {"b": 2}, {"a": 1, "b": 2}]
    assert list(out.values[0]) == ["b", "z"]
    assert list(out.values[-1]) == ["a", "b"]
    assert refused(bench) == [3]

    restored = bench.line(verbs(function(declare_map, count)), [bench.snapshot("op")])

    assert bench.push(restored, ["ab", "b!!", "bq"]).values == [{"a": 1, "b": 3}, {}, {"q": 1}]


@pytest.mark.parametrize("bad", [1.0, True, None, ["list"]])
def test_a_bad_second_key_refuses_its_record(bench: Any, bad: Any) -> None:
    bench.run(verbs(function(declare_map, lambda self, key, value: [self.counts.put(bad, 1)])), ["a1"])

    assert refused(bench) == [0]


@pytest.mark.parametrize("tp", [float, BaseModel, list[int]])
def test_second_keys_are_of_the_types_of_keys(bench: Any, tp: Any) -> None:
    with pytest.raises(PlanError, match="map state 'm'"):
        bench.line(verbs(function(lambda self, ctx: ctx.map_state("m", tp, int), collect)))  # type: ignore[arg-type]


def test_a_state_whose_values_cannot_be_stored_is_named(bench: Any) -> None:
    with pytest.raises(PlanError, match="operator 'op': state 's': .*keys of a dict must be str"):
        bench.line(verbs(function(lambda self, ctx: ctx.value_state("s", dict[int, str]), collect)))  # type: ignore[arg-type]


def test_second_keys_may_be_tuples(bench: Any) -> None:
    def declare(self: Any, ctx: ProcessContext) -> None:
        self.m = ctx.map_state("m", tuple[str, int], str)

    def step(self: Any, key: str, value: str) -> list[Any]:
        self.m.put((value, len(value)), value)
        return list(self.m.items())

    assert bench.run(verbs(function(declare, step)), ["ab"]).values == [(("ab", 2), "ab")]


# ---------------------------------------------------------------- reducing, aggregating


class Mean(BaseModel):
    count: int = 0
    total: float = 0.0


def declare_sums(self: Any, ctx: ProcessContext) -> None:
    self.highest = ctx.reducing_state("highest", int, max)
    self.mean = ctx.aggregating_state(
        "mean",
        Mean,
        create=Mean,
        add=lambda acc, value: Mean(count=acc.count + 1, total=acc.total + value),
        result=lambda acc: acc.total / acc.count,
    )


def add_up(self: Any, _: str, value: str) -> list[Any]:
    if value[1] == "!":
        self.highest.clear()
        self.mean.clear()
    else:
        self.highest.add(int(value[1]))
        self.mean.add(int(value[1]))
        if value.endswith("?"):
            raise ValueError(value)
    return [(self.highest.get(), self.mean.get())]


def test_values_are_reduced_and_aggregated(bench: Any) -> None:
    line = bench.line(verbs(function(declare_sums, add_up)))
    out = bench.push(line, ["a1", "a9?", "a3", "b7", "a2"])

    assert out.values == [(1, 1.0), (3, 2.0), (7, 7.0), (3, 2.0)]
    assert refused(bench) == [1]

    restored = bench.line(verbs(function(declare_sums, add_up)), [bench.snapshot("op")])

    assert bench.push(restored, ["a6", "b!", "b2"]).values == [(6, 3.0), (None, None), (2, 2.0)]


# ---------------------------------------------------------------- namespaces


def declare_spaces(self: Any, ctx: ProcessContext) -> None:
    self.value = ctx.value_state("value", int, 0, namespaced=True)
    self.list = ctx.list_state("list", int, namespaced=True)
    self.map = ctx.map_state("map", str, int, namespaced=True)
    self.sum = ctx.reducing_state("sum", int, lambda a, b: a + b, namespaced=True)


def into_spaces(self: Any, _: str, value: str) -> list[Any]:
    """awn adds n to namespace w; none of the others may notice."""
    space, n = (value[1] if value[1] != "-" else None), int(value[2])
    self.value.of(space).put(self.value.of(space).get() + n)
    self.list.of(space).add(n)
    self.map.of(space).put(value, n)
    self.sum.of(space).add(n)
    if n == 9:
        raise ValueError(value)
    if n == 0:
        for state in (self.value, self.list, self.map, self.sum):
            state.of(space).clear()
    return [
        [
            [self.value.of(w).get(), self.list.of(w).get(), list(self.map.of(w).items()), self.sum.of(w).get()]
            for w in ("x", "y", None)
        ]
    ]


def test_namespaces_are_apart(bench: Any) -> None:
    none = [0, [], [], None]
    line = bench.line(verbs(function(declare_spaces, into_spaces)))
    out = bench.push(line, ["ax1", "ay2", "ax9", "a-3"])
    x, y = [1, [1], [("ax1", 1)], 1], [2, [2], [("ay2", 2)], 2]

    assert out.values == [[x, none, none], [x, y, none], [x, y, [3, [3], [("a-3", 3)], 3]]]
    assert refused(bench) == [2]

    restored = bench.line(verbs(function(declare_spaces, into_spaces)), [bench.snapshot("op")])

    assert bench.push(restored, ["ax0"]).values == [[none, y, [3, [3], [("a-3", 3)], 3]]]


def test_a_state_with_namespaces_is_its_own_namespace_none(bench: Any) -> None:
    def step(self: Any, key: str, value: str) -> list[Any]:
        self.value.put(5)
        return [self.value.get(), self.value.of(None).get(), self.value.of("x").get()]

    assert bench.run(verbs(function(declare_spaces, step)), ["a1"]).values == [5, 5, 0]


@pytest.mark.parametrize("space", [1.5, True, ("x", None), ["x"]], ids=str)
def test_what_can_be_no_key_can_be_no_namespace(bench: Any, space: Any) -> None:
    """Its row is rejected, and leaves nothing: what is stored could not be found again."""

    def step(self: Any, key: str, value: str) -> list[Any]:
        self.value.of(space if value == "a!" else "x").put(1)
        return [self.value.namespaces()]

    assert bench.run(verbs(function(declare_spaces, step)), ["a1", "a!", "a2"]).values == [["x"], ["x"]]
    assert refused(bench) == [1]


@pytest.mark.parametrize("use", [lambda seen: seen.of("x").get(), lambda seen: seen.namespaces()])
def test_namespaces_must_be_declared(bench: Any, use: Callable[[Any], Any]) -> None:
    with pytest.raises(PlanError, match="namespaced=True"):
        bench.run(verbs(function(declare_list, lambda self, key, value: [use(self.seen)])), ["a1"])


def test_the_namespaces_of_a_key_are_those_that_have_something(bench: Any) -> None:
    """Before and after a checkpoint, with what the record itself has written, and without what it refused."""

    def step(self: Any, key: str, value: str) -> list[Any]:
        into_spaces(self, key, value)
        listed = [state.namespaces() for state in (self.value, self.list, self.map, self.sum)]
        assert listed == [listed[0]] * 4
        assert self.value.of("z").namespaces() == listed[0]
        return [listed[0]]

    line = bench.line(verbs(function(declare_spaces, step)))

    out = bench.push(line, ["ay1", "bz1", "ax1", "az9", "a-3", "ay0"])
    assert out.values == [["y"], ["z"], ["x", "y"], ["x", "y", None], ["x", None]]

    restored = bench.line(verbs(function(declare_spaces, step)), [bench.snapshot("op")])

    assert bench.push(restored, ["aw1", "ax0", "bz0"]).values == [["w", "x", None], ["w", None], []]


def test_a_namespace_is_there_until_its_last_entry_is_gone(bench: Any) -> None:
    def step(self: Any, key: str, value: str) -> list[Any]:
        if value == "a1":
            for window in (200, -1, 7, ("x", 1), b"b", "text"):
                self.map.of(window).put("one", 1)
                self.map.of(window).put("two", 2)
        else:
            for entry in ("one", "two")[: int(value[1]) - 1]:
                self.map.of(7).remove(entry)
        return [self.map.namespaces()]

    line = bench.line(verbs(function(declare_spaces, step)))
    every = [7, ("x", 1), "text", b"b", 200, -1]

    assert bench.push(line, ["a1", "a2", "a3"]).values == [every, every, [n for n in every if n != 7]]


# ---------------------------------------------------------------- time to live


def test_state_expires_in_event_time_record_by_record(bench: Any) -> None:
    """However the records come in batches."""

    class Timed(ListOrigin):
        def timestamps(self) -> list[int]:
            return [int(value[1:]) * 1000 for value in values]

    def declare(self: Any, ctx: ProcessContext) -> None:
        self.last = ctx.value_state("last", str, ttl=Ttl(10, clock="event"))
        self.recent = ctx.list_state("recent", str, ttl=Ttl(10, clock="event"))

    def step(self: Any, key: str, value: str) -> list[Any]:
        before = self.last.get()
        if key == "a":
            self.last.put(value)
            self.recent.add(value)
        return [(value, before, self.recent.get())]

    values = ["a0", "a5", "b14", "a14", "b12", "a40", "a15"]
    expected = [
        ("a0", None, ["a0"]),
        ("a5", "a0", ["a0", "a5"]),
        ("b14", None, []),
        ("a14", "a5", ["a5", "a14"]),
        ("b12", None, []),
        ("a40", None, ["a40"]),
        ("a15", "a40", ["a40", "a15"]),
    ]
    for size in (1, 3, 7):
        line, found = bench.line(verbs(function(declare, step))), []
        origin = Timed("source", "topic", 0, 0, values)
        for start in range(0, 7, size):
            rows = range(start, min(start + size, 7))
            batch: Batch[Any] = Batch([values[row] for row in rows], rows, origin)
            for operator in line:
                batch = operator.process(batch)
            found += batch.values

        assert found == expected
