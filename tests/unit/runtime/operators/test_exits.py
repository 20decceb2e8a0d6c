"""A function that tries to end the process for a record, as argparse does, makes a dead letter of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kafka_eos import Pipeline, ProcessFunction, bounded, rows, session, sliding, tumbling
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.testing import ListSource, MemorySink, run_local


class Panic(BaseException):
    """As libraries in Rust have them for their bugs: no Exception."""


def parsed(value: int) -> int:
    if value == 2:
        argparse.ArgumentParser().parse_args(["--unknown"])
    if value == 3:
        raise Panic
    return value


def last(acc: int, value: int) -> int:
    return parsed(value)


def emitted(key: Any, total: int) -> int:
    return total


class Parsing(ProcessFunction[str, int, int]):
    def process(self, key: str, value: int) -> Iterable[int]:
        return [parsed(value)]


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda value: "k", values=int)


def timed(stream: Any) -> Any:
    """Row 9 ends the window of the others."""
    return keyed(stream.with_timestamps(lambda value: 10_000 if value == 9 else 0, watermarks=bounded(seconds=0)))


def windowed(window: Any) -> Callable[[Any], Any]:
    def shape(stream: Any) -> Any:
        totals = timed(stream).window(window).fold(name="w", init=int, step=last, merge=max, state=int)
        return totals.map(lambda out: out.value)

    return shape


ROW_BY_ROW: dict[str, Callable[[Any], Any]] = {
    "map": lambda s: s.map(parsed),
    "filter": lambda s: s.filter(parsed),
    "flat_map": lambda s: s.flat_map(lambda value: [parsed(value)]),
    "map_batches": lambda s: s.map_batches(lambda values: [*map(parsed, values)]),
    "key_by": lambda s: s.key_by(parsed).process(Parsing, name="p"),
    "with_timestamps": lambda s: s.with_timestamps(parsed, watermarks=bounded(seconds=0)),
    "fold": lambda s: keyed(s).fold(name="f", init=int, step=last, emit=emitted, state=int),
    "reduce": lambda s: keyed(s).reduce(last, name="f", state=int),
    "process": lambda s: keyed(s).process(Parsing, name="p"),
}
OF_WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": windowed(tumbling(seconds=1)),
    "sliding": windowed(sliding(seconds=1, every=0.5)),
    "session": windowed(session(gap=1)),
    "rows": lambda s: keyed(s).window(rows(2)).reduce(last, name="w", state=int).map(lambda out: out.value),
}


def run(shape: Callable[[Any], Any]) -> tuple[list[Any], list[int], list[str]]:
    pipeline = Pipeline("exits")
    stream = pipeline.source(ListSource([]), name="in", on_error=DeadLetters(MemorySink()))
    shape(stream).sink(MemorySink(), name="out")
    found = run_local(pipeline, {"in": [1, 2, 3, 4, 9]}, batch_size=500)
    letters = found["in-dead-letters"]
    told = [letter.message.partition(":")[0] for letter in letters]
    return found["out"], [letter.raw.offset for letter in letters], told


@pytest.mark.parametrize("shape", ROW_BY_ROW)
def test_the_record_becomes_a_dead_letter(shape: str) -> None:
    told = ["the function raised SystemExit", "the function raised Panic"]

    assert run(ROW_BY_ROW[shape]) == ([1, 4, 9], [1, 2], told)


@pytest.mark.parametrize("shape", OF_WINDOWS)
def test_so_it_does_in_windows(shape: str) -> None:
    out, letters, _ = run(OF_WINDOWS[shape])

    assert {*out} <= {4, 9}
    assert letters == [1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
def test_a_person_at_the_terminal_still_ends_the_run(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        as_exception(error)

    assert raised.value is error
