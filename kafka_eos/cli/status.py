"""``kafka-eos status`` and ``kafka-eos list``: how jobs stand, for people and for probes. Neither asks a broker."""

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

from kafka_eos.cli.options import CheckpointDir, find_job, home_of_jobs, no_job, settings_of
from kafka_eos.config.settings import seconds
from kafka_eos.coordination import job_status as elsewhere
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.coordination.job_status import Standing, standing
from kafka_eos.coordination.status_file import STATUS, read_status
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.terminal.live_view import in_bytes, say, show
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import jobs_in

_AT_ONCE = 16
MaxAge = Annotated[
    str | None,
    typer.Option(help="Exit code 1 unless the job runs and its newest commit is younger, e.g. `30s`."),
]
MaxAges = Annotated[
    str | None,
    typer.Option(help="Exit code 1 unless each job runs and commits, as with `status`, or was stopped in order."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def status(
    job: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    max_age: MaxAge = None,
    as_json: AsJson = False,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """How a job stands: does it run, when did it commit last, how far behind is it.

    Reads the job's directory on this machine. A job that another machine leads is looked for in the checkpoint store,
    for as long as a heartbeat may take. No broker is asked. Exit code 0 if the job runs or was stopped in order, 1 if
    it failed, was killed, or shows no sign of life; with --max-age 0 only if it runs and commits, so that a probe can
    ask.

    Example: `kafka-eos status order-totals --max-age 30s`
    """
    within = None if max_age is None else _duration(max_age)
    found = _here_or_elsewhere(job, checkpoint_dir)
    if found is None:
        raise ConfigError(no_job(home_of_jobs(checkpoint_dir), job))
    if as_json:
        _tell(found)
    else:
        table = Table(show_header=False)
        for name, text in _lines(found):
            table.add_row(name, text)
        show(table)
    wrong = found.late(within) if within is not None else None
    if wrong is not None:
        say(f"{job} {wrong}")
    raise typer.Exit(1 if wrong is not None or (within is None and found.is_fault) else 0)


def list_(max_age: MaxAges = None, as_json: AsJson = False, checkpoint_dir: CheckpointDir = None) -> None:
    """The jobs of this machine, running or not, by name, and how each stands.

    With checkpoints in a store also those of other machines that are there; it looks for a sign of life of each, for
    some seconds. Exit code 0; with --max-age 1 if a job that was not stopped in order does not run and commit, or if
    there is no job at all.

    Example: `kafka-eos list --max-age 30s`

    Example: `kafka-eos list --checkpoint-dir s3://checkpoints/prod`
    """
    within, home = None if max_age is None else _duration(max_age), home_of_jobs(checkpoint_dir)
    found = _all(home, checkpoint_dir)
    if as_json:
        for each in found:
            _tell(each)
    elif not found:
        say(f"no job has run with its directory in {home}. Jobs elsewhere: --checkpoint-dir, a path or s3://…")
    else:
        _show(found)
    if within is not None and (not found or _tell_late(found, within)):
        raise typer.Exit(1)


def _tell_late(found: list[Standing], within: float) -> bool:
    """Name the jobs that should run and commit, and do not; whether there are any."""
    late = {each.job: wrong for each in found if each.how != "stopped" and (wrong := each.late(within)) is not None}
    for job, wrong in late.items():
        say(f"{job} {wrong}")
    return bool(late)


def _show(found: list[Standing]) -> None:
    table = Table("job", "state", "process", "host", "epoch", "committed", "lag", "restarts")
    for each in found:
        table.add_row(
            each.job, each.how, _number(each.pid, "d"), each.host or "", _number(each.epoch, "d"), _ago(each),
            _number(each.lag), str(each.restarts),
        )  # fmt: skip
    show(table)
    for each in found:
        if each.how == "silent" and each.why is not None:
            say(f"{each.job}: {each.why}")


def _duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise ConfigError(f"--max-age: {error}") from None


def _all(home: Path, checkpoint_dir: str | None) -> list[Standing]:
    """All of them at once: to look for a sign of life takes a while."""
    names = {path.parent.name for path in home.glob(f"*/{STATUS}")}
    where = settings_of(checkpoint_dir).checkpoint_dir
    if isinstance(where, str):
        try:
            names |= {*jobs_in(where)}
        except OSError as error:
            raise ConfigError(f"the checkpoint store {where} cannot be read: {error}") from error
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda name: _one_of_all(name, checkpoint_dir), sorted(names))
        return [each for each in found if each is not None]


def _one_of_all(job: str, checkpoint_dir: str | None) -> Standing | None:
    """One whose file cannot be read hides no other."""
    try:
        return _here_or_elsewhere(job, checkpoint_dir)
    except _Unreadable as error:
        return Standing(job, "silent", why=str(error))


class _Unreadable(ConfigError):
    """What a job shows of itself is damaged, of another program, or of another user."""


def _standing(directory: Path) -> Standing | None:
    """The lock is looked at first: a job that ends in between has said how."""
    try:
        held = is_held(directory / paths.LOCK)
        told = read_status(directory)
    except OSError as error:
        raise _Unreadable(f"{error.filename} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _Unreadable(f"{directory / STATUS} cannot be read: {error}") from None
    return None if told is None else standing(directory.name, told, held, time.time_ns() // 1_000_000)


def _here_or_elsewhere(job: str, checkpoint_dir: str | None) -> Standing | None:
    """By this machine's directory, unless another machine has led the job since: only a store elsewhere knows that."""
    settings = settings_of(checkpoint_dir)
    directory = settings.job_dir(job)
    here = _standing(directory)
    where = settings.checkpoints_of(job)
    if (here is not None and here.pid is not None) or where == directory:
        return here
    try:
        storage = find_job(settings, job)
        if storage is None:
            return here
        led_here = here is not None and elsewhere.leads_here(storage, job, socket.gethostname(), _pid(directory))
        return here if led_here else elsewhere.stands(storage, job)
    except OSError as error:
        raise ConfigError(f"the checkpoint store {where} cannot be read: {error}") from error


def _pid(directory: Path) -> int:
    """Of the process that led the job here, now or last."""
    told = read_status(directory)
    return int(str(told["pid"])) if told is not None else 0


def _tell(found: Standing) -> None:
    typer.echo(msgspec.json.encode(found.as_json()).decode())


def _lines(found: Standing) -> Iterator[tuple[str, str]]:
    yield "job", found.job
    where = "" if found.host is None else f" on {found.host}"
    yield "state", found.how if found.pid is None else f"{found.how}, process {found.pid}{where}"
    if found.why is not None:
        yield "why", found.why
    yield "workers", _number(found.workers, "d")
    yield "epoch", _number(found.epoch, "d")
    yield "committed", _ago(found)
    yield "lag", _number(found.lag)
    yield "records in", _number(found.records_in)
    yield "records out", _number(found.records_out)
    yield "restarts", str(found.restarts)
    if found.dead_letters:
        yield "dead letters", f"{found.dead_letters:,}"
    for operator, size in found.state_bytes.items():
        yield f"state of {operator}", in_bytes(size)


def _ago(found: Standing) -> str:
    if found.committed is None:
        return "–"
    return f"{found.committed:,.0f} s ago" if found.epoch is not None else "not yet"


def _number(number: int | None, form: str = ",") -> str:
    return "–" if number is None else format(number, form)
