"""``kafka-eos savepoint``, ``stop`` and ``checkpoints trigger``: commands that send requests to a running job.

Rule: such a command waits for the answer; when it returns, the request has been carried out.
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

from kafka_eos.cli.options import (
    Bootstrap,
    CheckpointDir,
    Job,
    find_job_storage,
    open_job_storage,
    resolve_job,
    resolve_settings,
)
from kafka_eos.cli.output import echo, echo_json
from kafka_eos.config.settings import Settings, parse_duration
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.coordination.savepoint_writer import RecordedSavepoint, list_recorded, record_savepoint
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.monitoring.terminal.live_view import print_message, print_output
from kafka_eos.runtime.state.canonical_savepoint import begin_savepoint, write_epoch
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.record_signatures import use_keys
from kafka_eos.storage.savepoint_files import ListedSavepoint

app = typer.Typer(help="Take, list and drop savepoints: copies of a job's progress to start from.",
                  no_args_is_help=True)  # fmt: skip
Target = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="New directory for the savepoint. Default: `<job>.savepoints/<time>` in the checkpoint directory.",
    ),
]
Timeout = Annotated[str, typer.Option(help="Maximum time to wait for the running job.")]
_NAP = 0.05


@app.command()
def trigger(
    job: Job,
    path: Target = None,
    epoch: Annotated[
        int | None,
        typer.Option(help="Make it from this stored checkpoint; a running job is not contacted. Default: the newest."),
    ] = None,
    timeout: Timeout = "10m",
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Take a savepoint of a job, and print its directory.

    A running job takes a checkpoint for it and continues. If the job does not run, the command makes the savepoint from
    the newest committed checkpoint. With --epoch it makes it from an older one. The job's output after that epoch
    stays, and a job that starts from such a savepoint produces it again.

    Example: `kafka-eos savepoint trigger orders.py --path /backup/orders-before-upgrade`

    Example: `kafka-eos savepoint trigger orders.py --epoch 42`
    """
    job, settings = resolve_job(job, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    target = _target(settings, job, path)
    directory = settings.job_dir(job)
    if epoch is not None:
        storage = open_job_storage(settings, job)
        with _explain_write_errors(target):
            record_savepoint(storage, write_epoch(storage, job, epoch, target), target)
    elif requests.is_running(directory):
        _ask(directory, requests.TakeSavepoint(path=str(target)), timeout)
    else:
        write_offline_savepoint(settings, job, target)
    echo(str(target))


def write_offline_savepoint(settings: Settings, job: str, target: Path) -> None:
    """Write a savepoint of the newest committed checkpoint of a job that is not running. JobLocked if the job runs."""
    storage = open_job_storage(settings, job)
    with _explain_write_errors(target):
        with job_lock(settings.job_dir(job) / paths.LOCK, job):
            pinned = begin_savepoint(storage, savepoints.newest_committed(storage, job), target)
        record_savepoint(storage, pinned.write_savepoint(), target)


@contextmanager
def _explain_write_errors(target: Path) -> Iterator[None]:
    """Turn an OSError while writing a savepoint into a ConfigError with a remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"savepoint {target} cannot be written: {reason}. Choose another --path") from error


@app.command("list")
def list_(
    job: Annotated[
        str | None, typer.Argument(help="Name or directory of a job, or its pipeline file; leave it out with --path.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option("--path", help="List savepoints of any job at and below this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per savepoint.")] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """List the savepoints of a job, or those at and below a directory.

    For a job, the savepoints in its default directory come first, oldest first. Those in other directories follow, as
    recorded in the job's history. The last column shows which of them are missing.

    Example: `kafka-eos savepoint list orders.py`

    Example: `kafka-eos savepoint list --path /backup`
    """
    if path is not None and job is None:
        found, where = (
            [_described(listed) for listed in savepoints.find_savepoints(path.absolute())],
            f"at or below {path}",
        )
    elif job is not None and path is None:
        job, settings = resolve_job(job, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
        found, where = _of_job(settings, job)
    else:
        raise ConfigError(
            "give either a job or its pipeline file, for its savepoints, or --path, for those below a directory"
        )
    if as_json:
        for described in found:
            echo_json(msgspec.json.encode(described))
    elif found:
        table = Table("path", "job", "id", "epoch", "created", "bytes", "problem")
        for described in found:
            table.add_row(*map(str, described.values()))
        print_output(table)
    else:
        echo(f"no savepoints {where}")


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
    return found, f"in {own}, and none elsewhere in the job's history"


def _build_recorded_row(job: str, known: RecordedSavepoint) -> dict[str, object]:
    """Build the row of a savepoint that only the history records, and check whether it exists."""
    listed = savepoints.inspect(known.path)
    if listed.savepoint is not None and listed.savepoint.id == known.id:
        return _described(listed)
    if listed.savepoint is not None:
        problem = f"missing: another savepoint, {listed.savepoint.id}, is at this path now"
    elif not os.path.lexists(known.path):
        problem = "missing: dropped, moved, or on a disk that is not mounted"
    else:
        problem = listed.problem
    described = {"path": str(known.path), "job": job, "id": known.id, "epoch": known.epoch, "created": _when(known.at)}
    return {**described, "bytes": "?", "problem": problem}


def _described(found: ListedSavepoint) -> dict[str, object]:
    savepoint = found.savepoint
    if savepoint is None:
        unknown = dict.fromkeys(("job", "id", "epoch", "created", "bytes"), "?")
        return {"path": str(found.path), **unknown, "problem": found.problem}
    return {
        "path": str(found.path),
        "job": savepoint.job,
        "id": savepoint.id,
        "epoch": savepoint.epoch,
        "created": _when(savepoint.created_at),
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
    resolve_settings(None)  # with checkpoint_key_file it checks the signature too
    problems = savepoints.find_damage(path)
    for problem in problems:
        echo(problem)
    echo(f"{len(savepoints.read_savepoint(path).files)} files: {len(problems)} problems")
    raise typer.Exit(1 if problems else 0)


@app.command()
def sign(
    path: Annotated[Path, typer.Argument(help="Directory of a savepoint that you trust.")],
    key_file: Annotated[
        Path | None, typer.Option(help="File with the keys, whose first one signs. Default: `checkpoint_key_file`.")
    ] = None,
) -> None:
    """Sign a savepoint, so that a job with checkpoint_key_file starts from it. Its files are checked first.

    An earlier signature is replaced and not checked.

    Example: `kafka-eos savepoint sign /backup/orders-before-upgrade --key-file /etc/kafka-eos/checkpoint.keys`
    """
    use_keys(None)
    if problems := savepoints.find_damage(path):
        raise CorruptCheckpoint("; ".join(problems))
    savepoint = savepoints.read_savepoint(path)
    use_keys(key_file or resolve_settings(None).checkpoint_key_file)
    savepoints.sign_savepoint(path, savepoint)
    echo(f"signed {path}")


@app.command()
def drop(path: Annotated[Path, typer.Argument(help="Directory of a savepoint.")]) -> None:
    """Delete a savepoint for good. Any other directory is refused.

    Example: `kafka-eos savepoint drop .kafka-eos/orders.savepoints/20260131T120000Z-0a1b2c3d`
    """
    try:
        savepoints.delete_savepoint(path)
    except OSError as error:
        raise ConfigError(f"savepoint {path} cannot be dropped: {error.strerror or error}") from error
    echo(f"dropped {path}")


# ---------------------------------------------------------------- commands of other groups


def stop(
    job: Job,
    savepoint: Annotated[bool, typer.Option("--savepoint", help="Make a savepoint from the last checkpoint.")] = False,
    path: Target = None,
    now: Annotated[bool, typer.Option("--now", help="Stop without a last checkpoint; the next start processes again "
                                                    "what came after the previous one.")] = False,
    timeout: Timeout = "10m",
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:  # fmt: skip
    """Stop a running job: it takes a last checkpoint, commits it, and ends without open output.

    With --savepoint or --path it also makes a savepoint of exactly what is committed, and prints its directory.

    Example: `kafka-eos stop orders.py --savepoint`
    """
    job, settings = resolve_job(job, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    directory = settings.job_dir(job)
    if now and (savepoint or path):
        raise ConfigError("--now skips the last checkpoint, so it cannot be combined with --savepoint or --path")
    target = _target(settings, job, path) if savepoint or path else None
    if not requests.is_running(directory):
        hint = f"; to take a savepoint: kafka-eos savepoint trigger {job}" if target is not None else ""
        raise ConfigError(f"job {job!r} does not run in {directory.parent}{hint}")
    request = requests.StopJob(drain=not now) if target is None else requests.TakeSavepoint(path=str(target), stop=True)
    deadline = time.monotonic() + _limit(timeout)
    _ask(directory, request, timeout)
    while requests.is_running(directory):
        if time.monotonic() > deadline:
            raise requests.RequestUnanswered(f"the job has not ended within {timeout}; it is still stopping")
        time.sleep(_NAP)
    print_message(f"{job} has stopped")
    if target is not None:
        echo(str(target))


def trigger_checkpoint(
    job: Job, timeout: Timeout = "10m", bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Take a checkpoint of a running job now and wait until it is committed.

    Example: `kafka-eos checkpoints trigger orders.py`
    """
    job, settings = resolve_job(job, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    directory = settings.job_dir(job)
    if not requests.is_running(directory):
        raise ConfigError(f"job {job!r} does not run in {directory.parent}")
    answer = _ask(directory, requests.TakeCheckpoint(), timeout)
    echo(f"epoch {answer.epoch} is committed")


def _target(settings: Settings, job: str, path: Path | None) -> Path:
    """Return the path of the new savepoint: absolute, since the job has its own working directory, and not in use."""
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
