"""``kafka-eos broker``: a real Kafka broker on this machine, for development and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos.core.errors import ConfigError

app = typer.Typer(help="Start and stop a local Kafka broker for development; needs Java 17.",
                  no_args_is_help=True)  # fmt: skip
Directory = Annotated[Path, typer.Option(help="Directory for the broker's data and log.")]
_DEFAULT = Path(".kafka-eos/broker")


@app.command()
def start(
    directory: Directory = _DEFAULT,
    port: Annotated[int, typer.Option(help="Port of the broker; 0 picks a free port.")] = 9092,
    release: Annotated[
        str, typer.Option(help="Kafka release: 4.3, 4.0 or 3.9. Default: the release of the last start, or 4.3.")
    ] = "",
) -> None:
    """Start a broker that runs until `kafka-eos broker stop`.

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
    """Print whether the broker runs, and its address. Exit code 1 if not. Example: `kafka-eos broker status`"""
    from kafka_eos.devtools.broker import Broker

    broker = Broker.attach(directory.resolve())
    if broker is None:
        typer.echo(f"no broker of {directory} is running")
        raise typer.Exit(1)
    typer.echo(f"broker {broker.bootstrap} is up (process {broker.pid})")
