"""``kafka-eos broker``: a real Kafka on this machine, for development and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.core.errors import ConfigError

app = typer.Typer(help="Start, stop and look at a local Kafka broker (from jars; needs Java 17).", no_args_is_help=True)
Directory = Annotated[Path, typer.Option(help="Where the broker keeps its data and log.")]
_DEFAULT = Path(".kafka-eos/broker")


@app.command()
def start(
    directory: Directory = _DEFAULT,
    port: Annotated[int, typer.Option(help="0 picks a free one.")] = 9092,
    release: Annotated[str, typer.Option(help="Of Kafka: 4.3, 4.0, 3.9. Default: as before, or 4.3.")] = "",
) -> None:
    """Start a broker that stays up until `kafka-eos broker stop`.

    Example: `kafka-eos broker start --port 9092`
    """
    from kafka_eos.devtools.broker import Broker

    broker = Broker(directory.resolve(), port, daemon=True, release=release)
    broker.start()
    typer.echo(f"broker {broker.bootstrap} is up (process {broker.pid}, data in {directory})")


@app.command()
def stop(directory: Directory = _DEFAULT) -> None:
    """Stop the broker. Example: `kafka-eos broker stop`"""
    from kafka_eos.devtools.broker import Broker

    broker = Broker.attach(directory.resolve())
    if broker is None:
        raise ConfigError(f"no broker of {directory} is running")
    broker.stop()
    typer.echo("stopped")


@app.command()
def status(directory: Directory = _DEFAULT) -> None:
    """Say whether the broker runs, and where. Exit code 1 if not. Example: `kafka-eos broker status`"""
    from kafka_eos.devtools.broker import Broker

    broker = Broker.attach(directory.resolve())
    if broker is None:
        typer.echo(f"no broker of {directory} is running")
        raise typer.Exit(1)
    typer.echo(f"broker {broker.bootstrap} is up (process {broker.pid})")
