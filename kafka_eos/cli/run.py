"""``kafka-eos run``: run a pipeline on the embedded engine, or on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kafka_eos.api.run import EngineRunner, run_with_view
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.core.errors import ConfigError

Interval = Annotated[
    str | None, typer.Option(help="Time between checkpoints, e.g. `1s` or `500ms`. Output appears once each.")
]
Backend = Annotated[str | None, typer.Option(help="`rocksdb` or `memory`.")]
Workers = Annotated[
    int | None,
    typer.Option("--parallelism", "-p", help="Worker processes; default: one a core. May differ from the last run's."),
]
Mode = Annotated[
    str | None,
    typer.Option(help="`aligned`, `unaligned` or `at-least-once`: what barriers do to rows between workers."),
]
Savepoint = Annotated[Path | None, typer.Option("--from", help="Savepoint that a job without checkpoints begins with.")]
DroppedState = Annotated[
    bool | None,
    typer.Option("--allow-dropped-state", help="Drop the state of operators that the pipeline has no longer."),
]
TakeOver = Annotated[
    bool | None,
    typer.Option("--take-over", help="Begin anew in place of another life of this job, and end that one for good."),
]
Standby = Annotated[
    bool | None,
    typer.Option("--standby", help="Wait while another one with --standby runs this job, and take over from it."),
]
Http = Annotated[
    str | None, typer.Option(help="Serve metrics and status at this `host:port`; port 0 picks a free one.")
]
Otel = Annotated[
    bool | None,
    typer.Option("--otel", help="Send metrics and a trace of each epoch by OTLP, to `OTEL_EXPORTER_OTLP_ENDPOINT`."),
]
LogFormat = Annotated[
    str | None, typer.Option(help="`text` for people, or `json`: one object a line, on standard error.")
]
LogLevel = Annotated[str | None, typer.Option(help="Least level of log lines: `info`, or `warning,LOGGER=debug`.")]
CaughtUp = Annotated[
    bool, typer.Option("--until-caught-up", help="Stop when the input present at the start is processed.")
]
Engine = Annotated[Literal["embedded", "spark"], typer.Option(help="Where to run: here, or as Spark jobs.")]
Master = Annotated[
    str | None, typer.Option(help="Spark's master, e.g. `local[2,4]` or `spark://host:7077`. Needs --engine spark.")
]


def run(
    app: App,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    checkpoint_interval: Interval = None,
    state_backend: Backend = None,
    parallelism: Workers = None,
    checkpoint_mode: Mode = None,
    start_from: Savepoint = None,
    allow_dropped_state: DroppedState = None,
    take_over: TakeOver = None,
    standby: Standby = None,
    http: Http = None,
    otel: Otel = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    until_caught_up: CaughtUp = False,
    engine: Engine = "embedded",
    master: Master = None,
) -> None:
    """Run a pipeline, exactly-once, until it is stopped.

    Ctrl-C or SIGTERM drains it: one last checkpoint, committed, exit code 0. A killed job continues from its last
    checkpoint when started again; so does one that began with a savepoint, by the same command.

    Example: `kafka-eos run orders.py --checkpoint-interval 500ms`

    Example: `kafka-eos run orders.py --checkpoint-dir v2 --from .kafka-eos/orders.savepoints/20260131T120000Z-0a1b2c3d`
    """
    program, settings = open_app(
        app,
        bootstrap_servers=bootstrap_servers,
        checkpoint_dir=checkpoint_dir,
        checkpoint_interval=checkpoint_interval,
        state_backend=state_backend,
        parallelism=parallelism,
        checkpoint_mode=checkpoint_mode,
        start_from=start_from,
        allow_dropped_state=allow_dropped_state,
        take_over=take_over,
        standby=standby,
        http=http,
        otel=otel,
        log_format=log_format,
        log_level=log_level,
    )
    run_with_view(program, settings, _engine(engine, master), until_caught_up)


def _engine(name: str, master: str | None) -> EngineRunner | None:
    """Return the function that runs a plan; None for the embedded engine."""
    if name == "spark":
        from kafka_eos.spark import SparkEngine

        return SparkEngine(master=master).run
    if master is not None:
        raise ConfigError("--master is for Spark; add --engine spark")
    return None
