"""``kafka-eos stacks``: where the processes of a running job stand."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_eos._util import thread_dumps as of
from kafka_eos.cli.job_processes import list_job_processes
from kafka_eos.cli.options import CheckpointDir
from kafka_eos.monitoring.terminal.live_view import print_message


def stacks(
    job: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Show the Python stacks of all threads of a running job, the innermost call first.

    The job continues meanwhile. Stacks are also shown of a process whose code never returns. This works only on the
    machine where the job runs, for the user who runs it. Exit code 1 if a process does not answer.

    Example: `kafka-eos stacks order-totals`
    """
    places = list_job_processes(job, checkpoint_dir)
    silent = False
    for place in places:
        typer.echo(f"=== {place.what}, process {place.pid}")
        try:
            typer.echo(of.read_stacks(place))
        except of.NoStacks as error:
            silent = True
            print_message(f"{place.what}: {error}")
    raise typer.Exit(1 if silent else 0)
