"""``kafka-eos reset``: give up a job's progress on purpose, so that its next start reads the input again."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kafka_eos._util.retry import Retrier
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app, open_job_storage
from kafka_eos.cli.output import echo
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.ownership import load_newest_manifest
from kafka_eos.coordination.recovery import NothingDecided
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Fenced
from kafka_eos.core.ids import Term
from kafka_eos.monitoring.terminal.live_view import format_bytes, print_message
from kafka_eos.plan import Plan
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


def reset(
    app: App,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Give up a job's state and positions, so that its next start reads the input by its start rule.

    The job must not be running. The decided epoch is committed first, all other open output is aborted, and the
    incarnation is retired in every sink, so that the next start is not refused. Committed output stays: if the next
    start reads its input again, readers see that output twice. The job's directory is moved aside; in an object store,
    the job's objects are deleted. Savepoints stay. The command prints the consequences and asks for confirmation.

    To return to an earlier state instead, start from a savepoint: `kafka-eos run --from`.

    Example: `kafka-eos reset orders.py`

    Example: `kafka-eos reset order-totals --yes`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    plan, name = pipeline.plan(), pipeline.name
    storage, directory = open_job_storage(settings, name), settings.job_dir(name)
    with job_lock(directory / paths.LOCK, name):
        print_message(describe_cost(name, load_newest_manifest(storage, name)))
        if not yes and not (sys.stdin.isatty() and typer.confirm("Reset the job?")):
            raise ConfigError(f"nothing was reset. To reset job {name!r} without confirmation, pass --yes")
        _retire(plan, settings, storage)
        if isinstance(settings.checkpoint_location(name), str):
            _delete_objects(storage)
        kept = _move_aside(directory)
    echo(f"reset {name}; its directory is now {kept}. Delete it when you are sure")


def describe_cost(job: str, newest: Manifest | None) -> str:
    """Describe what a reset gives up, and what the next start does."""
    if newest is None:
        return f"job {job!r} has decided no epoch: there is nothing to reset"
    size = sum(file.size for handle in newest.states for file in handle.files)
    return (
        f"job {job!r}, incarnation {newest.identity}, has decided epoch {newest.epoch} and "
        f"keeps {format_bytes(size)} of state. A reset discards the state and the positions. "
        "The next start reads the input by the start rule of each source. Committed output "
        "stays: unless you empty the sinks first, readers see the output of repeated input "
        "twice. To be able to return to the present state, first run kafka-eos savepoint "
        f"trigger {job}"
    )


def _retire(plan: Plan, settings: Settings, storage: JobStorage) -> None:
    """Complete the decided epoch, abort the rest, and remove the registrations of the job's incarnation.

    An incarnation that has decided nothing may have been registered too. Raises Fenced if another supervisor took over.
    """
    coordinator = Coordinator(
        plan,
        storage,
        History(storage, print_message),
        Retrier(threading.Event(), print_message),
        settings.connector_defaults(),
        settings.retained_checkpoints,
        home=str(settings.checkpoint_location(plan.name)),
    )
    try:
        match _abort(coordinator):
            case NothingDecided(successor_of=earlier):
                for identity in earlier:
                    coordinator.end_incarnation(identity)
            case _:
                coordinator.retire()
    finally:
        coordinator.close()


def _abort(coordinator: Coordinator) -> Manifest | NothingDecided | None:
    """Complete the decided epoch and abort the rest. Return None if an interrupted reset has done so, or if the
    checkpoints are damaged: then the open output is aborted when the incarnation is retired."""
    try:
        return coordinator.abort_open_output()
    except (Fenced, CorruptCheckpoint) as error:
        if coordinator.ownership.term == Term(0):
            raise  # the identity, by which the output is found, cannot be read
        coordinator.ownership.ensure_owner()
        print_message(f"the decided epoch is not completed now: {error}")
        return None


def _delete_objects(storage: JobStorage) -> None:
    """Delete all objects of the job in a store.

    The identity is the last: with it, an interrupted reset finds what it must retire. Terms are deleted after the
    records that they are needed for.
    """
    records = (paths.MANIFESTS, paths.RECEIPTS, paths.TERMS)
    others = {*paths.DIRECTORIES, *paths.LAZY_DIRECTORIES, *paths.LOGS.values()}.difference(records)
    for kind in (*sorted(others), *records):
        storage.delete_all([*storage.list(kind)])
    for name in (paths.ORIGIN, paths.IDENTITY):
        storage.delete(name)


def _move_aside(directory: Path) -> Path:
    """Move the job's directory, including its lock, to a path where no command looks for jobs. Return the path."""
    target = directory.with_name(f"{directory.name}.reset") / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    directory.rename(target)
    return target
