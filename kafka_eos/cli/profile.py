"""``kafka-eos profile``: a flame graph of a running job's processes, recorded by py-spy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from kafka_eos._util.thread_dumps import DumpTarget
from kafka_eos.cli.job_processes import list_job_processes
from kafka_eos.cli.options import CheckpointDir, Job, locate_job
from kafka_eos.cli.output import echo
from kafka_eos.core.errors import ConfigError, Fatal
from kafka_eos.monitoring.terminal.live_view import print_message

_ENDINGS: Final = {"flamegraph": "svg", "speedscope": "json", "raw": "txt"}
_REFUSED: Final = ("permission denied", "operation not permitted")
_ALLOW: Final = (
    "Profiling needs the permission to trace the process. To grant it, run this command as root (sudo); or in a "
    "container use --cap-add SYS_PTRACE, in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]; or on your own "
    "machine sysctl kernel.yama.ptrace_scope=0. kafka-eos stacks works without this permission"
)


def profile(
    job: Job,
    seconds: Annotated[int, typer.Option(min=1, max=3600, help="Seconds to record.")] = 10,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: the job's name and the time, in this directory."),
    ] = None,
    form: Annotated[
        Literal["flamegraph", "speedscope", "raw"],
        typer.Option(
            "--format", help="An SVG for browsers, a file for speedscope.app, or text with one line per stack."
        ),
    ] = "flamegraph",
    worker: Annotated[
        int | None, typer.Option(help="Profile only the worker with this number. Default: all processes.")
    ] = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Include idle threads, which wait for locks, sockets or sleep.")
    ] = False,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Record a flame graph of the processes of a running job.

    py-spy samples their stacks a hundred times per second from outside: the job continues, and nothing in it changes.
    This works only on the machine where the job runs, and needs the permission to trace it and the extra `profile`.
    The name of the file is printed.

    Example: `kafka-eos profile order-totals --seconds 30 --worker 0`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    tool, places = _py_spy(), list_job_processes(job, checkpoint_dir)
    target = places[0] if worker is None else _worker(places, worker)
    file = _writable(output) if output else Path(f"{job}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{_ENDINGS[form]}")
    command = [tool, "record", "--pid", str(target.pid), "--duration", str(seconds), "--format", form]
    command += ["--output", str(file), *(["--idle"] if idle else []), *(["--subprocesses"] if worker is None else [])]
    print_message(f"profiling {target.what if worker is not None else 'all processes'} of {job} for {seconds} s …")
    error = _run(command)
    if error is not None:
        # For several processes py-spy reports only that it found none.
        raise _explained(_run([tool, "dump", "--pid", str(target.pid)]) or error, target)
    echo(str(file))


def _run(command: list[str]) -> str | None:
    """Run py-spy and return its error, or None if it has written the file. Ctrl-C also ends py-spy early."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
        error = ""
        while started.poll() is None:
            with suppress(KeyboardInterrupt):
                error = started.communicate()[1]
    return error or f"exit code {started.returncode}" if started.returncode else None


def _py_spy() -> str:
    """Return the path of py-spy; the one of this Python environment takes precedence."""
    found = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if found is None:
        raise ConfigError("kafka-eos profile needs py-spy: pip install 'kafka-eos[profile]'")
    return found


def _writable(file: Path) -> Path:
    """Return the file; raise ConfigError if it cannot be written, before py-spy records and then fails."""
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--output {file} cannot be written: choose a file in an existing, writable directory")
    return file


def _worker(places: list[DumpTarget], number: int) -> DumpTarget:
    for place in places:
        if place.what == f"worker {number}":
            return place
    raise ConfigError(
        f"--worker {number} does not exist; the job's processes are {', '.join(place.what for place in places)}"
    )


def _explained(error: str, target: DumpTarget) -> Exception:
    """Return the error for py-spy's output: its first lines give the cause, the others are its own stack trace."""
    first_lines = error.partition("Stack backtrace")[0]
    words = " ".join(line.strip() for line in first_lines.splitlines() if line.strip())
    what = f"py-spy cannot trace {target.what}, process {target.pid}: {words}"
    if any(each in error.lower() for each in _REFUSED):
        return ConfigError(f"{what} {_ALLOW}")
    return Fatal(what)
