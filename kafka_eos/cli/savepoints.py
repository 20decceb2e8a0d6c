"""``kafka-eos savepoint``, ``stop`` and ``checkpoints trigger``: what is asked of a running job from outside.

Rule: a command that asks waits for the answer; when it returns, what it says has happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, find_job_storage, open_app, open_job_storage
from kafka_eos.config.settings import Settings, parse_duration
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.savepoint_writer import RecordedSavepoint, list_recorded, record_savepoint
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.terminal.live_view import print_message, print_output
from kafka_eos.runtime.state.canonical_savepoint import begin_savepoint, write_epoch
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.savepoint_files import ListedSavepoint

app = typer.Typer(help="Make, list and drop savepoints: copies of a job's progress that it can begin with.",
                  no_args_is_help=True)  # fmt: skip
Target = Annotated[
    Path | None,
    typer.Option(
        "--path", help="Directory of the savepoint, which must not exist. Default: `<job>.savepoints/<time>`."
    ),
]
Timeout = Annotated[str, typer.Option(help="How long to wait for the running job, e.g. `10m`.")]
_NAP = 0.05


@app.command()
def trigger(
    app: App,
    path: Target = None,
    epoch: Annotated[
        int | None,
        typer.Option(help="Of this checkpoint, one that is still stored; the job may run, and is asked nothing."),
    ] = None,
    timeout: Timeout = "10m",
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Make a savepoint of a job, and print its directory.

    A running job takes a checkpoint for it and goes on. Of a job that does not run it is made of the newest
    committed checkpoint, here and now. With --epoch it is made of an older one: what the job has put out after that
    epoch stays, and whoever begins with the savepoint makes it again.

    Example: `kafka-eos savepoint trigger orders.py --path /backup/orders-before-upgrade`

    Example: `kafka-eos savepoint trigger orders.py --epoch 42`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    target = _target(settings, pipeline.name, path)
    directory = settings.job_dir(pipeline.name)
    if epoch is not None:
        storage = open_job_storage(settings, pipeline.name)
        with _explain_write_errors(target):
            record_savepoint(storage, write_epoch(storage, pipeline.name, epoch, target), target)
    elif requests.is_running(directory):
        _ask(directory, requests.TakeSavepoint(path=str(target)), timeout)
    else:
        write_offline_savepoint(settings, pipeline.name, target)
    typer.echo(str(target))


def write_offline_savepoint(settings: Settings, job: str, target: Path) -> None:
    """Write a savepoint of the newest committed checkpoint of a job that is not running. JobLocked if the job runs."""
    storage = open_job_storage(settings, job)
    with _explain_write_errors(target):
        with job_lock(settings.job_dir(job) / paths.LOCK, job):
            pinned = begin_savepoint(storage, savepoints.newest_committed(storage, job), target)
        record_savepoint(storage, pinned.write_savepoint(), target)


@contextmanager
def _explain_write_errors(target: Path) -> Iterator[None]:
    """Turn OSError while writing a savepoint into a ConfigError that says what to do."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"the savepoint {target} cannot be made: {why}. Give it another place: --path") from error


