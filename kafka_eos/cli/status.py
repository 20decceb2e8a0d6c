"""``kafka-eos status`` and ``kafka-eos list``: the state of jobs, for people and probes. Neither contacts a broker."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from kafka_eos.cli.options import (
    CheckpointDir,
    Job,
    describe_unknown_job,
    find_job_storage,
    locate_job,
    resolve_jobs_dir,
    resolve_settings,
)
from kafka_eos.cli.output import echo_json
from kafka_eos.config.settings import parse_duration
from kafka_eos.coordination import job_status as elsewhere
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.coordination.job_status import JobStatus, job_status
from kafka_eos.coordination.status_file import STATUS, read_status
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.terminal.live_view import format_bytes, print_message, print_output
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import list_jobs

_AT_ONCE = 16
MaxAge = Annotated[
    str | None,
    typer.Option(help="Exit with code 1 unless the job runs and its newest commit is younger, e.g. `30s`."),
]
MaxAges = Annotated[
    str | None,
    typer.Option(
        help="Exit with code 1 unless each job runs and its newest commit is younger, or was stopped cleanly."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per job.")]


def status(
    job: Job,
    max_age: MaxAge = None,
    as_json: AsJson = False,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Show a job's state, last commit and lag.

    The status is read from the job's directory on this machine. If another machine leads the job, it is read from the
    checkpoint store, which may take as long as a heartbeat. No broker is contacted. Exit code 0 if the job runs or was
    stopped cleanly, 1 if it failed, was killed, or is unresponsive. With --max-age it is 0 only if the job runs and
    commits, and every system that it needs answers it, for probes.

    Example: `kafka-eos status order-totals --max-age 30s`
    """
    job, checkpoint_dir = locate_job(job, checkpoint_dir)
    within = None if max_age is None else _duration(max_age)
    found = _find_job_status(job, checkpoint_dir)
    if found is None:
        raise ConfigError(describe_unknown_job(resolve_jobs_dir(checkpoint_dir), job))
    if as_json:
        _print_json(found)
    else:
        table = Table(show_header=False)
        for name, text in _lines(found):
            table.add_row(name, text)
        print_output(table)
    wrong = found.find_problem(within) if within is not None else None
    if wrong is not None:
        print_message(f"{job} {wrong}")
    raise typer.Exit(1 if wrong is not None or (within is None and found.is_fault) else 0)


def list_(max_age: MaxAges = None, as_json: AsJson = False, checkpoint_dir: CheckpointDir = None) -> None:
    """List the jobs of this machine with the state of each.

    Jobs that have ended are listed too. If checkpoints are in an object store, so are the jobs of other machines whose
    checkpoints are there; the command then waits for their heartbeats for some seconds. Exit code 0. With --max-age it
    is 1 if a job that was not stopped cleanly does not run and commit, or if there is no job.

    Example: `kafka-eos list --max-age 30s`

    Example: `kafka-eos list --checkpoint-dir s3://checkpoints/prod`
    """
    within, home = None if max_age is None else _duration(max_age), resolve_jobs_dir(checkpoint_dir)
    found = _all(home, checkpoint_dir)
    if as_json:
        for each in found:
            _print_json(each)
    elif not found:
        print_message(f"no job has run in {home}; for another location: --checkpoint-dir PATH or s3://…")
    else:
        _show(found)
    if within is not None and (not found or _print_overdue(found, within)):
        raise typer.Exit(1)


def _print_overdue(found: list[JobStatus], within: float) -> bool:
    """Print the jobs that should be running and committing but are not; return whether any."""
    late = {
        each.job: wrong
        for each in found
        if each.state != "stopped" and (wrong := each.find_problem(within)) is not None
    }
    for job, wrong in late.items():
        print_message(f"{job} {wrong}")
    return bool(late)


def _show(found: list[JobStatus]) -> None:
    table = Table("job", "state", "process", "host", "epoch", "committed", "lag", "restarts")
    for each in found:
        table.add_row(
            each.job, each.state, _number(each.pid, "d"), each.host or "", _number(each.epoch, "d"), _ago(each),
            _number(each.lag), str(each.restarts),
        )  # fmt: skip
    print_output(table)
    for each in found:
        if each.state == "unresponsive" and each.reason is not None:
            print_message(f"{each.job}: {each.reason}")
        if each.silence is not None:
            print_message(f"{each.job}: {each.silence}")


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--max-age: {error}") from None


