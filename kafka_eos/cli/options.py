"""Options that several commands share, and how they become settings.

Rule: an option that was not given is not passed on, so that code, environment and defaults keep their say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import Program, load
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.storage_factory import find_storage

App = Annotated[
    str, typer.Argument(help="Python file that defines the pipeline, e.g. `orders.py` or `orders.py:pipeline`.")
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap-servers", "-b", help="Kafka brokers, `host:port` separated by commas.")
]
CheckpointDir = Annotated[
    str | None,
    typer.Option("--checkpoint-dir", help="Where checkpoints are kept, one directory a job: a path or `s3://…`."),
]


_ANY = "any"
"""A job's name, to learn where the directories of jobs are."""


def open_app(app: str, **options: object) -> tuple[Program, Settings]:
    """Load the user's file and resolve its settings with the options given on the command line."""
    program = load(AppRef.parse(app))
    cli = {name: value for name, value in options.items() if value is not None}
    return program, Settings.resolve(code=program.code_settings, cli=cli)


def home_of_jobs(checkpoint_dir: str | None) -> Path:
    """Where the jobs of this machine have their directories."""
    return settings_of(checkpoint_dir).job_dir(_ANY).parent


def settings_of(checkpoint_dir: str | None) -> Settings:
    """Settings of a command that is given the name of a job, and not its file."""
    return Settings.resolve(cli={} if checkpoint_dir is None else {"checkpoint_dir": checkpoint_dir})


def no_job(home: Path, job: str) -> str:
    """What is wrong with a name that no job of this machine has."""
    return (
        f"no job {job!r} in {home}: it never ran on this machine, or elsewhere (--checkpoint-dir). "
        "What ran there: kafka-eos list"
    )


def find_job(settings: Settings, job: str) -> JobStorage | None:
    """The checkpoints of a job; None if it has none there. Makes no directory."""
    return find_storage(settings.checkpoints_of(job))


def open_job(settings: Settings, job: str) -> JobStorage:
    """As ``find_job``; ConfigError if there are none."""
    storage = find_job(settings, job)
    if storage is None:
        raise ConfigError(no_checkpoints(settings, job))
    return storage


def no_checkpoints(settings: Settings, job: str) -> str:
    """What is wrong, and the likely ways to put it right."""
    home = settings.checkpoint_dir
    where = home.absolute() if isinstance(home, Path) else home
    return f"no checkpoints of a job {job!r} in {where}: it never started, or they are elsewhere (--checkpoint-dir)"
