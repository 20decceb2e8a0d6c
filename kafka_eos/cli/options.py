"""Options that several commands share, and their translation to settings.

Rule: an option that was not given is not passed on, so that settings of code, environment, file or default apply.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import Program, load_program
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.storage_factory import find_storage

App = Annotated[
    str,
    typer.Argument(
        help="Python file or module that defines the pipeline, and a variable or function if it has several: "
        "`orders.py`, `orders.py:pipeline`, `orders.py:build` or `shop.orders:build`."
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


def open_app(app: str, **options: object) -> tuple[Program, Settings]:
    """Load the user's file and resolve its settings with the options given on the command line."""
    program = load_program(AppRef.parse(app))
    cli = {name: value for name, value in options.items() if value is not None}
    return program, Settings.resolve(code=program.code_settings, cli=cli)


def resolve_jobs_dir(checkpoint_dir: str | None) -> Path:
    """Return the directory that holds the job directories of this machine."""
    return resolve_settings(checkpoint_dir).job_dir(_ANY).parent


def resolve_settings(checkpoint_dir: str | None) -> Settings:
    """Resolve the settings of a command that takes a job name, not a pipeline file."""
    return Settings.resolve(cli={} if checkpoint_dir is None else {"checkpoint_dir": checkpoint_dir})


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
