"""run_local reports each function that changes a value that it is given, and no other function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos import ProcessContext, ProcessFunction, rows
from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka import KafkaSource, Record
from kafka_eos.core.errors import PlanError
from kafka_eos.testing import ListSource, MemorySink, run_local

Row = dict[str, Any]


def change(row: Row) -> Row:
    row["n"] = row["n"] * 2
    return row


def copied(row: Row) -> Row:
    return {**row, "n": row["n"] * 2}


async def request(row: Row) -> Row:
    return change(row)


def generate(row: Row) -> Iterator[Row]:
    yield {**row}
    row["n"] = 0


class Changing(ProcessFunction[str, Row, Row]):
    def open(self, ctx: ProcessContext) -> None:
        pass

    def process(self, key: str, value: Row) -> list[Row]:
        return [change(value)]


def keep(rows: list[Row], row: Row) -> list[Row]:
    rows.append(row)
    return rows


def run(build: Callable[[Any], Any], *values: Any) -> list[Any]:
    pipeline = Pipeline("checked")
    build(pipeline.source(ListSource([]), name="rows")).sink(MemorySink(), name="out")
    return run_local(pipeline, {"rows": values or [{"n": 1}, {"n": 2}]})["out"]


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda row: 0, values=dict)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda stream: stream.map(change, name="it"), "change"),
        (lambda stream: stream.filter(change, name="it"), "change"),
        (lambda stream: stream.flat_map(generate, name="it"), "generate"),
        (lambda stream: stream.map_batches(lambda rows: [*map(change, rows)], name="it"), "<lambda>"),
        (lambda stream: stream.async_map(request, name="it"), "request"),
        (lambda stream: stream.async_map(change, name="it"), "change"),
        (lambda stream: keyed(stream).process(Changing, name="it"), "Changing.process"),
        (lambda stream: keyed(stream).reduce(lambda a, b: a.update(b) or a, name="it"), "<lambda>"),
        (lambda stream: keyed(stream).fold(
            name="it", init=int, step=lambda n, row: n + change(row)["n"], state=int), "<lambda>"),
    ],
)  # fmt: skip
def test_the_function_and_its_operator_are_named(build: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(PlanError) as caught:
        run(build)

    assert f"{name} (test_in_place_changes.py, line " in str(caught.value).replace("<lambda>.<locals>.", "")
    assert "a function of operator 'it', changed a value that it was given: {'n': " in str(caught.value)
    assert "Return a new value" in str(caught.value)


def test_a_function_that_changes_the_row_of_a_table_is_named() -> None:
    def joined(order: Row, rate: Row) -> Row:
        rate["n"] += order["n"]
        return rate

    pipeline = Pipeline("joined")
    rates = pipeline.table(KafkaSource.records("rates", key=str, value=dict), name="rates")
    orders = pipeline.source(ListSource([]), name="orders").key_by(lambda order: "eur", values=dict)
    orders.join(rates, joined, name="it").sink(MemorySink(), name="out")

    with pytest.raises(
        PlanError, match=r"joined \(test_in_place_changes.py, line \d+\).*'it'.*{'n': 0} became {'n': 1}"
    ):
        run_local(pipeline, {"rates": [Record("eur", {"n": 0})], "orders": [{"n": n} for n in (1, 2, 3)]})


def test_a_step_may_change_its_accumulator_but_not_one_that_was_emitted() -> None:
    def counted(stream: Any) -> Any:
        return keyed(stream).fold(name="it", init=list, step=keep, emit=lambda key, rows: len(rows), state=list)

    def emitted(stream: Any) -> Any:
        return keyed(stream).fold(name="it", init=list, step=keep, state=list)

    assert run(counted) == [1, 2]
    with pytest.raises(PlanError, match=r"keep \(.*the step of operator 'it', changed an accumulator that was already"):
        run(emitted)


@pytest.mark.parametrize(
    "build",
    [
        lambda stream: stream.map(copied).flat_map(lambda row: [row, row]),
        lambda stream: stream.map_batches(lambda rows: rows.reverse() or rows),
        lambda stream: keyed(stream).window(rows(2)).fold(name="it", init=list, step=keep, state=list),
        lambda stream: stream.async_map(copied, name="it"),
    ],
)
def test_functions_that_return_new_values_pass(build: Callable[[Any], Any]) -> None:
    assert run(build)


class Opaque:
    """A class that compares by identity, so a copy is never equal."""


def test_a_value_that_cannot_be_compared_or_copied_passes() -> None:
    def read(row: Row) -> int:
        return len([*row.values()])

    assert run(lambda stream: stream.map(lambda row: {"opaque": Opaque(), "all": iter([row])}).map(read)) == [2, 2]
    assert run(lambda stream: stream.map(lambda row: {"opaque": Opaque()}).map(read)) == [1, 1]
