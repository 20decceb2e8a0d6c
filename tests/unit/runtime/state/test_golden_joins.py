"""Joins that version 1 has stored half-way: today's code goes on with them, and the whole comes out.

``tests/golden/joins`` holds the job directories, what the job had put out, and the job, which had read half of its
orders and payments. Rule: as in ``test_golden``.
"""

from __future__ import annotations

import base64
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.savepoints import Snapshot
from kafka_eos.testing import run_local
from tests.marks import campaign

GOLDEN = Path(__file__).parents[3] / "golden"


def lines(directory: Path) -> list[bytes]:
    """What a sink of files has put out, in no order."""
    return sorted(
        base64.b64decode(json.loads(line))
        for file in directory.glob("part-*.jsonl")
        for line in file.read_text().splitlines()
    )


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for name in ("TEST_BACKEND", "TEST_CHECKPOINTS", "TEST_FILES", "TEST_MORE"):
        monkeypatch.setenv(name, "unused")
    return runpy.run_path(str(GOLDEN / "joins" / "job.py"))


@pytest.mark.parametrize(
    ("backend", "workers"), [campaign("memory", 2), ("rocksdb", 2), campaign("rocksdb", 1), campaign("rocksdb", 3)]
)
def test_joins_go_on_with_the_rows_that_wait(
    job: Mapping[str, Any], backend: str, workers: int, tmp_path: Path
) -> None:
    for name in (f"golden-{backend}", f"files-{backend}"):
        shutil.copytree(GOLDEN / "joins" / name, tmp_path / name)
    files = tmp_path / f"files-{backend}"
    before = {name: lines(files / name) for name in job["results"]}

    environment = {"TEST_BACKEND": backend, "TEST_CHECKPOINTS": str(tmp_path), "TEST_FILES": str(files)}
    command = (sys.executable, "-m", "kafka_eos", "run", "job.py", "--until-caught-up", "-p", str(workers))
    subprocess.run(command, env={**os.environ, **environment, "TEST_MORE": "1"}, cwd=GOLDEN / "joins", check=True)

    whole = run_local(job["pipeline"], {"orders": job["ORDERS"], "payments": job["PAYMENTS"]})
    for name in job["results"]:
        assert lines(files / name) == sorted(whole[f"{name}-out"]), name
        assert 0 < len(before[name]) < len(whole[f"{name}-out"])


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_they_are_read_without_the_job(backend: str) -> None:
    snapshot = Snapshot.open(GOLDEN / "joins" / f"golden-{backend}")
    held = {state: dict(snapshot.read("near", state)) for state in ("left", "right", "left-met", "right-met")}
    orders = [element["value"] for elements in held["left-met"].values() for element in elements]

    assert all(held.values())
    assert {key for key, _ in held["left"]} <= {"a0", "a1", "a2", "a3"}
    assert all(order["total"] == order["id"] * 0.1 for order in orders)
    assert set(snapshot.states("inner")) == {"left", "right", "event-timers"}


def test_which_join_a_state_is_held_for_is_stored() -> None:
    snapshot = Snapshot.open(GOLDEN / "joins" / "golden-memory")
    joins = ("near", "inner", "tumbled", "slid", "sessions")

    assert [snapshot.states(name)["left"].description["definition"] for name in joins] == [
        {"kind": "interval", "lower": -1000, "upper": 3000, "unmatched": ["left", "right"]},
        {"kind": "interval", "lower": 0, "upper": 5000, "unmatched": []},
        {"kind": "tumbling", "size": 5000, "offset": 0},
        {"kind": "sliding", "size": 6000, "every": 2000, "offset": 0},
        {"kind": "session", "gap": 3000},
    ]
