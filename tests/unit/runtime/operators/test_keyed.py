"""Keyed operators: state follows the key, outputs are counted, and a refused record changes nothing."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from kafka_eos import Pipeline, PlanError, ProcessContext, ProcessFunction
from kafka_eos.testing import ListSource, MemorySink, run_local


class Point(msgspec.Struct, frozen=True):
    x: int


class Tally(BaseModel):
    total: int = 0


def key(text: str) -> str:
    return text[0]


def value(text: str) -> int:
    return int(text[1:])


def totals(stream: Any) -> Any:
    return stream.key_by(key).fold(name="sum", init=int, step=lambda acc, t: acc + value(t))


def test_fold_gives_the_accumulator_after_every_input(bench: Any) -> None:
    out = bench.run(totals, ["a1", "b2", "a3"])

    assert out.values == [("a", 1), ("b", 2), ("a", 4)]


def test_updates_number_the_outputs_of_each_key(bench: Any) -> None:
    line = bench.line(totals)
    first, second = bench.push(line, ["a1", "b2", "a3"]), bench.push(line, ["b1", "a1"])

    assert (first.updates, second.updates) == ([1, 1, 2], [2, 3])


def test_emit_decides_what_goes_on(bench: Any) -> None:
    out = bench.run(
        lambda s: s.key_by(key).fold(
            name="sum", init=int, step=lambda acc, t: acc + value(t), emit=lambda k, acc: f"{k}={acc}"
        ),
        ["a1", "a2"],
    )

    assert out.values == ["a=1", "a=3"]


@pytest.mark.parametrize("fails_in", ["step", "emit"])
def test_a_refused_record_leaves_the_key_as_it_was(bench: Any, fails_in: str) -> None:
    def step(acc: int, text: str) -> int:
        if fails_in == "step" and text == "a9":
            raise ValueError(text)
        return acc + value(text)

    def emit(_: str, acc: int) -> int:
        if fails_in == "emit" and acc >= 9:
            raise ValueError(acc)
        return acc

    line = bench.line(lambda s: s.key_by(key).fold(name="sum", init=int, step=step, emit=emit))
    out = bench.push(line, ["a1", "a9", "a2"])

    assert (out.values, out.updates, out.origin_rows, out.keys) == ([1, 3], [1, 2], [0, 2], ["a", "a"])
    assert [offset for offset, _ in bench.refused] == [1]


def test_reduce_starts_with_the_first_value(bench: Any) -> None:
    out = bench.run(lambda s: s.map(value).key_by(lambda n: n % 2).reduce(max, name="max"), ["x3", "x2", "x1", "x4"])

    assert (out.values, out.updates) == ([3, 2, 3, 4], [1, 1, 2, 2])


@pytest.mark.parametrize(
    ("init", "step"),
    [
        (lambda: Point(0), lambda acc, t: Point(acc.x + value(t))),
        (Tally, lambda acc, t: Tally(total=acc.total + value(t))),
        (dict, lambda acc, t: {**acc, t: value(t)}),
    ],
)
def test_state_is_the_same_after_a_snapshot_and_a_restore(bench: Any, init: Any, step: Any) -> None:
    def verbs(stream: Any) -> Any:
        return stream.key_by(key).fold(name="acc", init=init, step=step)

    line = bench.line(verbs)
    bench.push(line, ["a1", "b2"])
    restored = bench.line(verbs, [bench.snapshot("acc")])
    live = bench.push(line, ["a3", "b4"])
    again = bench.push(restored, ["a3", "b4"])

    assert (again.values, again.updates) == (live.values, [2, 2])


@pytest.mark.parametrize("bad", [(1, 2), {1, 2}, object(), 2**70])
def test_an_accumulator_that_would_not_survive_a_restart_is_refused_at_once(bench: Any, bad: object) -> None:
    bench.run(lambda s: s.key_by(key).fold(name="acc", init=int, step=lambda acc, t: bad), ["a1"])

    ((offset, reason),) = bench.refused
    assert offset == 0
    assert "cannot be stored" in reason and "state=" in reason


def test_a_declared_type_makes_it_survive(bench: Any) -> None:
    def verbs(stream: Any) -> Any:
        return stream.key_by(key).fold(name="acc", init=tuple, step=lambda acc, t: (*acc, t), state=tuple[str, ...])

    line = bench.line(verbs)
    bench.push(line, ["a1"])
    restored = bench.line(verbs, [bench.snapshot("acc")])

    assert bench.push(restored, ["a2"]).values == [("a", ("a1", "a2"))]


class Changes(ProcessFunction[str, str, str]):
    """Emits a value twice when it differs from the last; refuses 9 after writing; 0 forgets."""

    def open(self, ctx: ProcessContext) -> None:
        self.last = ctx.value_state("last", int)
        self.seen = ctx.value_state("seen", int, default=0)

    def process(self, key: str, value: str) -> Iterable[str]:
        n = int(value[1:])
        before = self.last.get()
        self.last.put(n)
        self.seen.put(self.seen.get() + 1)
        assert self.last.get() == n
        if n == 9:
            raise ValueError("nine")
        if n == 0:
            self.last.clear()
        elif n != before:
            yield f"{key}:{before}"
            yield f"{key}:{self.seen.get()}"


def changes(stream: Any) -> Any:
    return stream.key_by(key).process(Changes, name="changes")


def test_process_sees_the_state_of_its_key(bench: Any) -> None:
    out = bench.run(changes, ["a1", "b5", "a1", "a2"])

    assert out.values == ["a:None", "a:1", "b:None", "b:1", "a:1", "a:3"]
    assert (out.origin_rows, out.keys) == ([0, 0, 1, 1, 3, 3], list("aabbaa"))
    assert out.updates is None


def test_all_state_writes_of_a_refused_record_are_undone(bench: Any) -> None:
    out = bench.run(changes, ["a1", "a9", "a2"])

    assert out.values == ["a:None", "a:1", "a:1", "a:2"]
    assert [offset for offset, _ in bench.refused] == [1]


def test_a_cleared_state_reads_as_its_default(bench: Any) -> None:
    assert bench.run(changes, ["a1", "a0", "a1"]).values == ["a:None", "a:1", "a:None", "a:3"]


def test_process_goes_on_after_a_restore(bench: Any) -> None:
    line = bench.line(changes)
    bench.push(line, ["a1", "a2"])
    restored = bench.line(changes, [bench.snapshot("changes")])
    out = bench.push(restored, ["a3"])

    assert out.values == ["a:2", "a:3"]


def test_each_session_gets_a_fresh_copy_of_a_function_object(bench: Any) -> None:
    class Memory(ProcessFunction[str, str, int]):
        def __init__(self) -> None:
            self.kept: list[str] = []

        def process(self, key: str, value: str) -> Iterable[int]:
            self.kept.append(value)
            return [len(self.kept)]

    function = Memory()

    def verbs(stream: Any) -> Any:
        return stream.key_by(key).process(function, name="memory")

    assert bench.run(verbs, ["a1", "a2"]).values == [1, 2]
    assert function.kept == []


@pytest.mark.parametrize(
    ("names", "message"), [(("one", "one"), "taken"), (("event-timers",), "taken"), (("a b",), "name")]
)
def test_state_names_are_checked_when_they_are_declared(bench: Any, names: tuple[str, ...], message: str) -> None:
    class Bad(ProcessFunction[str, str, str]):
        def open(self, ctx: ProcessContext) -> None:
            for name in names:
                ctx.value_state(name, int)

        def process(self, key: str, value: str) -> list[str]:
            return [value]

    with pytest.raises(Exception, match=message):
        bench.line(lambda s: s.key_by(key).process(Bad, name="bad"))


def test_state_that_is_declared_too_late_is_refused(bench: Any) -> None:
    class Late(ProcessFunction[str, str, str]):
        def open(self, ctx: ProcessContext) -> None:
            self.ctx = ctx

        def process(self, key: str, value: str) -> Iterable[str]:
            self.ctx.value_state("late", int)
            return ()

    with pytest.raises(PlanError, match=r"open\(ctx\)"):
        bench.run(lambda s: s.key_by(key).process(Late, name="late"), ["a1"])


def test_a_function_is_closed_once_behind_all_records() -> None:
    done: list[str] = []

    class Client(ProcessFunction[str, str, str]):
        def open(self, ctx: ProcessContext) -> None:
            done.append("open")

        def process(self, key: str, value: str) -> list[str]:
            done.append(value)
            return []

        def close(self) -> None:
            done.append("close")

    assert _run(Client) == {"sink": []}

    assert done == ["open", "a1", "b2", "close"]


def test_what_close_raises_is_a_warning_and_the_outputs_are_there() -> None:
    class Broken(ProcessFunction[str, str, str]):
        def process(self, key: str, value: str) -> list[str]:
            return [value]

        def close(self) -> None:
            raise ConnectionError("gone")

    with pytest.warns(
        RuntimeWarning, match=r"close of operator 'fn' raised ConnectionError: gone \(raised at .*test_k"
    ):
        assert _run(Broken) == {"sink": ["a1", "b2"]}


def _run(function: type[ProcessFunction[str, str, str]]) -> dict[str, list[Any]]:
    pipeline = Pipeline("closes")
    stream = pipeline.source(ListSource([]), name="source").key_by(key).process(function, name="fn")
    stream.sink(MemorySink(), name="sink")
    return run_local(pipeline, {"source": ["a1", "b2"]})
