"""Broadcast state that version 1 has stored: today's code goes on with it in another number of workers.

``tests/golden/broadcast`` holds the job directory of three workers, what the job had put out, and the job, which had
read all of its rules and half of its rows. Rule: as in ``test_golden``, they are never written again.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos.savepoints import Snapshot
from kafka_eos.testing import run_local
from tests.unit.runtime.state.test_golden_joins import GOLDEN, lines

HOME = GOLDEN / "broadcast"


def test_two_workers_go_on_with_the_rules_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("golden-broadcast", "files"):
        shutil.copytree(HOME / name, tmp_path / name)
    before = lines(tmp_path / "files")
    told = {"TEST_CHECKPOINTS": str(tmp_path), "TEST_FILES": str(tmp_path / "files"), "TEST_MORE": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    job = runpy.run_path(str(HOME / "job.py"))

    command = (sys.executable, "-m", "kafka_eos", "run", "job.py", "--until-caught-up", "-p", "2")
    subprocess.run(command, env={**os.environ, **told}, cwd=HOME, check=True)

    whole = run_local(job["pipeline"], {"rows": job["ROWS"], "rules": job["RULES"]})["out"]
    assert lines(tmp_path / "files") == sorted(whole)
    assert 0 < len(before) < len(whole)


@pytest.mark.parametrize("operator", ["plain-broadcast", "rules-of-keys"])
def test_it_is_read_without_the_job(operator: str) -> None:
    stored = dict(Snapshot.open(HOME / "golden-broadcast").read(operator, "rules"))

    assert {name: tuple(rule.values()) for name, rule in stored.items()} == {
        f"rule-{n % 20}": (n % 60,) for n in range(90, 110) if n % 20 != 7
    }
