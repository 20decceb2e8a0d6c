"""As-of joins that version 1 has stored half-way: today's code goes on with them, and the whole comes out.

``tests/golden/as-of`` holds the job directories, what the job had put out, and the job, which had read half of its
rows and versions. Rule: as in ``test_golden``, they are never written again.
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
from kafka_eos.testing import TimestampedValue, run_local
from tests.marks import campaign
from tests.unit.runtime.state.test_golden_joins import GOLDEN, lines

HOME = GOLDEN / "as-of"


@pytest.mark.parametrize(("backend", "workers"), [campaign("memory", 2), ("rocksdb", 1)])
def test_an_as_of_join_goes_on_with_the_rows_and_versions_that_wait(
    backend: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (f"golden-{backend}", f"files-{backend}"):
        shutil.copytree(HOME / name, tmp_path / name)
    files = tmp_path / f"files-{backend}"
    before = lines(files)
    told = {"TEST_BACKEND": backend, "TEST_CHECKPOINTS": str(tmp_path), "TEST_FILES": str(files), "TEST_MORE": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    job = runpy.run_path(str(HOME / "job.py"))

    command = (sys.executable, "-m", "kafka_eos", "run", "job.py", "--until-caught-up", "-p", str(workers))
    subprocess.run(command, env={**os.environ, **told}, cwd=HOME, check=True)

    rates = [TimestampedValue(record, record.timestamp) for record in job["RATES"]]
    whole = run_local(job["pipeline"], {"rows": job["ROWS"], "rates": rates})["out"]
    assert lines(files) == sorted(whole)
    assert 0 < len(before) < len(whole)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_it_is_read_without_the_job(backend: str) -> None:
    snapshot = Snapshot.open(HOME / f"golden-{backend}")
    rows, versions = (dict(snapshot.read("then", state)) for state in ("left", "right"))
    values = [element["value"] for elements in versions.values() for element in elements]

    assert {key for key, _ in rows} <= {"a0", "a1", "a2", "a3", "a4"} and rows
    assert None in values, "no key that was taken away waits"
    assert {tuple(value) for value in values if value is not None} == {("version",)}
