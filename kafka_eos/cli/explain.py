"""``kafka-eos explain``: describe a pipeline and its guarantees without running it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.cli.output import echo


def explain(
    app: App,
    engine: Annotated[
        Literal["embedded", "spark"], typer.Option(help="Engine that will run the pipeline.")
    ] = "embedded",
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    with_defaults: Annotated[
        bool, typer.Option("--all", help="Show also the settings that have their default.")
    ] = False,
) -> None:
    """Print a pipeline's graph, the guarantee of every path with its reason, and the settings that you changed.

    Needs no broker. With `--engine spark` the command also lists the differences on Spark. Exit code 2 if Spark cannot
    run the pipeline.

    Example: `kafka-eos explain orders.py --engine spark`
    """
    from kafka_eos.plan.explain import explain as render

    pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    if engine == "embedded":
        echo(render(pipeline.plan(), settings, with_defaults=with_defaults))
        return
    from kafka_eos.spark.explain_notes import explain_differences

    plan = pipeline.plan()
    differences = explain_differences(plan, settings)
    echo(render(plan, settings, differences, has_barriers=False, with_defaults=with_defaults))
