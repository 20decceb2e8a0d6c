"""``kafka-eos stacks``: dump the stacks of a running job's processes."""

from __future__ import annotations

import typer

from kafka_eos._util import thread_dumps as of
from kafka_eos.cli.job_processes import list_job_processes
from kafka_eos.cli.options import CheckpointDir, Job, locate_job
from kafka_eos.cli.output import echo
from kafka_eos.monitoring.terminal.live_view import print_message


def stacks(
    job: Job,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Dump the Python stacks of all threads of a running job.

    The innermost call is first. The job continues meanwhile, and a process that hangs in Python code is shown too. This
    works only on the machine where the job runs, for the user who runs it. Exit code 1 if a process does not respond.

    Example: `kafka-eos stacks order-totals`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    places = list_job_processes(job, checkpoint_dir)
    silent = False
    for place in places:
        echo(f"=== {place.what}, process {place.pid}")
        try:
            echo(of.read_stacks(place))
        except of.NoStacks as error:
            silent = True
            print_message(f"{place.what}: {error}")
    raise typer.Exit(1 if silent else 0)
