"""Whatever the schedule, what is committed is what a batch computation gives, and each output once.

One run follows another, each with another number of workers: they die at any moment, barriers overtake rows, and come
between any two firings. ``make schedules SEEDS=1000`` tries more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.config.settings import Settings
from kafka_eos.runtime.operators.event_time import WatermarkSchedule
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.worker import task_resources as open_task
from kafka_eos.runtime.worker import worker_runtime as open_plan
from tests.limits import TINY, set_limits, some_limits
from tests.marks import campaign
from tests.schedules import expiring_windows, pipelines, row_order, single_thread_engine, timer_pipelines
from tests.schedules.job import Job
from tests.schedules.pipelines import Case

CASES = {**pipelines.CASES, **timer_pipelines.CASES, **expiring_windows.CASES, **row_order.CASES}
SEEDS = int(os.environ.get("SEEDS", "40"))
FEW, FEW_RUNS = 10, 4
"""Rows of a split at most, and runs, of the one that is always run."""


_AT_A_TIME = ("rows_per_firing", "firings_per_slice", "pane_keys_per_batch", "pane_keys_per_share", "timers_per_page")
"""Limits of what is done so many at a time; here it is done one at a time."""


@pytest.fixture
def in_small_steps(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time goes on with each batch, and what it makes due is done one firing at a time. The seed draws other limits."""
    clock = count()
    monkeypatch.setattr(open_plan, "_TICK", 0.0)
    monkeypatch.setattr(open_plan, "PERIODIC", WatermarkSchedule(0.0, lambda: next(clock) / 1000, slice=0.0))
    drawn = some_limits(Random(f"limits-{kind}-{seed}")) if seed else TINY
    with set_limits(**{**drawn, **dict.fromkeys(_AT_A_TIME, 1)}):
        yield


def _schedules() -> list[Any]:
    """One of each kind, but of those in ``test_order``; in the campaign, many of all."""
    first = [(kind, 0) for kind in CASES if kind not in row_order.CASES]
    return [*first, *(campaign(kind, seed) for kind in CASES for seed in range(1, SEEDS))]


@pytest.mark.parametrize(("kind", "seed"), _schedules())
def test_any_schedule_gives_what_a_batch_computation_gives(
    kind: str, seed: int, tmp_path: Path, in_small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(f"{kind}-{seed}")
    case = Case(Pipeline(kind), chance, max_rows=40 if seed else FEW)
    CASES[kind](case)
    settings = Settings(
        checkpoint_mode=chance.choice(["unaligned", "aligned"]),
        aligned_timeout=0.0,
        batch_size=chance.choice([1, 3, 10]),
        buffer_timeout=chance.choice([0.0, 0.001]),
        state_backend=chance.choice(["memory", "rocksdb"]),
        state_cache_entries=chance.choice([1, 5, 1000]),
    )
    job = Job(case.pipeline.plan(), tmp_path, chance, settings)
    monkeypatch.setattr(open_plan, "wall_clock", case.look)
    monkeypatch.setattr(open_task, "open_backend", partial(open_backend, clock=lambda: case.clock))
    number = chance.randint(2, 8) if seed else FEW_RUNS
    for run in range(number):
        case.clock += chance.choice([0, -50, 100_000])
        case.last_run_start = case.clock
        single_thread_engine.run(job, chance.randint(1, 3), to_the_end=run == number - 1)

    case.check()
    for operator in case.ending:
        assert not job.left(operator, case.clock), f"{operator}: what has expired has left something"
