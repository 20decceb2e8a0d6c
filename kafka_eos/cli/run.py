"""``kafka-eos run``, and ``python orders.py``: run a pipeline on the embedded engine, or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from kafka_eos.cli.ending import explained
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.cli.output import LiveView, say
from kafka_eos.dsl import Engine, Pipeline
from kafka_eos.embedded import run as run_embedded
from kafka_eos.errors import ConfigError
from kafka_eos.ids import Term
from kafka_eos.interfaces import JobContext
from kafka_eos.plan import Plan
from kafka_eos.protocol.dead_letters import described
from kafka_eos.settings import Settings

_KAFKA = "kafka://"


def run(
    app: App,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    checkpoint_interval: Annotated[
        str | None, typer.Option(help="Time between checkpoints, e.g. `1s` or `500ms`. Output appears once each.")
    ] = None,
    state_backend: Annotated[str | None, typer.Option(help="`rocksdb` or `memory`.")] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(
            "--parallelism", "-p", help="Worker processes; default: one a core. May differ from the last run's."
        ),
    ] = None,
    checkpoint_mode: Annotated[
        str | None,
        typer.Option(help="`aligned`, `unaligned` or `at-least-once`: what barriers do to rows between workers."),
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Savepoint that a job without checkpoints begins with.")
    ] = None,
    allow_dropped_state: Annotated[
        bool | None,
        typer.Option("--allow-dropped-state", help="Drop the state of operators that the pipeline has no longer."),
    ] = None,
    take_over: Annotated[
        bool | None,
        typer.Option("--take-over", help="Begin anew in place of another life of this job, and end that one for good."),
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop when the input present at the start is processed.")
    ] = False,
    engine: Annotated[Literal["embedded", "spark"], typer.Option(help="Where to run: here, or as Spark jobs.")] = (
        "embedded"
    ),
    master: Annotated[
        str | None, typer.Option(help="Spark's master, e.g. `local[2,4]` or `spark://host:7077`. Needs --engine spark.")
    ] = None,
) -> None:
    """Run a pipeline, exactly-once, until it is stopped.

    Ctrl-C or SIGTERM drains it: one last checkpoint, committed, exit code 0. A killed job continues from its last
    checkpoint when started again; so does one that began with a savepoint, by the same command.

    Example: `kafka-eos run orders.py --checkpoint-interval 500ms`

    Example: `kafka-eos run orders.py --checkpoint-dir v2 --from .kafka-eos/orders.savepoints/20260131T120000Z-0a1b2c3d`
    """
    pipeline, settings = open_app(
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
    )
    _run(pipeline, settings, _engine(engine, master), until_caught_up)


def run_script(
    pipeline: Pipeline, settings: Mapping[str, object], engine: Engine | None = None, until_caught_up: bool = False
) -> None:
    """``pipeline.run(**settings)`` in the script itself: looks and ends like ``kafka-eos run`` of that file."""
    with explained():
        runs = run_embedded if engine is None else engine.run
        _run(pipeline, Settings.resolve(code={**pipeline.code_settings, **settings}), runs, until_caught_up)


def _engine(name: str, master: str | None) -> Callable[..., None]:
    """What runs a plan."""
    if name == "spark":
        from kafka_eos.spark import SparkEngine

        return SparkEngine(master=master).run
    if master is not None:
        raise ConfigError("--master is for Spark; add --engine spark")
    return run_embedded


def _run(pipeline: Pipeline, settings: Settings, runs: Callable[..., None], until_caught_up: bool = False) -> None:
    plan = pipeline.plan()
    workers = _workers(settings) if runs is run_embedded else ""
    say("running ", (plan.name, "bold"), f"{workers}, checkpoints in {settings.checkpoints_of(plan.name)}")
    if brokers := _brokers(plan, settings):
        say(f"asking Kafka at {', '.join(brokers)} …")
    with LiveView(plan.name) as view:
        runs(plan, pipeline.app, settings, observers=(view,), until_caught_up=until_caught_up)
    aside = f", {described(view.dead_letters)}" if view.dead_letters else ""
    say("drained and committed", (aside, "yellow"))


def _workers(settings: Settings) -> str:
    """How many there will be, and whether anybody has said so."""
    count, given = settings.parallelism, settings.origin_of("parallelism") != "default"
    return f" with {count} worker{'s' if count > 1 else ''}{'' if given else ' (by default one a core)'}"


def _brokers(plan: Plan, settings: Settings) -> list[str]:
    """The clusters that must answer before anything starts: those of the sinks."""
    context = JobContext(plan.name, Term(0), settings.for_connectors())
    scopes = {sink.sink.scope(context) for sink in plan.sinks}
    return sorted(scope.removeprefix(_KAFKA) for scope in scopes if scope.startswith(_KAFKA))
