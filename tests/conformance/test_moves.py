"""A job goes from engine to engine with a savepoint, and its whole output is that of a job that never moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos.app import load
from kafka_eos.audit import audit
from tests.conformance.cases import CASES
from tests.conformance.runs import REFERENCE, Run, Runs, differences, feed

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
TURNS = ("embedded-3", "spark", "embedded-1", "spark")


def go_on(run: Run, engine: str, spark: Any, savepoint: Path | None) -> None:
    run.engine = engine
    if engine == "spark":
        run.on_spark(spark, savepoint)
    else:
        run.start(savepoint)
        run.wait()


@pytest.mark.parametrize("case", ["keyed", "letters"])
def test_savepoints_go_there_and_back(runs: Runs, spark: Any, case: str) -> None:
    reference = runs.of(case, REFERENCE, spark)
    run, rows = runs.begin(case, "moving"), CASES[case].phases[0]["input"]

    savepoint = None
    for turn, engine in enumerate(TURNS):
        feed(
            runs.bootstrap,
            run.topics["input"],
            rows[turn * len(rows) // len(TURNS) : (turn + 1) * len(rows) // len(TURNS)],
        )
        go_on(run, engine, spark, savepoint)
        savepoint = run.savepoint()

    for output in CASES[case].outputs:
        assert differences(CASES[case], output, run.rows(output), reference.rows(output)) == []
    assert run.left_open() == []


def test_the_audit_of_a_job_that_moved_with_its_checkpoints(runs: Runs, spark: Any) -> None:
    run, rows = runs.begin("stages", "audited"), CASES["stages"].phases[0]["input"]

    for turn, engine in enumerate(TURNS):
        feed(runs.bootstrap, run.topics["input"], rows[turn * 100 : turn * 100 + 100])
        go_on(run, engine, spark, None)

    verdict = audit(load(run.app), run.settings(), app=run.app, spark=spark, settle_seconds=5.0)
    assert verdict.exit_code == 0, verdict
    assert len(run.rows("output")) == 400
