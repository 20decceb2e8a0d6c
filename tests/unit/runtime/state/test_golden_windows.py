"""Windows that version 1 has stored half-way: today's code goes on with them, and the whole comes out.

``tests/golden/windows`` holds the job directories, what the job had put out, and the job, which had read half of its
payments; ``windows-without-timers`` those of windows that end without timers. Rule: as in ``test_golden``.
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


def job(sample: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for name in ("TEST_BACKEND", "TEST_CHECKPOINTS", "TEST_FILES", "TEST_MORE"):
        monkeypatch.setenv(name, "unused")
    return runpy.run_path(str(sample / "job.py"))


@pytest.mark.parametrize(
    ("kind", "backend", "workers"),
    [
        ("windows", "rocksdb", 3),
        ("windows-without-timers", "memory", 2),
        ("windows-without-timers", "rocksdb", 1),
        campaign("windows", "memory", 2),
        campaign("windows", "rocksdb", 1),
        campaign("windows-without-timers", "rocksdb", 3),
    ],
)
def test_windows_go_on_with_what_they_hold(
    kind: str, backend: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = GOLDEN / kind
    found = job(sample, monkeypatch)
    for name in (f"golden-{backend}", f"files-{backend}"):
        shutil.copytree(sample / name, tmp_path / name)
    files = tmp_path / f"files-{backend}"
    before = {name: lines(files / name) for name in found["results"]}

    environment = {"TEST_BACKEND": backend, "TEST_CHECKPOINTS": str(tmp_path), "TEST_FILES": str(files)}
    command = (sys.executable, "-m", "kafka_eos", "run", "job.py", "--until-caught-up", "-p", str(workers))
    subprocess.run(command, env={**os.environ, **environment, "TEST_MORE": "1"}, cwd=sample, check=True)

    whole = run_local(found["pipeline"], {"payments": found["PAYMENTS"]})
    for name in found["results"]:
        assert lines(files / name) == sorted(whole[f"{name}-out"]), name
        assert len(before[name]) < len(whole[f"{name}-out"]) or name == "accounts"


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_those_without_timers_are_read_in_the_order_of_time(backend: str) -> None:
    snapshot = Snapshot.open(GOLDEN / "windows-without-timers" / f"golden-{backend}")
    held = dict(snapshot.read("totals", "windows"))

    assert {key for key, _ in held} <= {"a0", "a1"}
    assert all(start % 5000 == 0 and acc["count"] > 0 for (_, start), acc in held.items())
    assert dict(snapshot.read("totals", "event-timers")) == {}
    assert snapshot.find_entries("totals", "windows", "a0") == [
        (place, acc) for place, acc in held.items() if place[0] == "a0"
    ]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_they_are_read_without_the_job(backend: str) -> None:
    snapshot = Snapshot.open(GOLDEN / "windows" / f"golden-{backend}")
    held = dict(snapshot.read("early", "windows"))
    spans = dict(snapshot.read("of-sessions", "sessions"))

    assert sum(acc["count"] for acc in held.values()) > 0
    assert all(start < end for sessions in spans.values() for start, end in sessions)
    assert len(dict(snapshot.read("rows", "windows"))) > 0
