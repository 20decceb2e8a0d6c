"""``kafka-eos config``: show and check the settings of a job before it starts."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kafka_eos._util.secrets import mask_config
from kafka_eos.abc.context import JobContext
from kafka_eos.cli.output import echo
from kafka_eos.config.settings import Settings
from kafka_eos.config.toml_file import FILE_VARIABLE, NAME, PROFILE_VARIABLE, ConfigFile, read_config_file
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.runtime.program import load_program

app = typer.Typer(
    help="Check and show the settings of a pipeline, or of this directory, with the origin of each value.",
    no_args_is_help=True,
)
MaybeApp = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        help="Python file, module or function of a pipeline; settings in its code take precedence.",
    ),
]


@app.command()
def show(
    app: MaybeApp = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: value and origin by name.")] = False,
) -> None:
    """Print each setting with its value and origin: code, environment, file or default.

    Secrets are masked. Needs no broker.

    Example: `KAFKA_EOS_PROFILE=production kafka-eos config show orders.py`
    """
    from kafka_eos.plan.explain import settings_shown

    code, file = _code(app), read_config_file()
    settings = Settings.resolve(code=code, file=file)
    if as_json:
        echo(json.dumps(_described(settings, file)))
        return
    echo("\n".join([_named(file), *settings_shown(settings)]))


@app.command()
def user(name: Annotated[str, typer.Argument(help="Name of the user.")]) -> None:
    """Print a line for the file of `http_users`: the name, and a hash of the password, which is asked for.

    Example: `kafka-eos config user ada >> /etc/kafka-eos/users`
    """
    from kafka_eos.monitoring.http.users import build_user_line

    given = getpass.getpass(f"password of {name}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    echo(build_user_line(name, given))


@app.command()
def check(app: MaybeApp = None) -> None:
    """Check whether a job would start with the settings of the file, and of each profile in it.

    As in a start, settings of the environment and of the pipeline's code apply too. Exit code 1 if a check fails.

    Example: `kafka-eos config check orders.py`
    """
    code, file = _code(app), read_config_file()
    wrong = [_is_wrong(code, file, profile) for profile in (None, *sorted(file.profiles))]
    raise typer.Exit(1 if any(wrong) else 0)


def _is_wrong(code: Mapping[str, Any], file: ConfigFile, profile: str | None) -> bool:
    what = "without a profile" if profile is None else f"profile {profile}"
    place = f"no {NAME}, environment and defaults" if file.path is None else f"{file.path}, {what}"
    try:
        settings = Settings.resolve(code=code, file=file.with_profile(profile))
        if settings.kafka_config:
            _expect_login(settings)
    except ConfigError as error:
        echo(f"INVALID  {place}: {error}")
        return True
    echo(f"ok       {place}")
    return False


def _expect_login(settings: Settings) -> None:
    """Raise ConfigError for Kafka settings that a start refuses before it contacts a broker."""
    from kafka_eos.connectors.kafka.client.cluster import resolve_cluster
    from kafka_eos.connectors.kafka.rpc.security import security

    job = JobContext("config", Term(0), {**settings.connector_defaults()})
    try:
        security(resolve_cluster(None, {}, job))
    except Retryable as error:
        raise ConfigError(str(error)) from error


def _code(app: str | None) -> Mapping[str, Any]:
    return {} if app is None else load_program(AppRef.parse(app)).code_settings


def _named(file: ConfigFile) -> str:
    if file.path is None:
        return f"no file: {FILE_VARIABLE} is not set, and {os.getcwd()} contains no {NAME}"
    if file.profile is None and file.profiles:
        return f"file: {file.path}, no profile; {PROFILE_VARIABLE} selects one of {', '.join(sorted(file.profiles))}"
    return f"file: {file.path}" if file.profile is None else f"file: {file.path}, profile {file.profile}"


def _described(settings: Settings, file: ConfigFile) -> dict[str, object]:
    values = settings.model_dump(mode="json")
    if settings.kafka_config is not None:
        values["kafka_config"] = mask_config(settings.kafka_config)
    return {
        "file": None if file.path is None else str(file.path),
        "profile": file.profile,
        "settings": {name: {"value": value, "origin": settings.origin_of(name)} for name, value in values.items()},
    }
