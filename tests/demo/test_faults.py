"""The plan of a demo's faults."""

from __future__ import annotations

from kafka_eos import failpoints
from kafka_eos.demo.faults import Victim, plan_faults


def test_the_same_seed_plans_the_same_faults() -> None:
    assert plan_faults(7) == plan_faults(7)


def test_seeds_differ() -> None:
    assert len({plan_faults(seed).faults for seed in range(20)}) == 20


def test_every_plan_kills_the_worker_five_times_the_supervisor_once_and_the_broker_once() -> None:
    for seed in range(50):
        victims = [fault.victim for fault in plan_faults(seed).faults]

        assert sorted(victim.value for victim in victims) == ["broker", "supervisor", *["worker"] * 5]


def test_steps_of_a_checkpoint_come_first_and_are_all_different() -> None:
    for seed in range(50):
        plan = plan_faults(seed)
        points = [fault.point for fault in plan.first_life]

        assert None not in points and len(set(points)) == len(points)
        assert plan.first_life[-1].victim is Victim.SUPERVISOR
        assert all(fault.point is None for fault in plan.second_life)


def test_the_script_is_one_that_the_job_understands() -> None:
    for seed in range(50):
        plan = plan_faults(seed)
        armed = failpoints.parse(plan.script)

        assert [(entry.name, entry.action, entry.at) for entry in armed] == [
            (fault.point, "kill", fault.epochs) for fault in plan.first_life
        ]


def test_no_kill_comes_before_the_job_has_committed_something() -> None:
    assert all(fault.epochs >= 2 for seed in range(50) for fault in plan_faults(seed).faults)
