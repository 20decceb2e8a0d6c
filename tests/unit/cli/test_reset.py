"""``kafka-eos reset``: a job begins anew on purpose, and knows before what that costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafka_eos._util.retry import Retrier
from kafka_eos.cli import app
from kafka_eos.cli.options import open_app
from kafka_eos.cli.reset import _delete_objects, _retire
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.core.errors import ConfigError, JobLocked
from kafka_eos.monitoring.terminal.live_view import print_message
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage

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


class Interrupted(LocalStorage):
    """A store that fails after some objects were deleted, and that has no directories, as object stores."""

    left = 0

    def list(self, prefix: str) -> Sequence[str]:
        return super().list(prefix) if (self.root / prefix).is_dir() else ()

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def delete(self, name: str) -> None:
        if not self.left:
            raise ConnectionError("the store does not answer")
        self.left -= 1
        super().delete(name)


def test_a_reset_that_was_interrupted_while_it_deleted_objects_is_completed_by_repeating_it(home: Path) -> None:
    run(home)
    pipeline, settings = open_app("app.py", bootstrap_servers=None, checkpoint_dir=None)
    kept, directory = home / "kept", home / ".kafka-eos/copy"
    directory.rename(kept)
    deleted, was_interrupted = 0, True
    while was_interrupted:
        shutil.copytree(kept, directory)
        storage = Interrupted(directory)
        _retire(pipeline.plan(), settings, storage)
        storage.left = deleted
        try:
            _delete_objects(storage)
            was_interrupted = False
        except ConnectionError:
            _retire(pipeline.plan(), settings, storage)
            storage.left = 1000
            _delete_objects(storage)
        deleted += 1
        assert [name for kind in paths.DIRECTORIES for name in storage.list(kind)] == []
        assert not (directory / paths.IDENTITY).exists()
        shutil.rmtree(directory)
    assert deleted > len(paths.DIRECTORIES)


class Undecided(LocalStorage):
    """A store that takes no manifest."""

    def publish(self, name: str, data: bytes) -> None:
        if paths.is_manifest(name):
            raise ConnectionError("the store does not answer")
        super().publish(name, data)


def test_a_reset_before_the_first_epoch_ends_what_the_start_had_registered(home: Path) -> None:
    """The next start knows nothing of it any more, and would be refused."""
    pipeline, settings = open_app("app.py", bootstrap_servers=None, checkpoint_dir=None)
    plan, directory = pipeline.plan(), home / ".kafka-eos/copy"

    def start(storage: LocalStorage) -> None:
        defaults = settings.connector_defaults()
        patience = Retrier(threading.Event(), print_message)
        with closing(Coordinator(plan, storage, History(storage, print_message), patience, defaults, 2)) as coordinator:
            coordinator.recovery.restore()

    with pytest.raises(ConnectionError):
        start(Undecided(directory))
    _retire(plan, settings, LocalStorage(directory))
    shutil.rmtree(directory)
    start(LocalStorage(directory))