def _all(home: Path, checkpoint_dir: str | None) -> list[JobStatus]:
    """Return the statuses of all jobs, read in parallel: waiting for a heartbeat takes a while."""
    names = {path.parent.name for path in home.glob(f"*/{STATUS}")}
    where = resolve_settings(checkpoint_dir).checkpoint_dir
    if isinstance(where, str):
        try:
            names |= {*list_jobs(where)}
        except OSError as error:
            raise ConfigError(f"the checkpoint store {where} cannot be read: {error}") from error
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda name: _find_status_or_error(name, checkpoint_dir), sorted(names))
        return [each for each in found if each is not None]


def _find_status_or_error(job: str, checkpoint_dir: str | None) -> JobStatus | None:
    """Return the status of one job, or `unresponsive` with the reason if it cannot be read."""
    try:
        return _find_job_status(job, checkpoint_dir)
    except _UnreadableStatus as error:
        return JobStatus(job, "unresponsive", reason=str(error))


class _UnreadableStatus(ConfigError):
    """A status file that is damaged, foreign, or not readable for this user."""


def _read_local_status(directory: Path) -> JobStatus | None:
    """Read the lock, then the status file, of a job directory on this machine."""
    try:
        held = is_held(directory / paths.LOCK)
        fields = read_status(directory)
    except OSError as error:
        raise _UnreadableStatus(f"{error.filename} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _UnreadableStatus(f"{directory / STATUS} cannot be read: {error}") from None
    return None if fields is None else job_status(directory.name, fields, held, time.time_ns() // 1_000_000)


def _find_job_status(job: str, checkpoint_dir: str | None) -> JobStatus | None:
    """Find the status of a job: from its local directory, else from the checkpoint store."""
    settings = resolve_settings(checkpoint_dir)
    directory = settings.job_dir(job)
    here = _read_local_status(directory)
    where = settings.checkpoint_location(job)
    if (here is not None and here.pid is not None) or where == directory:
        return here
    try:
        storage = find_job_storage(settings, job)
        if storage is None:
            return here
        led_here = here is not None and elsewhere.is_leader(storage, job, socket.gethostname(), _pid(directory))
        return here if led_here else elsewhere.read_remote_status(storage, job)
    except OSError as error:
        raise ConfigError(f"the checkpoint store {where} cannot be read: {error}") from error


def _pid(directory: Path) -> int:
    """Return the process id of the job's current or last supervisor on this machine."""
    fields = read_status(directory)
    return int(str(fields["pid"])) if fields is not None else 0


def _print_json(found: JobStatus) -> None:
    echo_json(msgspec.json.encode(found.as_json()))


def _lines(found: JobStatus) -> Iterator[tuple[str, str]]:
    where = "" if found.host is None else f" on {found.host}"
    state = found.state if found.pid is None else f"{found.state}, process {found.pid}{where}"
    yield "state", state if found.silence is None else f"{state}; {found.silence}"
    yield "job", found.job
    if found.reason is not None:
        yield "reason", found.reason
    if found.failpoints is not None:
        yield "failpoints", f"armed, for tests only: {found.failpoints}"
    yield "workers", _number(found.workers, "d")
    yield "epoch", _number(found.epoch, "d")
    yield "committed", _ago(found)
    yield "lag", _number(found.lag)
    yield "records in", _number(found.records_in)
    yield "records out", _number(found.records_out)
    yield "restarts", str(found.restarts)
    if found.dead_letters:
        yield "dead letters", f"{found.dead_letters:,}"
    if found.set_aside:
        yield "rows set aside", f"{found.set_aside:,}"
    for operator, size in found.state_bytes.items():
        yield f"state of {operator}", format_bytes(size)


def _ago(found: JobStatus) -> str:
    if found.seconds_since_commit is None:
        return "–"
    return f"{found.seconds_since_commit:,.0f} s ago" if found.epoch is not None else "not yet"


def _number(number: int | None, form: str = ",") -> str:
    return "–" if number is None else format(number, form)
