"""``kafka-eos run``: run a pipeline on the embedded engine, or on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kafka_eos.api.engine import Engine
from kafka_eos.api.run import run_with_view
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.core.errors import ConfigError

Interval = Annotated[
    str | None,
    typer.Option(
        help="Time between checkpoints, e.g. `500ms`; output becomes visible once per checkpoint. Default: `1s`."
    ),
]
Backend = Annotated[str | None, typer.Option(help="Backend for keyed state: `rocksdb` (default) or `memory`.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--parallelism", "-p", help="Number of worker processes; may differ from the last run. Default: one per core."
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(
        help="How checkpoint barriers treat rows between workers: `aligned` (default), `unaligned` or `at-least-once`."
    ),
]
Savepoint = Annotated[
    Path | None, typer.Option("--from", help="Savepoint to start from if the job has no checkpoints yet.")
]
DroppedState = Annotated[
    bool | None,
    typer.Option(
        "--allow-dropped-state",
        help="Drop the state of operators that are no longer in the pipeline; without it such a start is refused.",
    ),
]
RepeatedOutput = Annotated[
    bool | None,
    typer.Option(
        "--allow-repeated-output",
        help="Start from an older savepoint: readers see the output of epochs committed after it twice.",
    ),
]
TakeOver = Annotated[
    bool | None,
    typer.Option(
        "--take-over",
        help="Start a new incarnation and fence the existing one for good; output of input that "
        "both read is duplicated.",
    ),
]
Standby = Annotated[
    bool | None,
    typer.Option(
        "--standby",
        help="Run as a standby: wait while another supervisor leads the job, and become leader if it fails.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(help="Serve metrics and status at this `host:port`; port 0 picks a free port. Default: off."),
]
Otel = Annotated[
    bool | None,
    typer.Option(
        "--otel",
        help="Export metrics and a trace of each epoch by OTLP, to `OTEL_EXPORTER_OTLP_ENDPOINT`. Default: off.",
    ),
]
OpenLineage = Annotated[
    str | None,
    typer.Option(
        "--openlineage",
        metavar="NAMESPACE",
        help="Send the job's inputs and outputs to a data catalog as a job of this namespace, by OpenLineage, to "
        "`OPENLINEAGE_URL`. Default: off.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(help="Format of log lines on standard error: `text` (default), or `json` with one object per line."),
]
LogLevel = Annotated[
    str | None, typer.Option(help="Lowest level to log, e.g. `info` or `warning,LOGGER=debug`. Default: `info`.")
]
CaughtUp = Annotated[
    bool,
    typer.Option("--until-caught-up", help="Stop when the input that existed at the start is processed and committed."),
]
EngineName = Annotated[
    Literal["embedded", "spark"],
    typer.Option(help="Where workers run: `embedded` in processes of this machine, `spark` in the tasks of a cluster."),
]
Master = Annotated[
    str | None, typer.Option(help="Spark master, e.g. `local[2]` or `spark://host:7077`. Needs `--engine spark`.")
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
    allow_repeated_output: RepeatedOutput = None,
    take_over: TakeOver = None,
    standby: Standby = None,
    http: Http = None,
    otel: Otel = None,
    openlineage: OpenLineage = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    until_caught_up: CaughtUp = False,
    engine: EngineName = "embedded",
    master: Master = None,
) -> None:
    """Run a pipeline with exactly-once guarantees, until it is stopped.

    Ctrl-C or SIGTERM drains the job: it takes a last checkpoint, commits it, and ends with exit code 0. To resume a
    stopped or killed job from its last checkpoint, give the same command again; then `--from` has no effect.

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
        allow_repeated_output=allow_repeated_output,
        take_over=take_over,
        standby=standby,
        http=http,
        otel=otel,
        openlineage=openlineage,
        log_format=log_format,
        log_level=log_level,
    )
    run_with_view(program, settings, _engine(engine, master), until_caught_up)


def _engine(name: str, master: str | None) -> Engine | None:
    """Return the engine; None for the embedded one."""
    if name == "spark":
        from kafka_eos.spark import SparkEngine

        return SparkEngine(master=master)
    if master is not None:
        raise ConfigError("--master applies to Spark only: add --engine spark")
    return None
