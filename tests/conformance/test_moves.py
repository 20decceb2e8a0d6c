"""A job goes from engine to engine with a savepoint, and its whole output is that of a job that never moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import audit
from kafka_eos.runtime.program import load_program
from kafka_eos.savepoints import Snapshot
from tests.conformance.cases import CASES, Case, Fed
from tests.conformance.runs import REFERENCE, Run, Runs, differences, feed
from tests.marks import campaign

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
TURNS = ("embedded-3", "spark", "embedded-1")
HELD = {
    "looked-up": (("rated-then", "left"), ("rated-then", "right")),
    "ruled": (("applied-broadcast", "rules"),),
    "requests": (("rated", "answers"),),
}
"""By case: states that have something at the end of each turn, which the next one goes on with."""

UNPROVEN = {"requests"}
"""Cases that the audit cannot judge. Nobody knows what is lost behind services: none is asked again."""


def go_on(run: Run, engine: str, spark: Any, savepoint: Path | None) -> None:
    run.engine = engine
    if engine == "spark":
        run.on_spark(spark, savepoint)
    else:
        run.start(savepoint)
        run.wait()


def thirds(case: Case) -> list[Mapping[str, list[Fed]]]:
    """What a job gets in each turn: its phases, or parts of its only one."""
    if len(case.phases) == len(TURNS):
        return list(case.phases)
    rows = case.phases[0]["input"]
    size = len(rows) // len(TURNS)
    return [{"input": rows[turn * size : (turn + 1) * size]} for turn in range(len(TURNS))]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("keyed", "savepoints"),
        campaign("stages", "checkpoints"),
        campaign("timed", "savepoints"),
        campaign("aggregated", "savepoints"),
        campaign("triggered", "savepoints"),
        campaign("matched", "savepoints"),
        campaign("ruled", "savepoints"),
        campaign("looked-up", "savepoints"),
        campaign("requests", "savepoints"),
        campaign("windowed", "savepoints"),
    ],
)
def test_a_job_goes_there_and_back(runs: Runs, spark: Any, name: str, how: str) -> None:
    """Its history is one, by comparison and by the audit: with savepoints over all of its checkpoint directories."""
    reference, case = runs.of(name, REFERENCE, spark), CASES[name]
    run = runs.begin(name, how)

    earlier: list[Path] = []
    for engine, phase in zip(TURNS, thirds(case), strict=True):
        for role, rows in phase.items():
            feed(runs.bootstrap, run.topics[role], rows)
        go_on(run, engine, spark, run.savepoint() if earlier else None)
        earlier += [run.checkpoints / run.job] if how == "savepoints" else []
        for operator, state in HELD.get(name, ()):
            assert list(Snapshot.open(run.checkpoints / run.job).read(operator, state)), f"nothing waits in {state}"

    for output in case.outputs:
        assert differences(case, output, run.rows(output), reference.rows(output)) == []
    assert runs.left_open(name) == []
    verdict = audit(load_program(run.app), run.settings(), app=run.app, spark=spark, earlier=earlier[:-1])
    is_clean = verdict.conclusion.is_clean
    assert (is_clean, verdict.facts.before_savepoint, verdict.findings) == (name not in UNPROVEN, 0, ()), verdict
    assert verdict.facts.inputs == sum(len(rows) for phase in case.phases for rows in phase.values())
