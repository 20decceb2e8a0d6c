"""What a replay cannot repeat is named at each operator that it concerns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kafka_eos import Pipeline, ProcessFunction, Ttl, monotonic
from kafka_eos.ops.epoch_replay.inexact_parts import list_inexact_parts
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.epoch_replay import EpochInput, ReplayStart, replay_epochs


class _Reminder(ProcessFunction[str, str, str]):
    def process(self, key: str, value: str) -> list[str]:
        return []

    def on_processing_timer(self, key: str, time: int) -> list[str]:
        return []


async def _ask(value: str) -> str:
    return value


def _everything() -> Pipeline:
    pipeline = Pipeline("everything")
    words = pipeline.source(ListSource([]), name="words")
    timed = words.with_timestamps(lambda word: 0, watermarks=monotonic(), name="times").map_batches(
        list, name="batches"
    )
    keyed = timed.async_map(_ask, name="ask", timeout=1).key_by(str)
    keyed.process(_Reminder, name="remind").sink(MemorySink(), name="reminders")
    keyed.fold(name="expiring", init=int, step=lambda n, _: n + 1, state=int, ttl=Ttl(60)).sink(
        MemorySink(), name="counts"
    )
    words.key_by(str).fold(name="merged", init=int, step=lambda n, _: n + 1, merge=int.__add__, state=int).sink(
        MemorySink(), name="merges"
    )
    return pipeline


def _list(splits: int, parallelism: int, tmp_path: Path) -> dict[str, list[str]]:
    plan = _everything().plan()
    with SavepointBuilder.new(plan.name) as builder:
        builder.write(tmp_path / "empty")
    start = ReplayStart(Snapshot.open(tmp_path / "empty"), 0, {"words": ["words/0"]})
    state = replay_epochs(plan, start, [EpochInput(1, 0, [])]).before
    return list_inexact_parts(plan, {"words": {f"words/{n}" for n in range(splits)}}, parallelism, state)


def _short(found: dict[str, list[str]]) -> dict[str, Any]:
    return {name: [reason.split()[0] for reason in reasons] for name, reasons in found.items()}


def test_one_partition_and_one_worker(tmp_path: Path) -> None:
    assert _short(_list(1, 1, tmp_path)) == {
        "times": ["event"],
        "batches": ["its"],
        "ask": ["its"],
        "remind": ["timers"],
        "expiring": ["state"],
    }


def test_several_partitions_and_workers(tmp_path: Path) -> None:
    found = _short(_list(2, 3, tmp_path))

    assert {name for name, reasons in found.items() if "nothing" in reasons} == {"remind", "expiring", "merged"}
    assert [name for name, reasons in found.items() if "one" in reasons] == ["merged-partial"]
