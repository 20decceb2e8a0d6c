"""Rows of a key keep their order over many runs, of which most take up rows that were under way in the one before.

Every size is tiny: frames, windows of credit, spilled files, what is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kafka_eos import Pipeline
from kafka_eos.config.settings import Settings
from tests.examples import seeds
from tests.schedules import row_order, single_thread_engine
from tests.schedules.job import Job
from tests.schedules.pipelines import Case

ROWS, RUNS, SEEDS = 15, 8, 4
_FIXED = {"state_backend": "memory", "aligned_timeout": 0.0}


def _settings(chance: Random) -> Settings:
    """Settings that users cannot make so small."""
    aligned = chance.random() < 0.25
    settings = Settings(
        checkpoint_mode="aligned" if aligned else "unaligned",
        batch_size=chance.choice([1, 3]),
        buffer_timeout=chance.choice([0.0, 0.001]),
        state_cache_entries=chance.choice([1, 1000]),
        alignment_spill=5000 if aligned else 0,
        **_FIXED,
    )
    return settings.model_copy(update={"exchange_memory": chance.choice([100, 2000, 1 << 20])})


def _run(plan_of: Callable[[Case], None], chance: Random, directory: Path) -> Counter[str]:
    case = Case(Pipeline("order"), chance, max_rows=ROWS)
    plan_of(case)
    job = Job(case.pipeline.plan(), directory, chance, _settings(chance), longest_run=2.2)
    for run in range(RUNS):
        single_thread_engine.run(job, chance.randint(1, 3), to_the_end=run == RUNS - 1)
    case.check()
    return job.counts


@pytest.mark.limits("tiny")
@pytest.mark.parametrize("kind", row_order.CASES)
def test_rows_of_a_key_keep_their_order_in_whichever_run(kind: str, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds(SEEDS):
        (tmp_path / str(seed)).mkdir()
        counts += _run(row_order.CASES[kind], Random(f"{kind}-{seed}"), tmp_path / str(seed))

    for seed in range(8 * SEEDS):  # whether rows are under way when a run ends is chance
        if counts["rows under way restored"] >= SEEDS and counts["epochs aborted"]:
            break
        (tmp_path / f"more-{seed}").mkdir()
        counts += _run(row_order.CASES[kind], Random(f"{kind}-more-{seed}"), tmp_path / f"more-{seed}")

    assert counts["rows under way restored"] >= SEEDS
    assert counts["epochs aborted"] > 0
