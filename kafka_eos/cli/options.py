"""Options that several commands share, and their translation to settings.

Rule: an option that was not given is not passed on, so that settings of code, environment, file or default apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import STATUS, read_status
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import Program, load_program
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.record_signatures import use_keys
from kafka_eos.storage.storage_factory import find_storage

App = Annotated[
    str,
    typer.Argument(
        help="Python file or module that defines the pipeline, and a variable or function if it has several: "
        "`orders.py`, `orders.py:pipeline`, `orders.py:build` or `shop.orders:build`. Or a job that has run here, by "
        "its name or directory."
    ),
]
Job = Annotated[
    str,
    typer.Argument(
        help="Job: its name, its directory, or what defines its pipeline: `order-totals`, `.kafka-eos/order-totals`, "
        "`orders.py`."
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        help="Kafka brokers: `host:port`, separated by commas. Default: the setting `bootstrap_servers`.",
    ),
]
CheckpointDir = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-dir",
        help="Directory or `s3://…` for checkpoints, with one directory per job. Default: `.kafka-eos`.",
    ),
]


_ANY = "any"
"""An arbitrary job name, to determine the parent of all job directories."""


def resolve_with_keys(code: Mapping[str, object] | None = None, cli: Mapping[str, object] | None = None) -> Settings:
    """Resolve the settings of a command, which from here on checks and signs records with their keys."""
    settings = Settings.resolve(code=code, cli=cli)
    use_keys(settings.checkpoint_key_file)
    return settings


def open_app(app: str, *, checkpoint_dir: str | None = None, **options: object) -> tuple[Program, Settings]:
    """Load the user's file and resolve its settings with the options given on the command line."""
    return _open(_find(app, checkpoint_dir), checkpoint_dir, options)


def _open(found: _NamedJob, checkpoint_dir: str | None, options: Mapping[str, object]) -> tuple[Program, Settings]:
    if found.app is None:
        raise ConfigError(
            f"{found.given!r} is the job {found.job!r}, but its status does not name the file of its pipeline. Give "
            "the file, e.g. orders.py"
        )
    program = load_program(found.app)
    if found.job not in (None, program.name):
        raise ConfigError(
            f"{found.app}, which defined the job {found.job!r} in its last run, now defines "
            f"{program.name!r}. To continue the earlier job, change the name back; to run the "
            "other one, pass the file"
        )
    return program, resolve_with_keys(code=program.code_settings, cli=_given(found, checkpoint_dir, options))


def resolve_job(job: str, *, checkpoint_dir: str | None = None, **options: object) -> tuple[str, Settings]:
    """Return the name of a job and its settings, without loading its pipeline if the job has run here."""
    found = _find(job, checkpoint_dir)
    if found.job is None:
        program, settings = _open(found, checkpoint_dir, options)
        return program.name, settings
    return found.job, resolve_with_keys(cli=_given(found, checkpoint_dir, options))


def _given(found: _NamedJob, checkpoint_dir: str | None, options: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that the command line determines."""
    place = checkpoint_dir if found.checkpoint_dir is None else found.checkpoint_dir
    return {name: value for name, value in {**options, "checkpoint_dir": place}.items() if value is not None}


def locate_job(job: str, checkpoint_dir: str | None) -> tuple[str, str]:
    """Return the name of a job and its checkpoint directory, for commands that need only these."""
    name, settings = resolve_job(job, checkpoint_dir=checkpoint_dir)
    return name, str(settings.checkpoint_dir)


@dataclass(frozen=True, slots=True)
class _NamedJob:
    """A job that a user has named, or the definition of its pipeline.

    ``checkpoint_dir``: the parent of its directory, if the argument determines it.
    """

    given: str
    job: str | None = None
    app: AppRef | None = None
    checkpoint_dir: str | None = None


def _find(given: str, checkpoint_dir: str | None) -> _NamedJob:
    """Find the job or pipeline that a user has named. Raises ConfigError that lists all locations that were tried."""
    ref, directory = AppRef.parse(given), Path(given)
    if given.endswith(".py") or ":" in given:
        return _NamedJob(given, app=ref)
    settings = resolve_settings(checkpoint_dir)
    is_name = _NAME.fullmatch(given) is not None
    if is_name and _holds_job(here := settings.job_dir(given)):
        return _NamedJob(given, given, _read_app(here))
    if _holds_job(directory):
        place = directory.resolve()
        return _NamedJob(given, place.name, _read_app(place), str(place.parent))
    if ref.path.is_file() and ref.path.is_relative_to(Path.cwd()):  # a job may have the name of any other module
        return _NamedJob(given, app=ref)
    if is_name and isinstance(settings.checkpoint_dir, str):
        return _NamedJob(given, given)  # its checkpoints are in a store; the command looks there
    home = resolve_jobs_dir(checkpoint_dir)
    known = sorted(place.name for place in home.glob("*") if _holds_job(place))
    raise ConfigError(
        f"no job {given!r} in {home} (jobs there: {', '.join(known) or 'none'}), no job directory "
        f"{directory.absolute()}, and no file {ref.path} that defines a pipeline. Give the name of a job that has run "
        "on this machine (kafka-eos list; --checkpoint-dir if its directory is elsewhere), its directory, or the file "
        "of its pipeline, e.g. orders.py"
    )


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def _holds_job(directory: Path) -> bool:
    """Return whether a directory is a job directory."""
    return any((directory / name).exists() for name in (STATUS, paths.LOCK, paths.TERMS, paths.MANIFESTS))


def _read_app(directory: Path) -> AppRef | None:
    """Return the definition of the pipeline of the job in this directory, if its last run recorded it."""
    with suppress(OSError, ValueError):
        last = (read_status(directory) or {}).get("last")
        started = last.get("started") if isinstance(last, dict) else None
        if isinstance(started, dict) and isinstance(recorded := started.get("app"), str):
            return AppRef.parse(recorded)
    return None


def resolve_jobs_dir(checkpoint_dir: str | None) -> Path:
    """Return the directory that holds the job directories of this machine."""
    return resolve_settings(checkpoint_dir).job_dir(_ANY).parent


def resolve_settings(checkpoint_dir: str | None) -> Settings:
    """Resolve the settings of a command that takes a job name, not a pipeline file."""
    return resolve_with_keys(cli={} if checkpoint_dir is None else {"checkpoint_dir": checkpoint_dir})


def describe_unknown_job(home: Path, job: str) -> str:
    """Explain that no job of this name has run on this machine."""
    return (
        f"no job {job!r} in {home}: it has not run on this machine, or its directory is elsewhere (--checkpoint-dir). "
        "To see the jobs there: kafka-eos list"
    )


def find_job_storage(settings: Settings, job: str) -> JobStorage | None:
    """Find the checkpoint storage of a job; None if it has none. Creates no directory."""
    return find_storage(settings.checkpoint_location(job))


def open_job_storage(settings: Settings, job: str) -> JobStorage:
    """Open the checkpoint storage of a job; raise ConfigError if it has none."""
    storage = find_job_storage(settings, job)
    if storage is None:
        raise ConfigError(describe_missing_checkpoints(settings, job))
    return storage


def describe_missing_checkpoints(settings: Settings, job: str) -> str:
    """Explain that a job has no checkpoints, and the likely causes."""
    home = settings.checkpoint_dir
    where = home.absolute() if isinstance(home, Path) else home
    causes = "it never started, or its checkpoints are elsewhere (--checkpoint-dir)"
    return f"no checkpoints of a job {job!r} in {where}: {causes}"
