"""``kafka-eos doctor``: list and resolve open output of a job, and check the job's environment."""

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
from kafka_eos.cli.output import echo
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
    resolve: Annotated[
        bool, typer.Option("--resolve", help="Commit decided epochs and abort the rest. The job must not be running.")
    ] = False,
    abort_incarnation: Annotated[
        str | None,
        typer.Option(
            "--abort-incarnation",
            metavar="ID",
            help="Abort all output of another incarnation of this job and fence it for good. Stop it first.",
        ),
    ] = None,
    checks: Annotated[
        bool, typer.Option("--checks/--no-checks", help="Also check the machine, the checkpoint store and the brokers.")
    ] = True,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """List open transactions and staged output of a job, resolve them on request, and check its environment.

    An open transaction hides all later records of its partitions from read_committed readers. A running job has one or
    two recent ones per worker. A job that was killed and not restarted leaves old ones.

    `--resolve` does what the next start of the job would do, and only to the job's own output. The table also shows
    output of other incarnations: jobs of the same name that were started in another directory. `--abort-incarnation`
    aborts all output of one of them, even decided epochs. To commit decided epochs, use `--resolve` with its directory
    (`--checkpoint-dir`) instead.

    Without these two options the command also checks the job's environment: disks, open files, memory, the checkpoint
    store, sources and sinks, clocks. Each problem is shown with its remedy. Exit code 1 if output is still open, or a
    check is `bad`.

    Example: `kafka-eos doctor orders.py --resolve`

    Example: `kafka-eos doctor orders.py --abort-incarnation 3f2a90c417be`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    other = None if abort_incarnation is None else JobIdentity(abort_incarnation)
    plan = pipeline.plan()
    found = find_job_storage(settings, plan.name)
    storage: JobStorage = MemoryStorage() if found is None else found  # listing open output needs no storage
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
        job = coordinator.ownership.load_identity()
        bad = False
        try:
            staged = coordinator.list_all_staged()
            _show(staged, job, found is not None)
        finally:  # also if open output cannot be listed: the checks may show the reason
            if checks and not resolve and other is None:
                bad = _print_checks(plan, settings, coordinator, found)
        if found is None:
            _report_missing_checkpoints(app, plan, settings, resolve and bool(staged))
        elif resolve:
            with job_lock(settings.job_dir(plan.name) / paths.LOCK, plan.name):
                coordinator.abort_open_output()
        if other is not None:
            _abort_incarnation(coordinator, job, other)
        if resolve or other is not None:
            staged = coordinator.list_all_staged()
            echo(f"resolved; {len(staged)} still open")
    finally:
        coordinator.close()
    raise typer.Exit(1 if staged or bad else 0)


def _print_checks(plan: Plan, settings: Settings, coordinator: Coordinator, found: JobStorage | None) -> bool:
    """Run all checks, print them, and return whether one is bad."""
    where = settings.checkpoint_location(plan.name)
    store = open_storage(where) if found is None and isinstance(where, str) else found
    table = Table("check", "result", "details", "remedy")
    findings = list(run_checks(plan, settings, coordinator, store))
    for each in findings:
        table.add_row(each.check, each.verdict, each.what, each.remedy)
    print_output(table)
    return any(each.verdict == "bad" for each in findings)


def _abort_incarnation(coordinator: Coordinator, job: JobContext, other: JobIdentity) -> None:
    if other == job.identity:
        raise ConfigError(
            f"incarnation {other} is this job: use --resolve, which commits what it decided and aborts the rest"
        )
    for name in coordinator.end_incarnation(other):
        print_message(f"aborted {name}")


def _report_missing_checkpoints(app: str, plan: Plan, settings: Settings, asked_to_resolve: bool) -> None:
    missing = describe_missing_checkpoints(settings, plan.name)
    if asked_to_resolve:
        raise ConfigError(
            f"nothing was resolved: without checkpoints it is unknown which epochs were decided: {missing}. If they "
            f"are lost, start a new incarnation, which aborts the open output: kafka-eos run {app} --take-over"
        )
    print_message(missing)


def _show(staged: list[StagedOutput], job: JobContext, known: bool) -> None:
    """Print the open output. ``known``: the job's directory was found, so its own output can be identified."""
    if not staged:
        echo("no open output")
        return
    table = Table("output", "incarnation", "state", "age")
    for item in sorted(staged, key=lambda item: -item.age):
        identity = "no identity" if item.identity is None else item.identity
        owner = "this job" if known and job.owns(item.identity) else f"other ({identity})"
        table.add_row(item.name, owner, item.detail, f"{item.age:,.0f} s")
    print_output(table)


def _patience() -> Retrier:
    return Retrier(threading.Event(), print_message)
