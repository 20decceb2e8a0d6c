"""``kafka-eos reset``: a job begins anew on purpose, and knows before what that costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.core.errors import ConfigError, JobLocked
from kafka_eos.storage import object_names as paths

APP = """
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink, FileSource

pipeline = Pipeline("copy")
pipeline.source(FileSource("in", value=int), name="in").sink(FileSink("out", value=int), name="out")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a pipeline that copies two rows."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("1\n2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(directory: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_EOS_")}
    command = [sys.executable, "-m", "kafka_eos", "run", "app.py", "--until-caught-up", "-p", "1"]
    subprocess.run(command, cwd=directory, env=env, check=True, timeout=120)


def rows(home: Path) -> list[str]:
    return sorted(line for file in (home / "out").glob("[!.]*") for line in file.read_text().splitlines())


def test_a_job_that_is_reset_begins_anew_and_is_not_refused(home: Path) -> None:
    run(home)
    asked = CliRunner().invoke(app, ["reset", "copy"])
    assert isinstance(asked.exception, ConfigError) and "--yes" in str(asked.exception)
    assert "readers see the output of repeated input twice" in asked.stderr
    with job_lock(home / ".kafka-eos/copy" / paths.LOCK, "copy"):
        running = CliRunner().invoke(app, ["reset", "app.py", "--yes"])
    assert isinstance(running.exception, JobLocked)
    assert (home / ".kafka-eos/copy").is_dir()

    assert CliRunner().invoke(app, ["reset", "copy", "--yes"]).exit_code == 0
    (kept,) = (home / ".kafka-eos/copy.reset").iterdir()
    assert (kept / paths.IDENTITY).exists()
    assert "copy" not in CliRunner().invoke(app, ["list"]).stdout

    run(home)
    assert rows(home) == ["1", "1", "2", "2"]
