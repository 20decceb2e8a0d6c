"""``kafka-eos run``: run a pipeline on the embedded engine."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.cli.output import LiveView, console
from kafka_eos.embedded import run as run_embedded


def run(
    app: App,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    checkpoint_interval: Annotated[
        str | None, typer.Option(help="Time between checkpoints, e.g. `1s` or `500ms`. Output appears once each.")
    ] = None,
    state_backend: Annotated[str | None, typer.Option(help="`rocksdb` or `memory`.")] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop when the input present at the start is processed.")
    ] = False,
) -> None:
    """Run a pipeline, exactly-once, until it is stopped.

    Ctrl-C or SIGTERM drains it: one last checkpoint, committed, exit code 0. A killed job continues from its last
    checkpoint when started again.

    Example: `kafka-eos run orders.py --checkpoint-interval 500ms`
    """
    pipeline, settings = open_app(
        app,
        bootstrap_servers=bootstrap_servers,
        checkpoint_dir=checkpoint_dir,
        checkpoint_interval=checkpoint_interval,
        state_backend=state_backend,
    )
    console.print(
        f"running [bold]{pipeline.name}[/], checkpoints in {settings.job_dir(pipeline.name)}", highlight=False
    )
    with LiveView(pipeline.name) as view:
        run_embedded(pipeline.plan(), pipeline.app, settings, observers=(view,), until_caught_up=until_caught_up)
    console.print("drained and committed")
