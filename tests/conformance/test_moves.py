"""A job goes from engine to engine with a savepoint, and its whole output is that of a job that never moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos.app import load
from kafka_eos.audit import audit
from tests.conformance.cases import CASES, Fed
from tests.conformance.runs import REFERENCE, Run, Runs, differences, feed
from tests.marks import campaign

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
TURNS = ("embedded-3", "spark", "embedded-1")


def go_on(run: Run, engine: str, spark: Any, savepoint: Path | None) -> None:
    run.engine = engine
    if engine == "spark":
        run.on_spark(spark, savepoint)
    else:
        run.start(savepoint)
        run.wait()


def thirds(rows: list[Fed]) -> list[list[Fed]]:
    size = len(rows) // len(TURNS)
    return [rows[turn * size : (turn + 1) * size] for turn in range(len(TURNS))]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        campaign("keyed", "savepoints"),
        campaign("stages", "checkpoints"),
        campaign("timed", "savepoints"),
        campaign("aggregated", "savepoints"),
        campaign("triggered", "savepoints"),
        campaign("matched", "savepoints"),
        ("windowed", "savepoints"),
    ],
)
def test_a_job_goes_there_and_back(runs: Runs, spark: Any, name: str, how: str) -> None:
    """Its history is one, by comparison and by the audit: with savepoints over all of its checkpoint directories."""
    reference, case = runs.of(name, REFERENCE, spark), CASES[name]
    run = runs.begin(name, how)

    earlier: list[Path] = []
    for engine, rows in zip(TURNS, thirds(case.phases[0]["input"]), strict=True):
        feed(runs.bootstrap, run.topics["input"], rows)
        go_on(run, engine, spark, run.savepoint() if earlier else None)
        earlier += [run.checkpoints] if how == "savepoints" else []

    for output in case.outputs:
        assert differences(case, output, run.rows(output), reference.rows(output)) == []
    assert runs.left_open(name) == []
    verdict = audit(load(run.app), run.settings(), app=run.app, spark=spark, earlier=earlier[:-1])
    assert (verdict.exit_code, verdict.facts.before) == (0, 0), verdict
    assert verdict.facts.inputs == len(case.phases[0]["input"])