@app.command("list")
def list_(
    app: Annotated[str | None, typer.Argument(help="As for `trigger`; or none, and --path.")] = None,
    path: Annotated[
        Path | None, typer.Option("--path", help="Those at and below this directory, of whatever job.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """List savepoints: of a job, or those at and below a directory.

    Of a job: those in its own directory of them, oldest first, then those that were put elsewhere, as the job's history
    tells; the last column says of which nothing is there any more.

    Example: `kafka-eos savepoint list orders.py`

    Example: `kafka-eos savepoint list --path /backup`
    """
    if path is not None and app is None:
        found, where = (
            [_described(listed) for listed in savepoints.find_savepoints(path.absolute())],
            f"at or below {path}",
        )
    elif app is not None and path is None:
        pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
        found, where = _of_job(settings, pipeline.name)
    else:
        raise ConfigError("say which savepoints: those of a job (its file), or those below a directory (--path)")
    if as_json:
        for described in found:
            typer.echo(msgspec.json.encode(described).decode())
    elif found:
        table = Table("path", "job", "id", "epoch", "made", "state", "problem")
        for described in found:
            table.add_row(*map(str, described.values()))
        print_output(table)
    else:
        typer.echo(f"no savepoints {where}")


def _of_job(settings: Settings, job: str) -> tuple[list[dict[str, object]], str]:
    """Return a row for each savepoint of the job, and a text that says where they were looked for.

    A savepoint that is missing in the job's own directory was dropped, so no row reports it.
    """
    own, storage = paths.savepoints_of(settings.job_dir(job)), find_job_storage(settings, job)
    here = savepoints.list_savepoints(own)
    ids = {listed.savepoint.id for listed in here if listed.savepoint is not None}
    there = [] if storage is None else [known for known in list_recorded(storage) if known.path.parent != own]
    found = [_described(listed) for listed in here]
    found += [_build_recorded_row(job, known) for known in there if known.id not in ids]
    return found, f"in {own}, nor elsewhere as far as the job's history tells"


def _build_recorded_row(job: str, known: RecordedSavepoint) -> dict[str, object]:
    """Build the row of a savepoint that only the history records, and say whether it exists."""
    listed = savepoints.inspect(known.path)
    if listed.savepoint is not None and listed.savepoint.id == known.id:
        return _described(listed)
    if listed.savepoint is not None:
        problem = f"gone: another savepoint, {listed.savepoint.id}, is there now"
    elif not os.path.lexists(known.path):
        problem = "gone: dropped, moved, or on a disk that is not mounted"
    else:
        problem = listed.problem
    described = {"path": str(known.path), "job": job, "id": known.id, "epoch": known.epoch, "made": _when(known.at)}
    return {**described, "bytes": "?", "problem": problem}


def _described(found: ListedSavepoint) -> dict[str, object]:
    savepoint = found.savepoint
    if savepoint is None:
        unknown = dict.fromkeys(("job", "id", "epoch", "made", "bytes"), "?")
        return {"path": str(found.path), **unknown, "problem": found.problem}
    return {
        "path": str(found.path),
        "job": savepoint.job,
        "id": savepoint.id,
        "epoch": savepoint.epoch,
        "made": _when(savepoint.created_at),
        "bytes": sum(file.size for file in savepoint.files),
        "problem": "",
    }


def _when(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).isoformat(sep=" ", timespec="seconds")


@app.command()
def verify(path: Annotated[Path, typer.Argument(help="Directory of a savepoint.")]) -> None:
    """Check every file of a savepoint against its checksum. Exit code 1 if one is damaged.

    Example: `kafka-eos savepoint verify /backup/orders-before-upgrade`
    """
    problems = savepoints.find_damage(path)
    for problem in problems:
        typer.echo(problem)
    typer.echo(f"{len(savepoints.read_savepoint(path).files)} files: {len(problems)} problems")
    raise typer.Exit(1 if problems else 0)


@app.command()
def drop(path: Annotated[Path, typer.Argument(help="Directory of a savepoint.")]) -> None:
    """Remove a savepoint for good. Refuses any directory that is not one.

    Example: `kafka-eos savepoint drop .kafka-eos/orders.savepoints/20260131T120000Z-0a1b2c3d`
    """
    try:
        savepoints.delete_savepoint(path)
    except OSError as error:
        raise ConfigError(f"the savepoint {path} cannot be dropped: {error.strerror or error}") from error
    typer.echo(f"dropped {path}")


# ---------------------------------------------------------------- commands that stand elsewhere


def stop(
    app: App,
    savepoint: Annotated[bool, typer.Option("--savepoint", help="Make a savepoint of the last checkpoint.")] = False,
    path: Target = None,
    now: Annotated[bool, typer.Option("--now", help="Without a last checkpoint; what came after the one before is "
                                                    "processed again at the next start.")] = False,
    timeout: Timeout = "10m",
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:  # fmt: skip
    """Stop a running job: it takes a last checkpoint, commits it, and ends with nothing open.

    With a savepoint, it holds exactly what is committed, and its directory is printed.

    Example: `kafka-eos stop orders.py --savepoint`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    directory = settings.job_dir(pipeline.name)
    if now and (savepoint or path):
        raise ConfigError("--now takes no last checkpoint, and so no savepoint; leave one of the two out")
    target = _target(settings, pipeline.name, path) if savepoint or path else None
    if not requests.is_running(directory):
        hint = f"; for a savepoint: kafka-eos savepoint trigger {app}" if target is not None else ""
        raise ConfigError(f"job {pipeline.name!r} does not run in {directory.parent}{hint}")
    request = requests.StopJob(drain=not now) if target is None else requests.TakeSavepoint(path=str(target), stop=True)
    deadline = time.monotonic() + _limit(timeout)
    _ask(directory, request, timeout)
    while requests.is_running(directory):
        if time.monotonic() > deadline:
            raise requests.RequestUnanswered(f"the job has not ended within {timeout}; it is stopping")
        time.sleep(_NAP)
    print_message(f"{pipeline.name} has stopped")
    if target is not None:
        typer.echo(str(target))


def trigger_checkpoint(
    app: App, timeout: Timeout = "10m", bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Take a checkpoint of a running job now and wait until it is committed.

    Example: `kafka-eos checkpoints trigger orders.py`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    directory = settings.job_dir(pipeline.name)
    if not requests.is_running(directory):
        raise ConfigError(f"job {pipeline.name!r} does not run in {directory.parent}")
    answer = _ask(directory, requests.TakeCheckpoint(), timeout)
    typer.echo(f"epoch {answer.epoch} is committed")


def _target(settings: Settings, job: str, path: Path | None) -> Path:
    """Return the path of the new savepoint: absolute, since the job has its own working directory, and free."""
    target = savepoints.default_target(settings.job_dir(job)) if path is None else path.absolute()
    savepoints.ensure_free(target)
    return target


def _ask(directory: Path, request: requests.JobRequest, timeout: str) -> requests.RequestAnswer:
    limit = _limit(timeout)
    return requests.wait(directory, requests.submit(directory, request), limit)


def _limit(timeout: str) -> float:
    try:
        return parse_duration(timeout)
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from None
