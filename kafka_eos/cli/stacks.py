"""``kafka-eos stacks``: where the processes of a running job stand."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_eos._util import thread_dumps as of
from kafka_eos.cli.job_processes import processes_of
from kafka_eos.cli.options import CheckpointDir
from kafka_eos.monitoring.terminal.live_view import say


def stacks(
    job: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Where the processes of a running job stand: the Python stacks of all their threads, the innermost call first.

    The job goes on meanwhile, and need not be well: stacks are told by a process whose code never comes back, too. Only
    on the machine where it runs, and by the user who runs it. Exit code 1 if a process does not answer.

    Example: `kafka-eos stacks order-totals`
    """
    places = processes_of(job, checkpoint_dir)
    silent = False
    for place in places:
        typer.echo(f"=== {place.what}, process {place.pid}")
        try:
            typer.echo(of.stacks(place))
        except of.NoStacks as error:
            silent = True
            say(f"{place.what}: {error}")
    raise typer.Exit(1 if silent else 0)
