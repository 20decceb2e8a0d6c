"""One pipeline commits the same output on all engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kafka_eos.savepoints import Snapshot
from tests.conformance.cases import CASES, N
from tests.conformance.runs import ENGINES, REFERENCE, Runs, differences

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
REPEATED = ("spread", "diamond", "united", "letters", "expiring", "triggered", "aligned", "named-windows")
ELSEWHERE = ("stateless", "stages", "merged", "aggregated")
"""The verbs of others in another shape, or one code on all engines; and what `tests/nexmark` and `tests/spark` run on
Spark anyhow. Left to `make campaign`."""
ON_SPARK = ("keyed", "windowed", "deduplicated", "loop")
"""Spark is another place for the same workers, so these show by default that it changes nothing."""


def _left(case: str, engine: str = "") -> tuple[pytest.MarkDecorator, ...]:
    is_left = case in REPEATED + ELSEWHERE or (engine == "spark" and case not in ON_SPARK)
    return (pytest.mark.campaign,) if is_left else ()


PAIRS = [pytest.param(case, engine, marks=_left(case, engine)) for case in CASES for engine in ENGINES]


@pytest.mark.parametrize(("case", "engine"), PAIRS)
def test_committed_outputs_are_the_same(runs: Runs, spark: Any, case: str, engine: str) -> None:
    run, reference = runs.of(case, engine, spark), runs.of(case, REFERENCE, spark)

    for output in CASES[case].outputs:
        assert differences(CASES[case], output, run.rows(output), reference.rows(output)) == []


@pytest.mark.parametrize("case", [pytest.param(case, marks=_left(case)) for case in CASES])
def test_the_reference_has_as_many_rows_as_it_must_and_no_engine_left_anything(
    runs: Runs, spark: Any, case: str
) -> None:
    reference = runs.of(case, REFERENCE, spark)

    for output in CASES[case].outputs:
        rows = reference.rows(output)
        assert differences(CASES[case], output, rows, rows) == []
    assert runs.left_open(case) == []


@pytest.mark.parametrize("engine", [REFERENCE, *ENGINES])
def test_what_a_function_counts_is_told_of_all_workers_together(runs: Runs, spark: Any, engine: str) -> None:
    run = runs.of("keyed", engine, spark)
    told = json.loads((run.checkpoints / run.job / "status.json").read_text())["last"]["progress"]

    assert told["operators"]["statement"]["rows_in"] == told["records_in"] == N
    assert told["user_counters"] == {"statement": {"payments": N}}


@pytest.mark.parametrize("engine", [REFERENCE, *ENGINES])
def test_nothing_is_left_of_keys_that_are_over(runs: Runs, spark: Any, engine: str) -> None:
    """But for what the last rows were: of all other keys no row, and no timer, is in the last checkpoint."""
    run = runs.of("deduplicated", engine, spark)
    snapshot = Snapshot.open(run.checkpoints / run.job)

    assert {state: len(list(snapshot.read("once", state))) for state in snapshot.states("once")} == {
        "passed": 20,
        "event-timers": 20,
    }
