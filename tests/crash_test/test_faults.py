"""The plans of faults: those of the demo, and those of a crash test."""

from __future__ import annotations

from collections import Counter

import pytest

from kafka_eos._util import failpoints
from kafka_eos.devtools.crash_test.faults import (
    FAULT_PROFILES,
    PlannedFault,
    StepsOfPlan,
    Victim,
    failpoint_script,
    plan_every_step,
    plan_faults,
)

both_engines = pytest.mark.parametrize("engine", FAULT_PROFILES)


def test_the_same_seed_plans_the_same_faults() -> None:
    assert plan_faults(7) == plan_faults(7)


def test_seeds_differ() -> None:
    assert len({plan_faults(seed).faults for seed in range(20)}) == 20


def test_every_plan_kills_workers_five_times_the_supervisor_once_and_the_broker_once() -> None:
    for seed in range(50):
        found = Counter(fault.victim.value for fault in plan_faults(seed).faults)

        assert found == {"worker": 5, "supervisor": 1, "broker": 1, "job": 1}


def test_on_spark_driver_executors_and_workers_are_killed() -> None:
    for seed in range(50):
        found = Counter(fault.victim.value for fault in plan_faults(seed, engine="spark").faults)

        assert found == {"worker": 3, "executor": 2, "driver": 2, "broker": 1, "job": 1}


@both_engines
def test_steps_of_a_checkpoint_come_first_and_are_all_different(engine: str) -> None:
    for seed in range(50):
        plan = plan_faults(seed, engine=engine)
        points = [fault.point for fault in plan.step_faults]

        assert None not in points and len(set(points)) == len(points)
        assert plan.step_faults[-1].victim is plan.profile.leader
        assert all(fault.point is None for fault in plan.outside_faults)


@both_engines
def test_the_job_is_rescaled_once_with_faults_before_and_after(engine: str) -> None:
    targets = set()
    for seed in range(50):
        plan = plan_faults(seed, outside_kills=1, engine=engine)
        [at] = [n for n, fault in enumerate(plan.faults) if fault.victim is Victim.JOB]
        targets.add(plan.faults[at].parallelism)

        assert 0 < at < len(plan.faults) - 1
    assert targets == {(2, 1), (2, 3)}


def test_only_workers_that_there_are_at_that_time_are_hit() -> None:
    for seed in range(50):
        workers = 2
        for fault in plan_faults(seed).outside_faults:
            workers = fault.parallelism[1] if fault.parallelism else workers
            assert fault.number is None or fault.number < workers


@both_engines
def test_the_script_is_one_that_the_job_understands(engine: str) -> None:
    for seed in range(50):
        plan = plan_faults(seed, engine=engine)
        armed = failpoints.parse_script(failpoint_script(plan.step_faults))

        assert [(entry.name, entry.action, entry.at) for entry in armed] == [
            (fault.point, "kill", fault.epochs) for fault in plan.step_faults
        ]


@both_engines
def test_nothing_happens_before_the_job_has_committed_something(engine: str) -> None:
    assert all(fault.epochs >= 2 for seed in range(50) for fault in plan_faults(seed, engine=engine).faults)


def test_a_title_names_who_is_hit_and_where() -> None:
    assert PlannedFault(Victim.WORKER, "sink.seal", 3).title == "worker killed at sink.seal"
    assert PlannedFault(Victim.WORKER, "sink.seal", 3).format_title("worker 1") == "worker 1 killed at sink.seal"
    assert PlannedFault(Victim.EXECUTOR, None, 2, number=1).title == "executor 1 killed from outside"
    assert PlannedFault(Victim.JOB, None, 2, parallelism=(2, 3)).title.startswith("parallelism 2 → 3")


# ---------------------------------------------------------------- every step


def test_a_full_test_kills_at_every_step_of_an_epoch_a_commit_and_a_recovery() -> None:
    steps = StepsOfPlan(sinks=2, keeps_state=True, writes_lake=False, has_outbox=False)
    plan = plan_every_step(steps, seed=1, kills=30, quick=False, own_broker=True)
    elsewhere = ("lake", "outbox", "timers", "bootstrap", "async-map", "scratch", "in-flight", "packing", "savepoint")
    expected = {point for point in failpoints.POINTS if not point.startswith((*elsewhere, "micro-batch"))}

    assert {fault.point for fault in plan.step_faults} == expected
    assert failpoints.parse_script(failpoint_script(plan.step_faults))
    found = Counter(fault.victim for fault in plan.outside_faults)
    assert found[Victim.WORKER] + found[Victim.SUPERVISOR] == 30
    assert [found[v] for v in (Victim.BROKER, Victim.JOB, Victim.SAVEPOINT, Victim.ZOMBIE)] == [2, 1, 1, 1]


def test_on_spark_the_driver_is_killed_where_a_supervisor_is_and_executors_and_workers_at_random() -> None:
    steps = StepsOfPlan(sinks=1, keeps_state=True, writes_lake=False, has_outbox=False)
    plan, embedded = (
        plan_every_step(steps, seed=1, kills=100, quick=False, own_broker=True, engine=engine)
        for engine in ("spark", "embedded")
    )

    leaders = [fault.point for fault in plan.step_faults if fault.victim is Victim.DRIVER]
    assert leaders == [fault.point for fault in embedded.step_faults if fault.victim is Victim.SUPERVISOR]
    found = Counter(fault.victim for fault in plan.outside_faults)
    killed = [found[victim] for victim in (Victim.DRIVER, Victim.EXECUTOR, Victim.WORKER)]
    assert min(killed) > 10 and sum(killed) == 100
    assert {fault.name for fault in plan.outside_faults} >= {"driver", "executor 0", "executor 1", "worker 0"}
    assert Victim.ZOMBIE not in found


def test_steps_of_a_sink_are_hit_once_for_each_sink() -> None:
    plan = plan_every_step(StepsOfPlan(3, True, True, True), seed=1, kills=0, quick=False, own_broker=True)
    hits = [fault.epochs for fault in plan.step_faults if fault.point == "sink.flush.after"]

    assert hits == [4, 5, 6], "the second epoch of a process that reaches the step three times in each"
    assert {"lake.commit.before", "outbox.between"} <= {fault.point for fault in plan.step_faults}


def test_a_quick_test_of_a_pipeline_without_state_plans_few_faults() -> None:
    plan = plan_every_step(StepsOfPlan(1, False, False, False), seed=1, kills=2, quick=True, own_broker=True)

    assert [fault.point for fault in plan.step_faults if fault.point.startswith("snapshot")] == []
    assert len(plan.faults) <= 12
    assert Victim.BROKER not in {fault.victim for fault in plan.faults}


def test_the_broker_of_others_is_not_restarted() -> None:
    plan = plan_every_step(StepsOfPlan(1, True, False, False), seed=1, kills=1, quick=False, own_broker=False)

    assert Victim.BROKER not in {fault.victim for fault in plan.faults}
