"""``kafka-eos profile``: what the processes of a running job spend their time on, as a flame graph by py-spy."""

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
from kafka_eos.cli.options import CheckpointDir
from kafka_eos.core.errors import ConfigError, Fatal
from kafka_eos.monitoring.terminal.live_view import print_message

_ENDINGS: Final = {"flamegraph": "svg", "speedscope": "json", "raw": "txt"}
_REFUSED: Final = ("permission denied", "operation not permitted")
_ALLOW: Final = (
    "To look into a process needs the right to trace it. Any of these gives it: run this command as root (sudo); in a "
    "container --cap-add SYS_PTRACE, in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]; on your own "
    "machine sysctl kernel.yama.ptrace_scope=0. Without it there is kafka-eos stacks"
)


def profile(
    job: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    seconds: Annotated[int, typer.Option(min=1, max=3600, help="How long to look.")] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: the job's name and the time, here.")
    ] = None,
    form: Annotated[
        Literal["flamegraph", "speedscope", "raw"],
        typer.Option("--format", help="An SVG for browsers, a file for speedscope.app, or one line a stack."),
    ] = "flamegraph",
    worker: Annotated[int | None, typer.Option(help="One worker alone, by its number; default: all processes.")] = None,
    idle: Annotated[bool, typer.Option("--idle", help="Threads that wait, too: for locks, sockets and sleep.")] = False,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """A flame graph of what the processes of a running job spend their time on.

    py-spy looks at their stacks a hundred times a second, from outside: the job goes on, and nothing in it changes.
    Only on the machine where it runs, which must allow to trace it. Needs the extra `profile`. Prints the file's name.

    Example: `kafka-eos profile order-totals --seconds 30 --worker 0`
    """
    tool, places = _py_spy(), list_job_processes(job, checkpoint_dir)
    target = places[0] if worker is None else _worker(places, worker)
    file = _writable(output) if output else Path(f"{job}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{_ENDINGS[form]}")
    command = [tool, "record", "--pid", str(target.pid), "--duration", str(seconds), "--format", form]
    command += ["--output", str(file), *(["--idle"] if idle else []), *(["--subprocesses"] if worker is None else [])]
    print_message(f"looking at {target.what if worker is not None else 'all processes'} of {job} for {seconds} s …")
    error = _run(command)
    if error is not None:
        # Of several processes it says only that it has found none.
        raise _explained(_run([tool, "dump", "--pid", str(target.pid)]) or error, target)
    typer.echo(str(file))


def _run(command: list[str]) -> str | None:
    """Run py-spy and return its error, or None if it has written the file. Ctrl-C also ends py-spy early."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
        error = ""
        while started.poll() is None:
            with suppress(KeyboardInterrupt):
                error = started.communicate()[1]
    return error or f"it ended with {started.returncode}" if started.returncode else None


def _py_spy() -> str:
    """The one that is installed with this package goes before that of the system."""
    found = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if found is None:
        raise ConfigError("kafka-eos profile needs py-spy: pip install 'kafka-eos[profile]'")
    return found


def _writable(file: Path) -> Path:
    """ConfigError if nothing can be written there: py-spy would say so after it has looked, and not of what."""
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--output {file} cannot be written: name a file in a directory that there is")
    return file


def _worker(places: list[DumpTarget], number: int) -> DumpTarget:
    for place in places:
        if place.what == f"worker {number}":
            return place
    raise ConfigError(f"there is no worker {number}; there are {', '.join(place.what for place in places)}")


def _explained(error: str, target: DumpTarget) -> Exception:
    """Return the error for py-spy's output: its first lines give the cause, the others are its own stack trace."""
    first_lines = error.partition("Stack backtrace")[0]
    words = " ".join(line.strip() for line in first_lines.splitlines() if line.strip())
    what = f"py-spy cannot look into {target.what}, process {target.pid}: {words}"
    if any(each in error.lower() for each in _REFUSED):
        return ConfigError(f"{what} {_ALLOW}")
    return Fatal(what)
