"""A table that version 1 has stored half read: today's code reads on, and no row comes before it is whole.

``tests/golden/tables`` holds the job directory and the job. Rule: as in ``test_golden``.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos.protocol.source_dependencies import has_seen_all, remaining_end
from kafka_eos.storage.job_records import Manifest, decode
from kafka_eos.testing import run_local
from tests.unit.runtime.state.test_golden_joins import GOLDEN, lines

HOME = GOLDEN / "tables"


def test_a_table_that_was_half_read_is_read_on_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("golden-tables", "files"):
        shutil.copytree(HOME / name, tmp_path / name)
    stored = sorted((HOME / "golden-tables" / "manifests").iterdir())[-1]
    at = decode(Manifest, f"manifests/{stored.name}", stored.read_bytes()).sources["rates"]
    told = {"TEST_CHECKPOINTS": str(tmp_path), "TEST_FILES": str(tmp_path / "files"), "TEST_PAUSE": "0"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    job = runpy.run_path(str(HOME / "job.py"))

    command = (sys.executable, "-m", "kafka_eos", "run", "job.py", "--until-caught-up", "-p", "2")
    subprocess.run(command, env={**os.environ, **told}, cwd=HOME, check=True)

    assert [remaining_end(position) for position in at.values()] == [{"index": 1001}]
    assert [has_seen_all("rated", at), has_seen_all("other", at)] == [True, False]
    whole = run_local(job["pipeline"], {"rows": job["ROWS"], "rates": job["RATES"]})
    assert lines(tmp_path / "files") == sorted(whole["out"])
