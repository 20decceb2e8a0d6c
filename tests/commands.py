"""A ``kafka-eos`` command in the process of a test: a process of its own takes half a second to start.

Rule: an error is what ``exit_on_error`` makes of it. What a shell sees is in ``tests/unit/cli/test_cli.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.core.failure_causes import error_name
from kafka_eos.monitoring.terminal.exit_codes import exit_code


def run_command(directory: Path, *arguments: str, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command that has this directory and environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, KafkaEosError):
        return exit_code(done.exception), done.stdout, f"{done.stderr}{error_name(done.exception)}: {done.exception}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr
