"""User code that never comes back: where it stands is told, and its worker is replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.harness import Job, read
from tests.chaos.running import running

NewJob = Callable[..., Job]
ROWS, PAID = 1500, 1350


def ask(*arguments: str) -> tuple[int, str]:
    asked = subprocess.run([sys.executable, "-m", "kafka_eos", *arguments], stdout=subprocess.PIPE, text=True)
    return asked.returncode, asked.stdout


def test_a_worker_whose_code_never_comes_back_is_told_of_and_replaced(new_job: NewJob, tmp_path: Path) -> None:
    settings = {"KAFKA_EOS_PARALLELISM": 2, "KAFKA_EOS_WORKER_TIMEOUT": "6s", "TEST_HUNG": tmp_path / "hung"}
    job = new_job(ROWS, "straight.py", **settings)
    with running(job) as run:
        (hung, *_) = run.until(lambda: run.events("hung"), "tell who hangs")
        code, asked = ask("stacks", job.name, "--checkpoint-dir", str(job.checkpoints))
        replaced = run.until(lambda: run.events("restarting"), "replace the worker")
        run.until_all_committed()
        run.drain()

    assert hung["seconds"] < 6
    assert hung["at"] > 0, "the time of the event, as all have it"
    assert re.fullmatch(r"operator map-1, record fault-\w+-in/\d/\d+", hung["place"]), hung
    assert "straight.py" in hung["stacks"] and "in never_comes_back" in hung["stacks"]
    assert hung["stacks"].count("most recent call first") > 2, "of all threads"
    assert code == 0
    head, *others = asked.split("=== ")[1:]
    assert head.startswith("supervisor, process ") and "in _wait" in head
    assert [each.split(",")[0] for each in others] == ["worker 0", "worker 1"]
    (stacks,) = [each for each in others if "in never_comes_back" in each]
    assert stacks.startswith(f"worker {hung['worker']}, process {hung['process']}\n")
    assert f"subtask {hung['worker']} is alive" in replaced[0]["reason"], replaced
    assert hung["place"] in replaced[0]["reason"]
    assert len(run.events("hung")) == 2, "where it stood when it was replaced is told, too"
    assert not run.events("unresponsive"), "its process lives"
    assert "in never_comes_back" in run.log, "the log has it"
    assert len(read(job.bootstrap, job.output)) == PAID


@pytest.mark.campaign
def test_a_call_in_c_that_keeps_all_threads_from_running_is_told_as_a_silent_process_with_its_stacks(
    new_job: NewJob, tmp_path: Path
) -> None:
    settings = {"KAFKA_EOS_WORKER_TIMEOUT": "8s", "TEST_HUNG": tmp_path / "hung", "TEST_HUNG_IN_C": "1"}
    job = new_job(ROWS, "straight.py", **settings)
    with running(job) as run:
        replaced = run.until(lambda: run.events("restarting"), "replace the worker")
        run.until_all_committed()
        run.drain()

    silent = run.events("unresponsive")[-1]
    assert "in never_comes_back" in silent["stacks"]
    assert "sends no heartbeats" in replaced[0]["reason"], replaced
    assert len(read(job.bootstrap, job.output)) == PAID


@pytest.mark.campaign
def test_a_worker_that_was_stopped_is_told_as_a_silent_process_and_replaced(new_job: NewJob) -> None:
    job = new_job(ROWS, "straight.py", KAFKA_EOS_WORKER_TIMEOUT="8s", TEST_PAUSE="0.005")
    with running(job) as run:
        stopped = run.worker
        os.kill(stopped, signal.SIGSTOP)
        replaced = run.until(lambda: run.events("restarting"), "replace the worker")
        run.until_all_committed()
        run.drain()

    silent = run.events("unresponsive")[-1]
    assert silent["process"] == stopped
    assert "it is stopped (SIGSTOP)" in silent["stacks"]
    assert "sends no heartbeats" in replaced[0]["reason"], replaced
    assert len(read(job.bootstrap, job.output)) == PAID
