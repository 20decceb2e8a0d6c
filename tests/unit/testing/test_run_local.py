"""run_local gives what an engine would write, sink by sink, from values alone."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos.dsl import Pipeline
from kafka_eos.errors import PlanError, PoisonRecord
from kafka_eos.interfaces import DeadLetters
from kafka_eos.records import Rejected
from kafka_eos.testing import ListSource, MemorySink, run_local

ORDERS = [{"user": user, "amount": amount} for user, amount in [("ada", 3), ("bob", 5), ("ada", 4), ("bob", 1)]]


def _totals() -> Pipeline:
    pipeline = Pipeline("totals")
    (
        pipeline.source("orders", ListSource([]))
        .key_by(lambda order: order["user"])
        .fold("total", init=lambda: 0, step=lambda total, order: total + order["amount"], state=int)
        .sink("totals", MemorySink())
    )
    return pipeline


@pytest.mark.parametrize("batch_size", [1, 3, 500])
def test_state_is_kept_across_batches(batch_size: int) -> None:
    result = run_local(_totals(), {"orders": ORDERS}, batch_size=batch_size)

    assert dict(result["totals"]) == {"ada": 7, "bob": 6}


def test_two_runs_share_nothing() -> None:
    pipeline = _totals()

    assert run_local(pipeline, {"orders": ORDERS}) == run_local(pipeline.plan(), {"orders": ORDERS})


def test_every_sink_gets_its_own_list() -> None:
    pipeline = Pipeline("branches")
    numbers = pipeline.source("numbers", ListSource([]))
    numbers.filter(lambda n: n % 2 == 0).sink("even", MemorySink())
    words = pipeline.source("words", ListSource([])).map(len)
    numbers.union(words).flat_map(lambda n: [n] * 2).sink("twice", MemorySink())

    result = run_local(pipeline, {"numbers": range(4), "words": ["abcde"]})
    assert result == {"even": [0, 2], "twice": [0, 0, 1, 1, 2, 2, 3, 3, 5, 5]}


def test_a_source_without_input_and_a_sink_without_output_are_empty() -> None:
    assert run_local(_totals(), {}) == {"totals": []}


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(PlanError, match=r"\['ordres'\].*\['orders'\]"):
        run_local(_totals(), {"ordres": ORDERS})


def _division(**options: Any) -> Pipeline:
    pipeline = Pipeline("division")
    pipeline.source("numbers", ListSource([]), **options).map(lambda n: 12 // n).sink("quotients", MemorySink())
    return pipeline


def test_a_refused_record_stops_the_run_with_its_place() -> None:
    with pytest.raises(PoisonRecord, match="ZeroDivisionError") as caught:
        run_local(_division(), {"numbers": [3, 0, 4]}, batch_size=1)

    assert caught.value.where == "numbers/0/1"


def test_dead_letters_appear_under_their_sinks_name() -> None:
    pipeline = _division(on_error=DeadLetters(MemorySink()))
    result = run_local(pipeline, {"numbers": [3, 0, 4]})

    (letter,) = result["numbers-dead-letters"]
    assert result["quotients"] == [4, 3]
    assert isinstance(letter, Rejected)
    assert (letter.raw.offset, letter.raw.value, letter.error_type) == (1, b"0", "ZeroDivisionError")
