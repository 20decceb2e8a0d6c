"""``kafka-eos init``: create a project that is tested and can be deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.cli.output import echo


def init(
    name: Annotated[Path, typer.Argument(help="Directory to create. Its name is also that of the job.")],
    template: Annotated[
        str, typer.Option("--template", "-t", help="`totals`, `join`, `postgres` (a table) or `lake` (Parquet files).")
    ] = "totals",
) -> None:
    """Create a project: a pipeline, its models, unit and integration tests, and files for Docker and CI.

    Its tests pass at once: run `pytest` in it. The integration test starts a broker itself, in Docker if that runs,
    otherwise locally (Java 17).

    Example: `kafka-eos init shop`

    Example: `kafka-eos init shop-lake --template lake`
    """
    from kafka_eos.devtools.project import create_project

    for file in create_project(name, template):
        echo(str(file))
    echo(f"\nnext: cd {name} && pip install pytest mypy && pytest")
