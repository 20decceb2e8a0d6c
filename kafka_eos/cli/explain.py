"""``kafka-eos explain``: what a pipeline is, and what it guarantees, without running it."""

from __future__ import annotations

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app


def explain(app: App, bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None) -> None:
    """Print the graph, the guarantee of every path with its reason, and each setting with its origin.

    Needs no broker. Example: `kafka-eos explain orders.py`
    """
    from kafka_eos.explain import explain as render

    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    typer.echo(render(pipeline.plan(), settings))
