"""User code that never comes back: where it stands is told, and its worker is replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
        (silent, *_) = run.until(lambda: run.events("silent"), "tell who is silent")
        code, asked = ask("stacks", job.name, "--checkpoint-dir", str(job.checkpoints))
        replaced = run.until(lambda: run.events("restarting"), "replace the worker")
        run.until_all_committed()
        run.drain()

    assert silent["seconds"] < 6
    assert "straight.py" in silent["stacks"] and "in never_comes_back" in silent["stacks"]
    assert code == 0
    head, *others = asked.split("=== ")[1:]
    assert head.startswith("supervisor, process ") and "in _wait" in head
    assert [each.split(",")[0] for each in others] == ["worker 0", "worker 1"]
    (hung,) = [each for each in others if "in never_comes_back" in each]
    assert hung.startswith(f"worker {silent['worker']}, process {silent['process']}\n")
    assert "worker_timeout" in replaced[0]["reason"], replaced
    assert len(run.events("silent")) == 2, "where it stood when it was replaced is told, too"
    assert "in never_comes_back" in run.log, "the log has it"
    assert len(read(job.bootstrap, job.output)) == PAID
