"""Calls of user functions are counted in memory that outlives a killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos.api import Pipeline
from kafka_eos.runtime.call_counts import VARIABLE, count_calls, read_call_counts
from kafka_eos.testing import ListSource, MemorySink, run_local

KILLED = """
import os, signal
from kafka_eos.runtime.call_counts import count_calls
from kafka_eos.testing import run_local
from tests.unit.runtime.test_call_counts import pipeline

run_local(count_calls(pipeline().plan()), {"numbers": [1, 2, 3]})
os.kill(os.getpid(), signal.SIGKILL)
"""


def pipeline() -> Pipeline:
    made = Pipeline("counted")
    numbers = made.source(ListSource([]), name="numbers").filter(lambda n: n > 1, name="big")
    numbers.map(lambda n: n * 2, name="double").sink(MemorySink(), name="out")
    return made


def test_a_killed_process_keeps_its_counts_and_processes_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=root, env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_call_counts(tmp_path) == {("big", "fn"): 3, ("double", "fn"): 2}

    assert run_local(count_calls(pipeline().plan()), {"numbers": [5]}) == {"out": [10]}
    assert read_call_counts(tmp_path) == {("big", "fn"): 4, ("double", "fn"): 3}


def test_nothing_is_counted_unless_that_is_armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    plan = pipeline().plan()

    assert count_calls(plan) is plan
