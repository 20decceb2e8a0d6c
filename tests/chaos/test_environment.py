"""What a function depends on is away: good records wait for it. And a job that sends too many aside stops."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import APPS
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """A port of this machine that refuses connections until somebody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def _start(home: Path, service: socket.socket, **settings: str) -> subprocess.Popen[bytes]:
    environment = {"TEST_HOME": str(home), "TEST_SERVICE": str(service.getsockname()[1]), "COLUMNS": "5000"}
    command = [sys.executable, "-m", "kafka_eos", "run", str(APPS / "aside.py"), "--until-caught-up"]
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            command, env={**os.environ, "KAFKA_EOS_PARALLELISM": "2", **environment, **settings}, stdout=log, stderr=log
        )


def _serve(service: socket.socket) -> None:
    service.listen()

    def accept() -> None:
        with suppress(OSError):
            while True:
                service.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()


def _ended(process: subprocess.Popen[bytes], home: Path) -> tuple[int, str]:
    try:
        process.wait(PATIENCE)
    finally:
        process.kill()
    return int(process.returncode), (home / "log").read_text()


def _events(home: Path, name: str) -> list[dict[str, Any]]:
    history = home / "checkpoints" / "aside" / "history.jsonl"
    lines = history.read_text().splitlines() if history.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == name]


def _lines(directory: Path) -> list[Any]:
    return [json.loads(line) for path in directory.glob("part-*") for line in path.read_text().splitlines()]


def test_good_records_wait_for_what_a_function_depends_on(tmp_path: Path, service: socket.socket) -> None:
    process = _start(tmp_path, service, KAFKA_EOS_MAX_DEAD_LETTERS="10")
    eventually(lambda: len(_events(tmp_path, "restarting")) >= 5 or process.poll() is not None, "five restarts")
    reasons = [event["reason"] for event in _events(tmp_path, "restarting")]
    aside = _lines(tmp_path / "letters")
    _serve(service)
    code, said = _ended(process, tmp_path)

    assert (code, aside) == (0, []), said
    assert len(reasons) >= 5
    assert all("checked (aside.py, line " in reason and "ConnectionRefusedError" in reason for reason in reasons)
    assert "the environment failed: " in said
    assert sorted(_lines(tmp_path / "out")) == [number for number in range(100) if number % 10 != 3]
    assert len(_lines(tmp_path / "letters")) == 10
    assert "drained and committed, 10 dead letters (numbers: 10 by checked)" in said
    counts = [event["counts"]["numbers"]["checked"] for event in _events(tmp_path, "dead-letters")]
    assert sum(counts) == 10


@pytest.mark.campaign
def test_too_many_dead_letters_stop_the_job_and_nothing_is_lost(tmp_path: Path, service: socket.socket) -> None:
    _serve(service)
    code, said = _ended(_start(tmp_path, service, KAFKA_EOS_MAX_DEAD_LETTERS="9"), tmp_path)

    assert code == 2, said
    assert "by operator 'checked'" in said
    assert "ValueError (raised at " in said
    assert "max_dead_letters=9" in said
    assert len(_lines(tmp_path / "letters")) <= 9

    code, said = _ended(_start(tmp_path, service, KAFKA_EOS_MAX_DEAD_LETTERS="none"), tmp_path)

    assert code == 0, said
    assert sorted(_lines(tmp_path / "out")) == [number for number in range(100) if number % 10 != 3]
    assert len(_lines(tmp_path / "letters")) == 10
