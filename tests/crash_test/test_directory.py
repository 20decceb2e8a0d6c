"""A crash test is alone in its directory, and removes and stops only what a crash test made."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.crash_test.directory import (
    CrashTestDirectory,
    check_port,
    children_of,
    parent_of,
    read_start_time,
)

SLEEPER = [sys.executable, "-c", "input()"]


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)


def test_each_test_starts_with_an_empty_run_directory(tmp_path: Path) -> None:
    with CrashTestDirectory(tmp_path).lock():
        (tmp_path / "run" / "old").touch()
    with CrashTestDirectory(tmp_path).lock():
        assert not (tmp_path / "run" / "old").exists()


def test_a_second_test_is_refused_while_one_runs(tmp_path: Path) -> None:
    with (
        CrashTestDirectory(tmp_path).lock(),
        pytest.raises(ConfigError, match=f"process {os.getpid()}"),
        CrashTestDirectory(tmp_path).lock(),
    ):
        pass


def test_a_directory_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").touch()

    with pytest.raises(ConfigError, match="does not belong to a crash test"), CrashTestDirectory(tmp_path).lock():
        pass
    assert (tmp_path / "run" / "precious").exists()


def test_the_job_of_an_interrupted_test_is_stopped(tmp_path: Path) -> None:
    home = CrashTestDirectory(tmp_path)
    with sleeper() as left:
        with home.lock():
            home.remember(left.pid)
        with home.lock():
            assert left.wait(10) == -9


def test_a_process_that_got_the_same_id_later_is_left_alone(tmp_path: Path) -> None:
    home = CrashTestDirectory(tmp_path)
    with sleeper() as other:
        with home.lock():
            home.process_file.write_text(json.dumps({"pid": other.pid, "started": "another time"}))
        with home.lock():
            assert other.poll() is None
        other.kill()


def test_a_process_that_is_gone_has_no_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert read_start_time(gone.pid) is None


def test_children_are_those_that_live() -> None:
    gone = sleeper()
    with sleeper() as left:
        gone.kill()
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # its shell stays

        assert left.pid in children_of(os.getpid())
        assert parent_of(left.pid) == os.getpid()
        assert parent_of(gone.pid) is None
    assert gone.wait() == -9


def test_a_used_port_is_an_error_that_names_the_option() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        with pytest.raises(ConfigError, match="--port"):
            check_port(used.getsockname()[1])
