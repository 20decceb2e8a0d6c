"""What reads rows whose type is not known waits for its barriers, and holds none of them on the disk."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.config.settings import Settings
from kafka_eos.plan import Plan
from kafka_eos.protocol.barrier_alignment import CheckpointMode
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.worker.worker_runtime import alignment_of
from kafka_eos.testing import ListSource, MemorySink


def plan(values: Any) -> Plan:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource([1]), name="in")
    stays = source.map(lambda n: [n], name="made").forward(name="stays", values=values)
    source.rebalance(values=int, name="over").union(stays, name="both").sink(MemorySink(), name="out")
    return pipeline.plan()


@pytest.mark.parametrize(
    ("mode", "values", "found"),
    [
        ("unaligned", None, (CheckpointMode.ALIGNED, math.inf)),
        ("unaligned", list, (CheckpointMode.UNALIGNED, 3.0)),
        ("aligned", None, (CheckpointMode.ALIGNED, math.inf)),
        ("at-least-once", None, (CheckpointMode.AT_LEAST_ONCE, math.inf)),
    ],
)
def test_only_the_segment_that_reads_them_waits(mode: Any, values: Any, found: tuple[CheckpointMode, float]) -> None:
    built, told = plan(values), {"checkpoint_mode": mode}
    settings = Settings.resolve(code={**told, "aligned_timeout": 3.0} if mode == "unaligned" else told)
    (before,) = (each for each in built.segments if "in" in each.heads)
    (behind,) = (each for each in built.segments if "stays" in each.heads)

    assert alignment_of(settings, behind, built) == found
    assert alignment_of(settings, before, built) == ((CheckpointMode.UNALIGNED, 3.0) if mode == "unaligned" else found)


@pytest.mark.parametrize(("values", "holds"), [(None, False), (list, True)])
def test_none_of_them_is_held_on_the_disk(tmp_path: Path, values: Any, holds: bool) -> None:
    built, settings = plan(values), Settings.resolve(code={"alignment_spill": 1000})
    with ExitStack() as closing:
        exchanges = Exchanges(built, settings, built.exchanges, {}, 0, 1, tmp_path, closing)

        assert [each.spill_limit > 0 for each in exchanges.inputs("stays")] == [holds]
        assert all(each.spill_limit > 0 for each in exchanges.inputs("over"))
