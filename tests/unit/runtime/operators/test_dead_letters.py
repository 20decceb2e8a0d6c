"""Dead letters of a chain: one policy for readers, operators and writers, each letter with an identity of its own."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

VALUES = [0, 1, 2]


def _pipeline(**policy: Any) -> Pipeline:
    pipeline = Pipeline("letters")
    numbers = pipeline.source(ListSource(VALUES), name="numbers", **policy)
    numbers.map(lambda n: 1 // n, name="divide").sink(MemorySink(), name="divided")
    numbers.map(lambda n: 2 // n, name="halve").sink(MemorySink(), name="halved")
    numbers.sink(MemorySink(), name="plain")
    return pipeline


def number(operator: str) -> int:
    """What a dead letter calls who refused it."""
    return zlib.crc32(operator.encode())


def _batch() -> Batch[Any]:
    return Batch(list(VALUES), range(3), ListOrigin("numbers", "in", 0, 10, VALUES))


def _chain(pipeline: Pipeline, got: dict[str, list[Batch[Any]]], full: str) -> OperatorChain:
    """Its sink ``full`` refuses the first row of every batch."""
    plan = pipeline.plan()

    def output(name: str) -> Any:
        def write(batch: Batch[Any]) -> None:
            if name == full:
                chain.rejections.reject_output(batch, 0, name, ValueError("too large"))
            got.setdefault(name, []).append(batch)

        return write

    chain = OperatorChain(plan, {}, {sink.name: output(sink.name) for sink in plan.sinks})
    return chain


def test_letters_of_one_record_differ_in_who_refused_it_and_writers_make_letters_too() -> None:
    got: dict[str, list[Batch[Any]]] = {}
    chain = _chain(_pipeline(on_error=DeadLetters(MemorySink())), got, full="plain")
    chain.push("numbers", _batch())
    (letters,) = got["numbers-dead-letters"]

    assert [letter.operator for letter in letters.values] == ["divide", "halve", "plain"]
    assert format_provenance(letters, "job", Term(1), Epoch(2)) == [
        f"job.1.2/numbers/in/0/10/0.0-{number(name)}-0" for name in ("divide", "halve", "plain")
    ]


def test_letters_keep_the_records_apart() -> None:
    got: dict[str, list[Batch[Any]]] = {}
    chain = _chain(_pipeline(on_error=DeadLetters(MemorySink())), got, full="halved")
    chain.push("numbers", _batch())
    (letters,) = got["numbers-dead-letters"]

    assert format_provenance(letters, "job", Term(1), Epoch(2)) == [
        f"job.1.2/numbers/in/0/10/0.0-{number('divide')}-0",
        f"job.1.2/numbers/in/0/10/0.0-{number('halve')}-0",
        f"job.1.2/numbers/in/0/11/0.0-{number('halved')}-0",
    ]
    assert [letters.origin.raw(row).offset for row in letters.origin_rows] == [10, 10, 11]


def test_a_writers_refusal_stops_the_job_without_dead_letters() -> None:
    pipeline = Pipeline("letters")
    pipeline.source(ListSource(VALUES), name="numbers").sink(MemorySink(), name="plain")

    with pytest.raises(PoisonRecord, match=r"in/0/10.*'plain'.*too large.*on_error="):
        _chain(pipeline, {}, full="plain").push("numbers", _batch())


def test_a_dead_letter_that_cannot_be_written_stops_the_job() -> None:
    """Sent aside once more it would vanish; the advice is not what is set already."""
    chain = _chain(_pipeline(on_error=DeadLetters(MemorySink())), {}, full="numbers-dead-letters")

    with pytest.raises(PoisonRecord, match="its dead letter cannot be written: ValueError: too large") as stopped:
        chain.push("numbers", _batch())
    assert "on_error" not in str(stopped.value)
