"""``kafka-eos demo``: a demonstration of exactly-once under faults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kafka_eos.monitoring.terminal.live_view import console


def demo(
    orders: Annotated[int, typer.Option(help="How many orders are written.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Decides the orders and the faults.")] = 1,
    directory: Annotated[Path, typer.Option(help="Where everything of the demo is kept.")] = Path(".kafka-eos/demo"),
    port: Annotated[int, typer.Option(help="Port of the broker; 0 picks a free one.")] = 0,
    keep_broker: Annotated[bool, typer.Option("--keep-broker", help="Leave the broker running afterwards.")] = False,
    engine: Annotated[
        Literal["embedded", "spark"], typer.Option(help="What runs the job: worker processes, or a Spark cluster.")
    ] = "embedded",
) -> None:
    """Start a real Kafka, run a job, kill it again and again under load, then audit what it wrote.

    The job starts with two workers and, half-way, is stopped cleanly and continued with another number. Workers,
    supervisor and broker are killed with SIGKILL, at named steps of a checkpoint, between two commits of an epoch and
    at any moment; with `--engine spark` it runs on a small Spark cluster, and driver, executors and their Python
    workers are. It writes a topic, Parquet files, and a table if PostgreSQL is installed or the wheel `pgserver`. In
    the end Spark reads all of them and recomputes every output. Takes about two minutes, on Spark four; needs Java 17
    and the extra `audit`.
    Exit code 0 for PASS only, 1 for FAIL, 2 for INVALID (something planned did not happen, so nothing is proven).

    Example: `kafka-eos demo --seed 7`
    """
    from kafka_eos.devtools.demo import Options, run_demo

    options = Options(orders=orders, seed=seed, directory=directory, port=port, keep_broker=keep_broker, engine=engine)
    result = run_demo(options, console)
    typer.echo(result.headline)
    typer.echo(f"report: {directory / 'report.html'}, {directory / 'report.json'}")
    typer.echo(f"the job in a browser: kafka-eos ui --checkpoint-dir {directory / 'run' / 'checkpoints'}")
    if keep_broker:
        typer.echo(f"the broker still runs; stop it: kafka-eos broker stop --directory {directory / 'run' / 'broker'}")
    raise typer.Exit(result.exit_code)
