"""``kafka-eos doctor``: find output of a job that is staged but not ended, and end it; check what the job needs."""

from __future__ import annotations

import threading
from typing import Annotated

import typer
from rich.table import Table

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import StagedOutput
from kafka_eos.abc.context import JobContext
from kafka_eos.cli.options import (
    App,
    Bootstrap,
    CheckpointDir,
    describe_missing_checkpoints,
    find_job_storage,
    open_app,
)
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import JobIdentity
from kafka_eos.monitoring.terminal.live_view import print_message, print_output
from kafka_eos.ops.doctor.examination import run_checks
from kafka_eos.plan import Plan
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage, MemoryStorage
from kafka_eos.storage.storage_factory import open_storage


def doctor(
    app: App,
    end: Annotated[
        bool, typer.Option("--end", help="Commit what was decided, abort the rest. The job must not be running.")
    ] = False,
    end_life: Annotated[
        str | None,
        typer.Option("--end-life", help="Identity of another life of this job's name: end it for good. Stop it first."),
    ] = None,
    checks: Annotated[
        bool, typer.Option("--checks/--no-checks", help="Also look at the machine, the store and the brokers.")
    ] = True,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """List what of this job's name is open, oldest first, and end it when asked; check what the job needs.

    Open are transactions, and staged files and tables. An open transaction hides everything behind it from
    read_committed readers. A running job has one or two young ones; a job that was killed and never started again
    leaves old ones. `--end` does exactly what the next start of this job would do, and touches only what is this job's.
    What another life of its name has left (a job of the same name that was started in another directory) is shown with
    that life's identity. `--end-life` aborts all that such a life has open and keeps it from writing ever again;
    nothing of it is committed, so prefer `--end` with its directory (`--checkpoint-dir`).

    When nothing is to be ended it also checks what the job needs: disk, open files, memory, what the checkpoint store
    promises, topics and brokers, the clock of the brokers; each with what to do. Exit code 1 if something is open and
    was not ended, or a check is bad.

    Example: `kafka-eos doctor orders.py --end`

    Example: `kafka-eos doctor orders.py --end-life 3f2a90c417be`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    other = None if end_life is None else JobIdentity(end_life)
    plan = pipeline.plan()
    found = find_job_storage(settings, plan.name)
    storage: JobStorage = MemoryStorage() if found is None else found  # to list what is open none is needed
    coordinator = Coordinator(
        plan,
        storage,
        History(storage, print_message),
        _patience(),
        settings.connector_defaults(),
        settings.retained_checkpoints,
        start_from=settings.start_from,
        allow_dropped_state=settings.allow_dropped_state,
        home=str(settings.checkpoint_location(plan.name)),
    )
    try:
        job = coordinator.load_identity()
        bad = False
        try:
            staged = coordinator.list_all_staged()
            _show(staged, job, found is not None)
        finally:  # also if nobody can tell what is open: the checks may say why
            if checks and not end and other is None:
                bad = _print_checks(plan, settings, coordinator, found)
        if found is None:
            _without_checkpoints(app, plan, settings, end and bool(staged))
        elif end:
            with job_lock(settings.job_dir(plan.name) / paths.LOCK, plan.name):
                coordinator.abort_open_output()
        if other is not None:
            _abort_incarnation(coordinator, job, other)
        if end or other is not None:
            staged = coordinator.list_all_staged()
            typer.echo(f"ended; {len(staged)} left")
    finally:
        coordinator.close()
    raise typer.Exit(1 if staged or bad else 0)


def _print_checks(plan: Plan, settings: Settings, coordinator: Coordinator, found: JobStorage | None) -> bool:
    """Run all checks, print them, and return whether one is bad."""
    where = settings.checkpoint_location(plan.name)
    store = open_storage(where) if found is None and isinstance(where, str) else found
    table = Table("check", "", "found", "what to do")
    findings = list(run_checks(plan, settings, coordinator, store))
    for each in findings:
        table.add_row(each.check, each.verdict, each.what, each.remedy)
    print_output(table)
    return any(each.verdict == "bad" for each in findings)


def _abort_incarnation(coordinator: Coordinator, job: JobContext, other: JobIdentity) -> None:
    if other == job.identity:
        raise ConfigError(f"life {other} is this job itself: --end commits what it decided, and aborts the rest")
    for name in coordinator.end_incarnation(other):
        print_message(f"aborted {name}")


def _without_checkpoints(app: str, plan: Plan, settings: Settings, asked_to_end: bool) -> None:
    missing = describe_missing_checkpoints(settings, plan.name)
    if asked_to_end:
        raise ConfigError(
            f"nothing was ended, because without checkpoints nobody knows what was decided: {missing}. If they are "
            f"lost, begin anew and end what is open: kafka-eos run {app} --take-over"
        )
    print_message(missing)


def _show(staged: list[StagedOutput], job: JobContext, known: bool) -> None:
    """Print the open output. ``known``: the job's directory was found, so its own output can be identified."""
    if not staged:
        typer.echo("nothing is open")
        return
    table = Table("open", "whose", "state", "age")
    for item in sorted(staged, key=lambda item: -item.age):
        life = "without identity" if item.identity is None else f"life {item.identity}"
        whose = "this job's" if known and job.owns(item.identity) else f"another's: {life}"
        table.add_row(item.name, whose, item.detail, f"{item.age:,.0f} s")
    print_output(table)


def _patience() -> Retrier:
    return Retrier(threading.Event(), print_message)
