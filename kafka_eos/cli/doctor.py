"""``kafka-eos doctor``: find output of a job that is staged but not ended, and end it."""

from __future__ import annotations

import threading
from typing import Annotated

import typer
from rich.table import Table

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import JobStorage, MemoryStorage
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, find_job, no_checkpoints, open_app
from kafka_eos.cli.output import say, show
from kafka_eos.coordinator import Coordinator, Patience
from kafka_eos.coordinator.history import History
from kafka_eos.coordinator.lock import job_lock
from kafka_eos.errors import ConfigError
from kafka_eos.interfaces import Staged
from kafka_eos.plan import Plan
from kafka_eos.settings import Settings


def doctor(
    app: App,
    end: Annotated[
        bool, typer.Option("--end", help="Commit what was decided, abort the rest. The job must not be running.")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """List this job's open transactions and staged files, oldest first; end them when asked.

    An open transaction hides everything behind it from read_committed readers. A running job has one or two young
    ones; a job that was killed and never started again leaves old ones. Ending them does exactly what the next
    start would do. Exit code 1 if something is open and was not ended.

    Example: `kafka-eos doctor orders.py --end`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    plan = pipeline.plan()
    found = find_job(settings, plan.name)
    storage: JobStorage = MemoryStorage() if found is None else found  # to list what is open none is needed
    coordinator = Coordinator(
        plan,
        storage,
        History(storage),
        _patience(),
        settings.for_connectors(),
        settings.retained_checkpoints,
        start_from=settings.start_from,
        allow_dropped_state=settings.allow_dropped_state,
    )
    try:
        staged = coordinator.staged()
        _show(staged)
        if found is None:
            _without_checkpoints(app, plan, settings, end and bool(staged))
        elif end:
            with job_lock(settings.job_dir(plan.name) / paths.LOCK, plan.name):
                coordinator.recover()
            staged = coordinator.staged()
            typer.echo(f"ended; {len(staged)} left")
    finally:
        coordinator.close()
    raise typer.Exit(1 if staged else 0)


def _without_checkpoints(app: str, plan: Plan, settings: Settings, asked_to_end: bool) -> None:
    missing = no_checkpoints(settings, plan.name)
    if asked_to_end:
        raise ConfigError(
            f"nothing was ended, because without checkpoints nobody knows what was decided: {missing}. If they are "
            f"lost, start the job (kafka-eos run {app}): it begins anew, and first aborts what is open"
        )
    say(missing)


def _show(staged: list[Staged]) -> None:
    if not staged:
        typer.echo("nothing is open")
        return
    table = Table("open", "state", "age")
    for item in sorted(staged, key=lambda item: -item.age):
        table.add_row(item.name, item.detail, f"{item.age:,.0f} s")
    show(table)


def _patience() -> Patience:
    return Patience(threading.Event(), say)
