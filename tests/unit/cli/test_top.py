"""``kafka-eos top``: what the screen shows of a job, once and live."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.status_file import StatusFile
from kafka_eos.monitoring.dashboard.job_directories import JobFiles
from kafka_eos.monitoring.dashboard.rates import Rates
from kafka_eos.monitoring.terminal.top import render_job
from kafka_eos.storage import object_names as paths

PLAN = [
    {"name": name, "what": what, "inputs": inputs}
    for name, what, inputs in (("orders", "source", []), ("total", "fold", ["orders"]), ("out", "sink", ["total"]))
]


def progress(seconds: int) -> dict[str, Any]:
    """Of a job with two workers, after so long: 100 records a second; the fold is at work half of the time."""
    splits = {f"t/{n}": {"position": {"offset": 1000 + n}, "lag": lag} for n, lag in ((0, 5), (1, 70), (2, None))}
    done = {"blocked": 0.5 * seconds, "idle": 0.5 * seconds, "cache_misses": 0, "entries": 0}
    return {
        "records_in": 100 * seconds,
        "records_out": 10 * seconds,
        "lag": 75,
        "read": {"orders": {"records": 100 * seconds, "splits": splits}},
        "written": {"out": 10 * seconds},
        "waiting": {"default": {"slowest": None, "waiting": {"orders": ["t/2"]}}},
        "operators": {
            "orders": {"rows_in": 0, "rows_out": 100 * seconds, "busy": 0.2 * seconds, **done},
            "total": {"rows_in": 100 * seconds, "rows_out": 10 * seconds, "busy": 1.0 * seconds, **done,
                      "cache_misses": 3 * seconds, "entries": 4000},
        },
    }  # fmt: skip


SPANS = [
    {"worker": n, "phase": phase, "started": 10.0, "ended": 10.0 + seconds, "operator": ""}
    for n, phase, seconds in ((0, "align", 0.002), (1, "align", 0.004), (0, "upload", 0.03))
]
LAST: Mapping[str, Any] = {
    "plan": {"operators": PLAN},
    "running": {"term": 1, "base": 0, "parallelism": 2},
    "phases": {"epoch": 7, "spans": SPANS},
    "decided": {"epoch": 7, "state_bytes_by_operator": {"total": 2_500_000}},
    "committed": {"epoch": 7, "seconds": 0.045, "commits": {"out": [11.0, 11.009]}},
    "dead-letters": {"total": {"orders": {"parse": 3}}},
}


def found(seconds: int, held: bool = True, **last: object) -> JobFiles:
    at = 1_000_000 + seconds * 1000
    status = {
        "pid": 42, "at": at, "counts": {"restarting": 1}, "last": {**LAST, "progress": progress(seconds), **last},
        "when": {"running": 1_000_000, "committed": at, "progress": at},
    }  # fmt: skip
    return JobFiles("orders", status, held, None, at)


def screen(*looks: JobFiles, rows: int = 100) -> list[str]:
    rates = Rates()
    known = [rates.update(each.status) for each in looks][-1]
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render_job(looks[-1], known, rows))
    return [line.rstrip() for line in console.export_text().splitlines()]


def cells(lines: list[str], name: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(name)]
    return line.removeprefix(name).split()


def test_rates_and_shares_are_of_the_last_seconds() -> None:
    lines = screen(found(10), found(12))

    assert lines[0] == "orders  running  process 42, 2 workers"
    assert lines[1] == "in 100/s  out 10/s  lag 75  1 restart  3 dead letters"
    assert lines[2] == "epoch 7: 45 ms: align 4 ms · upload 30 ms · commit 9 ms"
    assert cells(lines, "total ") == ["100", "10", "50%", "25%", "25%", "2.5", "MB", "4,000", "3"]
    assert cells(lines, "out ") == ["–"] * 8
    assert cells(lines, "orders  t/1") == ["1,001", "70"]
    assert [line.split()[1] for line in lines if line.startswith("orders  t/")] == ["t/1", "t/0", "t/2"]
    assert cells(lines, "orders  t/2") == ["1,002", "–", "paused", "(watermark", "alignment)"]


def test_shares_of_time_are_a_whole_together_whenever_the_workers_tell() -> None:
    """Both have just told of three seconds, of which only two have passed between the looks of who watches."""
    later = found(12)
    later.status["last"]["progress"]["operators"] = progress(13)["operators"]

    assert cells(screen(found(10), later), "total ")[2:5] == ["50%", "25%", "25%"]


def test_what_is_not_known_is_a_dash() -> None:
    once = screen(found(10))
    killed = screen(found(10), found(12, held=False))
    early = screen(found(10, phases={"epoch": 8, "spans": SPANS}))

    assert once[1].startswith("in –/s  out –/s")
    assert cells(once, "total ") == ["–", "–", "–", "–", "–", "2.5", "MB", "4,000", "–"]
    assert killed[0].startswith("orders  killed, 2 workers  the process was killed")
    assert killed[1].split()[1] == "–/s", "it does nothing any more"
    assert early[2] == "epoch 7: 45 ms: commit 9 ms", "phases of another epoch are not of this one"


def test_more_partitions_than_there_is_room_for_are_counted() -> None:
    lines = screen(found(10), found(12), rows=1)

    assert [line.split()[1] for line in lines if line.startswith("orders  t/")] == ["t/1"]
    assert lines[-1].strip() == "and 2 more with less lag"


def test_a_job_that_has_told_nothing_yet_has_a_line() -> None:
    bare = JobFiles(
        "orders",
        {"pid": 1, "counts": {}, "last": {"notice": {"text": "waits for the broker"}}, "when": {"notice": 1}},
        True,
        None,
        0,
    )

    assert screen(bare) == [
        "orders  starting  process 1  waits for the broker",
        "in –/s  out –/s  lag –  0 restarts",
    ]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Of a job that runs, as its directory shows."""
    (tmp_path / "orders").mkdir()
    file = StatusFile(tmp_path / "orders")
    for event, facts in {**LAST, "progress": progress(1)}.items():
        file(event, facts)
    file("notice", {"text": "written at once"})
    with job_lock(tmp_path / "orders" / paths.LOCK, "orders"):
        yield tmp_path


