"""``kafka-eos top``: a live view of a running job in the terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.live import Live

from kafka_eos.cli.options import CheckpointDir, Job, describe_unknown_job, locate_job, resolve_jobs_dir
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.dashboard.job_directories import JobFiles, read_job
from kafka_eos.monitoring.dashboard.rates import Rates
from kafka_eos.monitoring.terminal.live_view import open_stdout_console, print_output
from kafka_eos.monitoring.terminal.top import render_job

_EVERY: Final = 1.0
_MOST_ROWS: Final = 1000
"""Rows of output that does not go to a terminal."""
_WAIT: Final = 3.0
"""Seconds to wait for two reports of the workers, which a rate needs; they report twice per second."""
_NAP: Final = 0.1


def top(
    job: Job,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the view once and exit, for scripts; measuring the rates takes a second or two."
        ),
    ] = False,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Watch a running job in the terminal: rates, back-pressure, lag, epoch phases.

    The busiest operator is bold. If the operators before it are back-pressured, it is the bottleneck. The command reads
    only the job's directory, on the machine where it runs; it contacts no broker. Ctrl-C ends the view, not the job.

    Example: `kafka-eos top order-totals`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    home, rates, terminal = resolve_jobs_dir(checkpoint_dir), Rates(), open_stdout_console()
    found, known = _look(home, job, rates)
    if once:
        until = time.monotonic() + _WAIT
        while known is None and found.is_running and time.monotonic() < until:
            time.sleep(_NAP)
            found, known = _look(home, job, rates)
        print_output(render_job(found, known, _MOST_ROWS))
        return
    if not terminal.is_terminal:
        raise ConfigError("kafka-eos top needs a terminal. In scripts use --once, or kafka-eos status --json")
    with suppress(KeyboardInterrupt), Live(console=terminal, screen=True, auto_refresh=False) as live:
        while True:
            live.update(render_job(found, known, max(1, terminal.height // 2)), refresh=True)
            time.sleep(_EVERY)
            found, known = _look(home, job, rates)


def _look(home: Path, job: str, rates: Rates) -> tuple[JobFiles, dict[str, Any] | None]:
    """Return the job's files now, and the rates since earlier readings."""
    found = read_job(home, job)
    if found is None:
        raise ConfigError(describe_unknown_job(home, job))
    return found, rates.update(found.status)
