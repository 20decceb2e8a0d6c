"""The whole protocol under a seeded scheduler: some hundred seeds here, ten thousand with ``make simulation``.

A failure prints the seed, what is wrong, and the smallest scenario that is wrong as well. To look at it:
``World(Scenario(...)).run()``.
"""

from collections import Counter
from dataclasses import replace

import pytest

from kafka_eos.protocol.barrier_alignment import CheckpointMode
from tests.simulation.__main__ import explain
from tests.simulation.bugs import BUGS, PlantedBug
from tests.simulation.scenario import generate
from tests.simulation.shrink import shrink
from tests.simulation.world import FAILURES, World, run

SEEDS = 300
HAPPENS = {
    "a base dropped",
    "a claim dropped",
    "a commit that only its marker shows",
    "a connection to another cluster",
    "a crash while old epochs were dropped",
    "a failed job that cleaned up",
    "a file dropped",
    "a manifest dropped",
    "a probe that a replaced broker answered",
    "a receipt dropped",
    "a savepoint made while the job went on",
    "a job drained",
    "a late answer",
    "a recovery that failed in its second phase",
    "a restart with rows in flight",
    "a session fenced",
    "a topic that looked missing before a decision",
    "an epoch aborted",
    "an epoch decided",
    "an epoch finished by recovery",
    "an epoch revoked",
    "an epoch that left nothing under way decided",
    "expired records that a checkpoint showed to be read",
    "output of an aborted epoch decided",
    "output that an attempt knew by another name",
    "overtaken rows in a snapshot",
    "rows received before their barrier in a snapshot",
}


def test_no_seed_breaks_an_invariant_and_together_they_see_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(generate(seed))
        try:
            world.run()
        except FAILURES as error:
            pytest.fail(explain(world.scenario, error))
        seen.update(world.job.seen)

    assert {what for what, times in seen.items() if times} >= HAPPENS


def test_a_run_is_determined_by_its_scenario() -> None:
    for seed in range(5):
        first, second = World(generate(seed)), World(generate(seed))
        first.run()
        second.run()

        assert first.steps == second.steps
        assert first.sink.log == second.sink.log
        assert first.job.manifests == second.job.manifests


def test_a_dropped_fault_leaves_the_schedule_before_it_as_it_was() -> None:
    scenario = next(s for s in map(generate, range(1000)) if len(s.faults) > 1 and s.faults[-1].at > 500)
    with_all, without_last = World(scenario), World(replace(scenario, faults=scenario.faults[:-1]))
    for world in (with_all, without_last):
        faults = [f for f in world.scenario.faults if f.at < scenario.faults[-1].at]
        for step in range(1, scenario.faults[-1].at):
            world.steps = step
            while faults and faults[0].at <= step:
                world._break(faults.pop(0))
            world._step()

    assert with_all.sink.log == without_last.sink.log


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_simulation_finds(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)

    scenarios = (bug.narrowed(generate(seed)) for seed in range(bug.since, bug.within))
    assert any(run(scenario) is not None for scenario in scenarios), "no seed has found it"


def test_a_failing_scenario_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    next(bug for bug in BUGS if bug.name == "overtaken rows are not stored").plant(monkeypatch)
    failing = next(s for s in map(generate, range(50)) if len(s.faults) > 2 and run(s) is not None)

    small = shrink(failing, run)

    assert run(small) is not None
    assert small.faults == ()
    assert small.rows < failing.rows
    assert small.mode is CheckpointMode.UNALIGNED
    assert f"seed {failing.seed}" in explain(failing, run(failing) or AssertionError())
