"""``kafka-eos stacks``: where the processes of a running job stand."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_eos import stacks as of
from kafka_eos.checkpoints import paths
from kafka_eos.cli.options import CheckpointDir, settings_of
from kafka_eos.coordinator.lock import holder
from kafka_eos.errors import ConfigError
from kafka_eos.terminal.output import say

_FIRST = "supervisor"


def stacks(
    job: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Where the processes of a running job stand: the Python stacks of all their threads, the innermost call first.

    The job goes on meanwhile, and need not be well: stacks are told by a process whose code never comes back, too. Only
    on the machine where it runs, and by the user who runs it. Exit code 1 if a process does not answer.

    Example: `kafka-eos stacks order-totals`
    """
    settings = settings_of(checkpoint_dir)
    lock = settings.job_dir(job) / paths.LOCK
    pid = holder(lock)
    if pid is None:
        raise ConfigError(
            f"job {job!r} does not run on this machine with its directory in {lock.parent.parent} (--checkpoint-dir). "
            "What runs here: kafka-eos list"
        )
    places = [place for each in (pid, *of.children(pid)) if (place := of.place_of(each)) is not None]
    if not places:
        raise ConfigError(
            f"process {pid}, which runs job {job!r}, does not tell where it stands: it is of another user, or runs the "
            "job without `kafka-eos run` and `pipeline.run()`"
        )
    silent = False
    for place in sorted(places, key=lambda place: (place.what != _FIRST, place.what)):
        typer.echo(f"=== {place.what}, process {place.pid}")
        try:
            typer.echo(of.stacks(place))
        except of.NoStacks as error:
            silent = True
            say(f"{place.what}: {error}")
    raise typer.Exit(1 if silent else 0)
