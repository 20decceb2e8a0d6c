"""Workers that are not ready yet: who is waited for, and who has come to a standstill. Real processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint
from kafka_eos.embedded.launched_worker import read_io_bytes
from kafka_eos.embedded.worker_process import allow_open_files
from kafka_eos.embedded.worker_startup import RestoreMonitor, WaitDecision, decide_wait
from kafka_eos.runtime.state.restore_progress import RestoreProgress
from kafka_eos.runtime.worker.control_messages import ControlMessage, RestoreReport
from kafka_eos.runtime.worker.worker import RestoreReporter
from tests.waiting import eventually

TIMEOUT = 10.0
COPY = ["dd", "if=/dev/zero", "of=/dev/null", "bs=64k"]
"""Reads and writes for ever, in one long call as far as its parent can see."""
HALF = RestoreProgress("total", 12, 40, 3_200_000_000, 9_800_000_000, 0)


@dataclass(frozen=True)
class Child:
    subtask: int
    pid: int

    @property
    def io_bytes(self) -> int:
        return read_io_bytes(self.pid)


@dataclass(frozen=True)
class Idle:
    subtask: int
    pid: int = 1
    io_bytes: int = 0


@pytest.fixture
def children() -> Iterator[tuple[Child, Child]]:
    """One that copies, and one that only waits."""
    with ExitStack() as ends:
        processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in (COPY, ["sleep", "1000"])]
        for process in processes:
            ends.callback(process.wait)
            ends.callback(process.kill)
        yield Child(0, processes[0].pid), Child(1, processes[1].pid)


def _copies(child: Child) -> None:
    before = child.io_bytes
    eventually(lambda: child.io_bytes > before + (4 << 20), "copy")


@pytest.mark.parametrize(
    ("connected", "are_placed", "seconds", "decision"),
    [
        (0, False, 2.9, WaitDecision.WAIT),
        (0, False, 3.1, WaitDecision.START_OVER),
        (0, True, 3.1, WaitDecision.WAIT),
        (1, False, 2.9, WaitDecision.WAIT),
        (1, False, 3.1, WaitDecision.BEGIN),
        (1, True, 29.9, WaitDecision.WAIT),
        (1, True, 30.1, WaitDecision.FAIL),
    ],
)
def test_only_workers_with_a_place_to_run_are_waited_for_and_must_connect_in_time(
    connected: int, are_placed: bool, seconds: float, decision: WaitDecision
) -> None:
    assert decide_wait(connected, lambda: are_placed, seconds, timeout=30.0) is decision


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (602, 9000, []),
        (601, 9000, [(602, 9000)]),
        (601, -1, [(602, -1)]),
        (-1, -1, []),
        (64, 218, [(218, 218)]),
    ],
)
def test_files_are_allowed_for_the_sockets_between_all_workers(
    soft: int, hard: int, raised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten workers each has nine, with 512 other files if they are allowed and 128 in any case."""
    found = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))

    allow_open_files(10)

    assert found == raised
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 217))
    with pytest.raises(ConfigError, match="parallelism=10 needs 218 open files, but the system allows 217"):
        allow_open_files(10)


def test_who_moves_bytes_is_waited_for_and_who_waits_is_not(children: tuple[Child, Child]) -> None:
    copying, waiting = children
    _copies(copying)  # both have loaded their libraries
    preparation = RestoreMonitor(children, TIMEOUT, now=0.0)
    _copies(copying)

    assert preparation.stuck(now=TIMEOUT) == []
    assert preparation.stuck(now=TIMEOUT + 1) == [waiting]


def test_one_that_is_frozen_in_a_long_call_is_stuck(children: tuple[Child, Child]) -> None:
    copying, waiting = children
    preparation = RestoreMonitor(children, TIMEOUT, now=0.0)
    _copies(copying)
    os.kill(copying.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, copying.pid, os.WSTOPPED)
    told = dict(line.split(": ") for line in Path(f"/proc/{copying.pid}/io").read_text().splitlines())
    assert copying.io_bytes == int(told["rchar"]) + int(told["wchar"])
    preparation.ready(waiting.subtask)

    assert preparation.stuck(now=TIMEOUT + 1) == [], "what it did before it was frozen counts once"
    assert preparation.stuck(now=2 * TIMEOUT + 2) == [copying]


def test_who_tells_that_it_came_on_is_waited_for(children: tuple[Child, Child]) -> None:
    copying, waiting = children
    preparation = RestoreMonitor(children, TIMEOUT, now=0.0)
    preparation.ready(copying.subtask)
    preparation.record_progress(waiting.subtask, HALF, now=TIMEOUT)

    assert preparation.stuck(now=2 * TIMEOUT) == []
    assert preparation.stuck(now=2 * TIMEOUT + 1) == [waiting]


def test_what_is_shown(children: tuple[Child, Child]) -> None:
    copying, waiting = children
    preparation = RestoreMonitor(children, TIMEOUT, now=0.0)
    preparation.record_progress(waiting.subtask, HALF, now=1.0)
    preparation.ready(copying.subtask)

    assert preparation.summary == {
        "text": "worker 1 restores 'total': 3.2 of 9.8 GB, 12 of 40 files; 1 of 2 ready",
        "ready": 1,
        "workers": [
            {
                "worker": 1,
                "process": waiting.pid,
                "operator": "total",
                "files": 12,
                "of_files": 40,
                "bytes": 3_200_000_000,
                "of_bytes": 9_800_000_000,
                "rows": 0,
            }
        ],
    }


def test_the_three_that_have_most_left_are_named_and_the_others_counted() -> None:
    preparation = RestoreMonitor([Idle(subtask) for subtask in range(6)], TIMEOUT, now=0.0)
    shown = []
    for subtask, left in ((0, 1), (1, 5), (4, 2), (3, 4)):
        preparation.record_progress(subtask, replace(HALF, bytes=HALF.of_bytes - left * 1_000_000_000), now=1.0)
        shown.append(str(preparation.summary["text"]))
    preparation.ready(2)

    assert [text.split() for text in shown[2].split("; ")][:3] == [
        ["worker", number, "restores", "'total':", done, "of", "9.8", "GB,", "12", "of", "40", "files"]
        for number, done in (("1", "4.8"), ("4", "7.8"), ("0", "8.8"))
    ]
    assert "more" not in shown[2]
    named = [text.partition(" restore")[0] for text in str(preparation.summary["text"]).split("; ")]
    assert named == ["worker 1", "worker 3", "worker 4", "1 more workers", "1 of 6 ready"]
    workers = preparation.summary["workers"]
    assert isinstance(workers, list) and [each["worker"] for each in workers] == [0, 1, 3, 4]
    assert preparation.summary["ready"] == 1


def test_a_worker_tells_it_at_a_human_rate() -> None:
    said: list[ControlMessage] = []
    teller = RestoreReporter(said.append, session=3, is_cancelled=lambda: False)

    for _ in range(1000):
        teller(HALF)

    assert said == [RestoreReport(session=3, restored=HALF)]


def test_a_restore_that_is_called_off_ends() -> None:
    said: list[ControlMessage] = []
    teller = RestoreReporter(said.append, session=3, is_cancelled=lambda: bool(said))
    teller(HALF)

    with pytest.raises(RestartFromCheckpoint, match="cancelled"):
        teller(HALF)