def test_scripts_get_it_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos.cli.top._WAIT", 0.0)
    done = CliRunner().invoke(app, ["top", "orders", "--once", "--checkpoint-dir", str(home)])

    assert done.exit_code == 0
    assert done.stdout.startswith("orders  running  process")
    assert "total" in done.stdout and "t/1" in done.stdout


def test_without_a_terminal_or_a_job_it_is_said_what_to_do(home: Path) -> None:
    piped = CliRunner().invoke(app, ["top", "orders", "--checkpoint-dir", str(home)])
    unknown = CliRunner().invoke(app, ["top", "clicks", "--once", "--checkpoint-dir", str(home)])

    assert "--once" in str(piped.exception)
    assert "kafka-eos list" in str(unknown.exception)


def test_a_terminal_shows_it_until_ctrl_c(home: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafka_eos", "top", "orders", "--checkpoint-dir", str(home)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    # Whoever is started in the background may ignore SIGINT, and what it starts inherits that.
    noticing = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    started = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, preexec_fn=noticing
    )
    os.close(theirs)
    try:
        shown = b""
        while b"t/1" not in shown:
            shown += os.read(ours, 4096)
        StatusFile(home / "orders")("restarting", {"what": "worker ended", "reason": "SIGKILL", "in_a_row": 1})
        while b"recovering" not in shown:
            shown += os.read(ours, 4096)
        started.send_signal(signal.SIGINT)
        with suppress(OSError):  # the end of a terminal is an error
            while more := os.read(ours, 4096):
                shown += more
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()
        os.close(ours)
    assert b"Traceback" not in shown
