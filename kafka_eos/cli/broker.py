"""``kafka-eos broker``: a real Kafka broker on this machine for development, and topics and records by hand."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_eos.abc.context import JobContext
from kafka_eos.cli.options import Bootstrap
from kafka_eos.cli.output import echo
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.monitoring.terminal.live_view import print_message

if TYPE_CHECKING:
    from kafka_eos.connectors.kafka.client.cluster import Cluster

app = typer.Typer(help="Start and stop a local Kafka broker for development (needs Java 17), and use any cluster's "
                  "topics by hand.", no_args_is_help=True)  # fmt: skip
topic_app = typer.Typer(help="Create, list and delete topics of a Kafka cluster.", no_args_is_help=True)
app.add_typer(topic_app, name="topic")
Directory = Annotated[Path, typer.Option(help="Directory for the broker's data and log.")]
Topics = Annotated[list[str], typer.Argument(help="Names of topics.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.")]
Separator = Annotated[
    str | None, typer.Option(help="Text between the key and the value of a line, e.g. `:`. Default: lines are values.")
]
_DEFAULT = Path(".kafka-eos/broker")


@app.command()
def start(
    directory: Directory = _DEFAULT,
    port: Annotated[int, typer.Option(help="Port of the broker; 0 picks a free port.")] = 9092,
    release: Annotated[
        str, typer.Option(help="Kafka release: 4.4, 4.3, 4.0 or 3.9. Default: the release of the last start, or 4.3.")
    ] = "",
) -> None:
    """Start a broker that runs until `kafka-eos broker stop`.

    The last line of its output sets the address for other commands: copy it into your shell.

    Example: `kafka-eos broker start --port 9092`
    """
    from kafka_eos.devtools.broker import Broker

    broker = Broker(directory.resolve(), port, daemon=True, release=release)
    broker.start()
    echo(f"broker {broker.bootstrap} is up (process {broker.pid}, data in {directory})")
    echo(f"export KAFKA_EOS_BOOTSTRAP_SERVERS={broker.bootstrap}")


@app.command()
def stop(directory: Directory = _DEFAULT) -> None:
    """Stop the broker. Example: `kafka-eos broker stop`"""
    from kafka_eos.devtools.broker import Broker

    broker = Broker.attach(directory.resolve())
    if broker is None:
        raise ConfigError(f"no broker of {directory} is running")
    broker.stop()
    echo("stopped")


@app.command()
def status(directory: Directory = _DEFAULT) -> None:
    """Print whether the broker runs, and its address. Exit code 1 if not. Example: `kafka-eos broker status`"""
    from kafka_eos.devtools.broker import Broker

    broker = Broker.attach(directory.resolve())
    if broker is None:
        echo(f"no broker of {directory} is running")
        raise typer.Exit(1)
    echo(f"broker {broker.bootstrap} is up (process {broker.pid})")


@topic_app.command()
def create(
    topics: Topics,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions of each topic.")] = 1,
    bootstrap_servers: Bootstrap = None,
    directory: Directory = _DEFAULT,
) -> None:
    """Create topics with the cluster's default number of replicas.

    Example: `kafka-eos broker topic create orders totals --partitions 4`
    """
    from kafka_eos.devtools.broker.topics import create_topics

    create_topics(_cluster(bootstrap_servers, directory), topics, partitions)
    echo(f"created {', '.join(topics)} ({partitions} partition{'s' if partitions > 1 else ''} each)")


@topic_app.command("list")
def list_(bootstrap_servers: Bootstrap = None, directory: Directory = _DEFAULT) -> None:
    """Print each topic and its number of partitions, without Kafka's own. Example: `kafka-eos broker topic list`"""
    from kafka_eos.devtools.broker.topics import list_topics

    for name, partitions in list_topics(_cluster(bootstrap_servers, directory)).items():
        echo(f"{name}\t{partitions}")


@topic_app.command()
def delete(topics: Topics, bootstrap_servers: Bootstrap = None, directory: Directory = _DEFAULT) -> None:
    """Delete topics with all their records. Example: `kafka-eos broker topic delete totals`"""
    from kafka_eos.devtools.broker.topics import delete_topics

    delete_topics(_cluster(bootstrap_servers, directory), topics)
    echo(f"deleted {', '.join(topics)}")


@app.command()
def produce(
    topic: Topic,
    lines: Annotated[
        list[str] | None, typer.Argument(help="Records to write. Default: one per line of standard input.")
    ] = None,
    key_separator: Separator = None,
    bootstrap_servers: Bootstrap = None,
    directory: Directory = _DEFAULT,
) -> None:
    """Write records to a topic: one per argument, or one per line of standard input.

    Example: `kafka-eos broker produce orders 'ann:{"user": "ann", "amount": 5}' --key-separator :`

    Example: `kafka-eos broker produce orders < orders.jsonl`
    """
    from kafka_eos.devtools.broker.topics import produce_lines

    cluster = _cluster(bootstrap_servers, directory)
    given = lines or (line.rstrip("\n") for line in sys.stdin)
    written = produce_lines(cluster, topic, given, key_separator)
    print_message(f"wrote {written:,} record{'' if written == 1 else 's'} to {topic}")


@app.command()
def consume(
    topic: Topic,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record. Default: with the next one.")
    ] = False,
    most: Annotated[int | None, typer.Option("--max", min=1, help="End after this number of records.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End at the end of the topic. Default: wait for more, until Ctrl-C.")
    ] = False,
    key_separator: Separator = None,
    bootstrap_servers: Bootstrap = None,
    directory: Directory = _DEFAULT,
) -> None:
    """Print the committed records of a topic, one per line.

    Output of a job appears once its epoch is committed. With --key-separator the key precedes the value.

    Example: `kafka-eos broker consume totals --from-beginning --max 10`
    """
    from kafka_eos.devtools.broker.topics import consume_lines

    found = consume_lines(
        _cluster(bootstrap_servers, directory),
        topic,
        from_beginning=from_beginning,
        until_end=until_end,
        separator=key_separator,
    )
    with closing(found), suppress(KeyboardInterrupt):
        for line in islice(found, most):
            echo(line)


def _cluster(servers: str | None, directory: Path) -> Cluster:
    """Return the cluster of the option, otherwise of the settings, otherwise of the local broker in ``directory``."""
    from kafka_eos.connectors.kafka.client.cluster import resolve_cluster
    from kafka_eos.devtools.broker import Broker

    settings = Settings.resolve(cli={} if servers is None else {"bootstrap_servers": servers})
    if settings.origin_of("bootstrap_servers") == "default" and (broker := Broker.attach(directory.resolve())):
        servers = broker.bootstrap
    return resolve_cluster(servers, {}, JobContext("kafka-eos-broker", Term(0), settings.connector_defaults()))
