"""``kafka-eos savepoint``, ``stop`` and ``checkpoints trigger``: what is asked of a running job from outside.

Rule: a command that asks waits for the answer; when it returns, what it says has happened.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from kafka_eos.checkpoints import paths, savepoints
from kafka_eos.checkpoints.savepoints import Listed
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app, open_job
from kafka_eos.cli.output import say, show
from kafka_eos.coordinator import requests
from kafka_eos.coordinator.lock import job_lock
from kafka_eos.errors import ConfigError
from kafka_eos.settings import Settings, seconds
from kafka_eos.state.savepoints import pin

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
    timeout: Timeout = "10m",
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Make a savepoint of a job, and print its directory.

    A running job takes a checkpoint for it and goes on. Of a job that does not run it is made of the newest
    committed checkpoint, here and now.

    Example: `kafka-eos savepoint trigger orders.py --path /backup/orders-before-upgrade`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    target = _target(settings, pipeline.name, path)
    directory = settings.job_dir(pipeline.name)
    if requests.is_running(directory):
        _ask(directory, requests.TakeSavepoint(path=str(target)), timeout)
    else:
        make_offline(settings, pipeline.name, target)
    typer.echo(str(target))


def make_offline(settings: Settings, job: str, target: Path) -> None:
    """Make a savepoint of the newest committed checkpoint. JobLocked if the job runs."""
    storage = open_job(settings, job)
    with job_lock(settings.job_dir(job) / paths.LOCK, job):
        pinned = pin(storage, savepoints.newest_committed(storage, job), target)
    pinned.write()


@app.command("list")
def list_(
    app: App,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """List the savepoints in the job's own directory of them, oldest first.

    Example: `kafka-eos savepoint list orders.py`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    where = paths.savepoints_of(settings.job_dir(pipeline.name))
    found = [_described(listed) for listed in savepoints.listed(where)]
    if as_json:
        for described in found:
            typer.echo(msgspec.json.encode(described).decode())
    elif found:
        table = Table("path", "id", "epoch", "made", "state", "problem")
        for described in found:
            table.add_row(*(str(described[column]) for column in ("path", "id", "epoch", "made", "bytes", "problem")))
        show(table)
    else:
        typer.echo(f"no savepoints in {where}")


def _described(found: Listed) -> dict[str, object]:
    savepoint = found.savepoint
    if savepoint is None:
        return {"path": str(found.path), "id": "?", "epoch": "?", "made": "?", "bytes": "?", "problem": found.problem}
    return {
        "path": str(found.path),
        "id": savepoint.id,
        "epoch": savepoint.epoch,
        "made": datetime.fromtimestamp(savepoint.created_at / 1000).isoformat(sep=" ", timespec="seconds"),
        "bytes": sum(file.size for file in savepoint.files),
        "problem": "",
    }


@app.command()
def verify(path: Annotated[Path, typer.Argument(help="Directory of a savepoint.")]) -> None:
    """Check every file of a savepoint against its checksum. Exit code 1 if one is damaged.

    Example: `kafka-eos savepoint verify /backup/orders-before-upgrade`
    """
    problems = savepoints.verify(path)
    for problem in problems:
        typer.echo(problem)
    typer.echo(f"{len(savepoints.read(path).files)} files: {len(problems)} problems")
    raise typer.Exit(1 if problems else 0)


@app.command()
def drop(path: Annotated[Path, typer.Argument(help="Directory of a savepoint.")]) -> None:
    """Remove a savepoint for good. Refuses any directory that is not one.

    Example: `kafka-eos savepoint drop .kafka-eos/orders.savepoints/20260131T120000Z-0a1b2c3d`
    """
    savepoints.drop(path)
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
    request = requests.Stop(drain=not now) if target is None else requests.TakeSavepoint(path=str(target), stop=True)
    deadline = time.monotonic() + _limit(timeout)
    _ask(directory, request, timeout)
    while requests.is_running(directory):
        if time.monotonic() > deadline:
            raise requests.Unanswered(f"the job has not ended within {timeout}; it is stopping")
        time.sleep(_NAP)
    say(f"{pipeline.name} has stopped")
    if target is not None:
        typer.echo(str(target))


def checkpoint(
    app: App, timeout: Timeout = "10m", bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Let a running job take a checkpoint now, and wait until its output is committed.

    Example: `kafka-eos checkpoints trigger orders.py`
    """
    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    directory = settings.job_dir(pipeline.name)
    if not requests.is_running(directory):
        raise ConfigError(f"job {pipeline.name!r} does not run in {directory.parent}")
    answer = _ask(directory, requests.TakeCheckpoint(), timeout)
    typer.echo(f"epoch {answer.epoch} is committed")


def _target(settings: Settings, job: str, path: Path | None) -> Path:
    """Where the savepoint goes: absolute, since the job has a working directory of its own, and free."""
    target = savepoints.default_target(settings.job_dir(job)) if path is None else path.absolute()
    savepoints.check_free(target)
    return target


def _ask(directory: Path, request: requests.Request, timeout: str) -> requests.Answer:
    limit = _limit(timeout)
    return requests.wait(directory, requests.submit(directory, request), limit)


def _limit(timeout: str) -> float:
    try:
        return seconds(timeout)
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from None
