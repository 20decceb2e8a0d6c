"""The embedded engine needs nothing that only Linux has: files in memory, clocks and signals of its own, ``prctl``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.waiting import PATIENCE

_WITHOUT = """
import ctypes, os, signal, socket, time

for module, names in (
    (os, ("memfd_create", "MFD_CLOEXEC", "sched_getaffinity")),
    (signal, ("SIGRTMIN", "SIGRTMAX")),
    (socket, ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "SO_PEERCRED")),
    (time, ("CLOCK_BOOTTIME",)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
socket.TCP_KEEPALIVE = 4


class LibraryWithoutLinuxCalls(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "renameat2"):
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = LibraryWithoutLinuxCalls
"""
"""``sitecustomize.py`` of an interpreter that has what macOS has: every process of a job imports it."""

_APP = """
import os
import signal
from pathlib import Path

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink, FileSource

HOME = Path(__file__).parent


def add(total: int, amount: int) -> int:
    killed = HOME / "killed"
    if amount == 1500 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return total + amount


pipeline = Pipeline("sums", parallelism=2, checkpoint_dir=HOME / "checkpoints", checkpoint_interval=0.1)
(
    pipeline.source(FileSource(HOME / "in", value=int, until="latest"), name="numbers")
    .key_by(lambda amount: amount % 7, name="remainder")
    .fold(name="sum", init=lambda: 0, step=add, emit=lambda key, total: [key, total])
    .sink(FileSink(HOME / "out", value=list[int]), name="sums")
)
"""


def test_a_job_without_the_calls_of_linux_is_exact_after_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(_WITHOUT)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/numbers.jsonl").write_text("".join(f"{n}\n" for n in range(3000)))
    app = tmp_path / "sums.py"
    app.write_text(textwrap.dedent(_APP))

    done = subprocess.run(
        [sys.executable, "-m", "kafka_eos", "run", str(app), "--until-caught-up"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "killed").exists()
    written = [json.loads(line) for path in (tmp_path / "out").rglob("*.jsonl") for line in path.open()]
    assert len(written) == 3000
    expected: dict[int, list[int]] = {key: [] for key in range(7)}
    for n in range(3000):
        expected[n % 7].append(n + (expected[n % 7][-1] if expected[n % 7] else 0))
    assert {key: sorted(total for of, total in written if of == key) for key in range(7)} == expected
