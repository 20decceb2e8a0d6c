"""Temporary directories of killed processes: the next process removes them, and those of others stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kafka_eos._util import temporary_directories
from kafka_eos._util.temporary_directories import temporary_directory

HOLDS = """
import sys
from kafka_eos._util.temporary_directories import temporary_directory
with temporary_directory() as directory:
    (directory / "object").write_bytes(bytes(1000))
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of all temporary files, for this process and those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    temporary_directories._remove_abandoned.cache_clear()
    return tmp_path


def holding() -> tuple[subprocess.Popen[str], Path]:
    """A process in the middle of a download, and its directory."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_leaves_is_removed_by_the_next_one_and_what_a_living_one_has_is_not(home: Path) -> None:
    killed, left = holding()
    living, kept = holding()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert {*home.iterdir()} == {left, kept}

    with temporary_directory() as directory:
        assert {*home.iterdir()} == {kept, directory}
        assert directory.stat().st_mode & 0o777 == 0o700
    assert [*home.iterdir()] == [kept]

    living.communicate("")
    assert [*home.iterdir()] == []


def test_nothing_is_removed_through_a_link(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (home / "kafka-eos-files-link").symlink_to(elsewhere)
    (home / "kafka-eos-files-file").touch()

    with temporary_directory():
        pass

    assert (elsewhere / "file").exists()
    assert {path.name for path in home.iterdir()} == {"kafka-eos-files-link", "kafka-eos-files-file"}
