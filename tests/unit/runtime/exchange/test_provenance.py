"""What an output calls itself does not depend on where its row was, and no two outputs have one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos import Pipeline, Stream
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.records import Batch
from kafka_eos.plan import Partitioning
from kafka_eos.runtime.exchange.routing import make_router
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

Verb = Callable[[Stream[Any]], Stream[Any]]


def _spread(stream: Stream[Any]) -> Stream[Any]:
    """Values of one row go to several subtasks."""
    return stream.rebalance()


def _twice(stream: Stream[Any]) -> Stream[Any]:
    return stream.flat_map(lambda value: [value * 2, value * 2 + 1])


def _everywhere(stream: Stream[Any]) -> Stream[Any]:
    return stream.broadcast()


SHAPES: dict[str, list[Verb]] = {
    "one exchange": [_twice, _spread],
    "fan-out behind it": [_spread, _twice],
    "two exchanges": [_twice, _spread, _twice, _spread],
    "three": [_twice, _spread, _twice, _spread, _twice, _spread, _twice],
    "broadcast between": [_twice, _everywhere, _twice, _spread, _twice],
    "broadcast twice": [_everywhere, _everywhere, _twice, _spread],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_no_two_outputs_have_one_name(shape: str, parallelism: int) -> None:
    names = _names(SHAPES[shape], parallelism)

    doubled = [name for name, times in Counter(name for name, _ in names).items() if times > 1]
    assert doubled == []


@pytest.mark.parametrize("shape", [shape for shape, verbs in SHAPES.items() if _everywhere not in verbs])
def test_names_do_not_depend_on_parallelism(shape: str) -> None:
    assert sorted(_names(SHAPES[shape], 1)) == sorted(_names(SHAPES[shape], 2)) == sorted(_names(SHAPES[shape], 5))


def _by_value(batch: Batch[Any], parallelism: int) -> Iterator[tuple[int, Batch[Any]]]:
    """A route by value, as for keys, so that values of one row part."""
    for target in range(parallelism):
        if rows := [i for i, value in enumerate(batch.values) if value % parallelism == target]:
            yield target, batch.take(rows)


def _names(verbs: list[Verb], parallelism: int) -> list[tuple[str, Any]]:
    """(provenance, value) of every output, as ``parallelism`` subtasks make them that pass rows to each other."""
    pipeline = Pipeline("names")
    stream: Stream[Any] = pipeline.source(ListSource([]), name="source")
    for verb in verbs:
        stream = verb(stream)
    stream.sink(MemorySink(), name="sink")
    plan = pipeline.plan()
    out: list[tuple[str, Any]] = []

    def write(batch: Batch[Any]) -> None:
        out.extend(zip(format_provenance(batch, "job", Term(1), Epoch(1)), batch.values, strict=True))

    chains: list[OperatorChain] = []

    def sender(subtask: int, node: Any) -> Callable[[Batch[Any]], None]:
        spread = node.partitioning is Partitioning.REBALANCE
        split = (lambda batch: _by_value(batch, parallelism)) if spread else make_router(node, subtask, parallelism)

        def send(batch: Batch[Any]) -> None:
            for target, part in split(batch):
                chains[target].push(node.name, part)

        return send

    for subtask in range(parallelism):
        exchanges = {node.name: sender(subtask, node) for node in plan.exchanges} if parallelism > 1 else {}
        chains.append(OperatorChain(plan, {}, {"sink": write}, exchanges))
    values = list(range(10))
    chains[0].push("source", Batch(values, range(10), ListOrigin("source", "topic", 0, 0, values)))
    return out
