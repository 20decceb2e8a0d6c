"""``kafka-eos explain``: describe a pipeline and its guarantees without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.cli.output import echo


def explain(
    app: App,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    with_defaults: Annotated[
        bool, typer.Option("--all", help="Show also the settings that have their default.")
    ] = False,
) -> None:
    """Print a pipeline's graph, the guarantee of every path with its reason, and the settings that you changed.

    Needs no broker.

    Example: `kafka-eos explain orders.py --all`
    """
    from kafka_eos.plan.explain import explain as render

    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    echo(render(pipeline.plan(), settings, with_defaults=with_defaults))
