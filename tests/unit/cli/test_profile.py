"""``kafka-eos profile`` looks into real processes, and says what to do where the system does not let it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.cli.job_processes import list_job_processes
from kafka_eos.storage import object_names as paths
from tests.waiting import eventually

RUNS = """
import sys
from pathlib import Path
from kafka_eos._util import thread_dumps as stacks
from kafka_eos.coordination.job_lock import job_lock

def busy_forever():
    while True:
        sum(range(100))

stacks.enable_dumps(sys.argv[2])
if sys.argv[2] != "supervisor":
    busy_forever()
import subprocess
worker = subprocess.Popen([sys.executable, "-c", Path(sys.argv[3]).read_text(), sys.argv[1], "worker 0"])
with job_lock(Path(sys.argv[1]), "orders"):
    worker.wait()
"""
LIKE_A_CONTAINER = """
import ctypes, os, struct, sys
ptrace, read_memory = map(int, sys.argv[1].split(","))
load, equal, answer, allow, refuse = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
program = b"".join(struct.pack("HBBI", *each) for each in (
    (load, 0, 0, 0), (equal, 2, 0, ptrace), (equal, 1, 0, read_memory), (answer, 0, 0, allow), (answer, 0, 0, refuse),
))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert prctl(22, 2, ctypes.byref(Program(5, program)), 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Refuses what the default of container engines refuses: to trace, and to read another process's memory."""
SYSCALLS = {"x86_64": "101,310", "aarch64": "117,270"}


@contextmanager
def job(home: Path) -> Iterator[None]:
    """Processes that look like those of a job: one holds its lock, and its child is at work."""
    home.mkdir(exist_ok=True)
    script = home / "runs.py"
    script.write_text(RUNS)
    lock = home / "orders" / paths.LOCK
    started = subprocess.Popen([sys.executable, script, lock, "supervisor", script])
    try:
        eventually(lambda: lock.exists() and places(home) == ["supervisor", "worker 0"], "the job runs")
        yield
    finally:
        for place in list_job_processes("orders", str(home))[1:]:
            subprocess.run(["kill", "-9", str(place.pid)], check=True)
        started.wait()


def places(home: Path) -> list[str]:
    try:
        return [place.what for place in list_job_processes("orders", str(home))]
    except Exception:  # noqa: BLE001 - not yet
        return []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("jobs")
    with job(found):
        yield found


def profile(home: Path, *options: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = ["-m", "kafka_eos", "profile", "orders", "--checkpoint-dir", str(home), "--seconds", "1", *options]
    return subprocess.run([sys.executable, *launcher, *command], cwd=home, capture_output=True, text=True, timeout=120)


def test_what_a_worker_does_is_in_the_file_that_is_named(home: Path) -> None:
    one = profile(home, "--worker", "0", "--format", "raw", "--output", "one.txt")
    whole = profile(home, "--idle")

    assert (one.returncode, one.stdout) == (0, "one.txt\n"), one.stderr
    assert "busy_forever" in (home / "one.txt").read_text()
    assert whole.returncode == 0, whole.stderr
    assert re.fullmatch(r"orders-\d{8}T\d{6}Z\.svg", whole.stdout.strip())
    graph = (home / whole.stdout.strip()).read_text()
    assert graph.startswith("<?xml") and "busy_forever" in graph and "wait" in graph


@pytest.mark.skipif(platform.machine() not in SYSCALLS, reason="the numbers of its system calls are not known here")
def test_where_a_process_may_not_be_traced_it_is_said_who_can_allow_it(home: Path) -> None:
    refused = profile(home, launcher=("-c", LIKE_A_CONTAINER, SYSCALLS[platform.machine()]))

    assert refused.returncode == 2
    words = " ".join(refused.stderr.split())
    assert "ConfigError: py-spy cannot trace supervisor, process" in words
    assert "--cap-add SYS_PTRACE" in words and "kafka-eos stacks" in words
    assert "Stack backtrace" not in words


def test_what_cannot_be_looked_at_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*arguments: str) -> str:
        return str(CliRunner().invoke(app, ["profile", *arguments, "--checkpoint-dir", str(home)]).exception)

    assert "--worker 7 does not exist; the job's processes are supervisor, worker 0" in said("orders", "--worker", "7")
    assert "no job 'clicks' in" in said("clicks") and "jobs there: orders" in said("clicks")
    assert "--output gone/away.svg cannot be written" in said("orders", "--output", "gone/away.svg")
    assert "cannot be written" in said("orders", "--output", str(home))
    monkeypatch.setattr("kafka_eos.cli.profile.shutil.which", lambda *_, **__: None)
    assert "pip install 'kafka-eos[profile]'" in said("orders")
