"""``kafka-eos schemas``: compare a pipeline's schemas with the registry and stored state, before a job starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kafka_eos._util.printable_text import printable
from kafka_eos.abc.codec import SchemaComparison
from kafka_eos.abc.sink import Sink
from kafka_eos.abc.source import Source
from kafka_eos.audit.state.uncertain_state import declared, stored
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, find_job_storage, open_app
from kafka_eos.cli.output import echo
from kafka_eos.cli.state import open_snapshot
from kafka_eos.codecs import Registry
from kafka_eos.codecs.avro.generated_models import as_models
from kafka_eos.codecs.registry.schema_references import fetch_references
from kafka_eos.core.errors import ConfigError, RegistryUnavailable
from kafka_eos.plan import Plan
from kafka_eos.savepoints.compatibility import compare_state
from kafka_eos.savepoints.snapshot import Snapshot
from kafka_eos.storage import object_names as paths

app = typer.Typer(
    help="Compare the schemas of a pipeline with the registry and with stored state, before it starts.",
    no_args_is_help=True,
)
From = Annotated[
    str | None,
    typer.Option(
        "--from", help="Savepoint or job directory to compare state with. Default: the job's newest checkpoint."
    ),
]


_NO_SUCH = (
    "the pipeline has no operator of that name: restore the old name, or drop its state for good with "
    "--allow-dropped-state"
)


@app.command()
def check(
    app: App, from_: From = None, bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Check whether the job would start with each schema, and could read existing data.

    The result is `ok`, `INCOMPATIBLE` with one line per problem, or `new` if nothing is registered yet. Exit code 1 if
    a schema is incompatible, or the registry does not respond. Needs no broker, and changes nothing.

    Example: `kafka-eos schemas check orders.py --from /backup/orders`
    """
    wrong = False
    for place, found in _compare_schemas(app, from_, bootstrap_servers, checkpoint_dir):
        echo(f"{_result(found):<12}  {place}: {found.counterpart}")
        for line in found.problems:
            echo(f"              {printable(line)}")
        wrong |= bool(found.problems)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def diff(
    app: App, from_: From = None, bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Show all differences between each schema of the code and the newest registered or stored one, even compatible.

    Exit code 1 if a schema differs, or the registry does not respond. Needs no broker, and changes nothing.

    Example: `kafka-eos schemas diff orders.py`
    """
    differs = False
    for place, found in _compare_schemas(app, from_, bootstrap_servers, checkpoint_dir):
        if found.differences:
            echo(f"{place}: {found.counterpart}")
            for line in found.differences:
                echo(f"  {printable(line)}")
        differs |= bool(found.differences)
    raise typer.Exit(1 if differs else 0)


@app.command()
def model(
    schema: Annotated[str, typer.Argument(help="File with an Avro schema; with --registry the name of a subject.")],
    registry: Annotated[
        str | None, typer.Option(help="Address of a schema registry. Default: read the schema from a file.")
    ] = None,
) -> None:
    """Print pydantic models for an Avro schema, as types for a topic that other programs write.

    Exit code 2 if a part of the schema has no counterpart; the message names the field. Changes nothing.

    Example: `kafka-eos schemas model orders-value --registry http://localhost:8081`
    """
    try:
        with _advised(schema):
            echo(_models(schema, registry).removesuffix("\n"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{schema}: {error}") from None


def _models(schema: str, url: str | None) -> str:
    if url is None:
        return as_models(json.loads(Path(schema).read_text(encoding="utf-8")), [])
    found = Registry(url).get_latest_version(schema)
    if found is None or found.schema.kind != "AVRO":
        raise ValueError(f"{url} has no subject of that name with an Avro schema")
    named = [json.loads(each.text) for each in fetch_references(found.schema, Registry(url)).values()]
    return as_models(json.loads(found.schema.text), named)


def _result(found: SchemaComparison) -> str:
    if found.problems:
        return "INCOMPATIBLE"
    return "ok" if found.is_there else "new"


def _compare_schemas(
    app: str, from_: str | None, bootstrap_servers: str | None, checkpoint_dir: str | None
) -> Iterator[tuple[str, SchemaComparison]]:
    """Compare each schema of the pipeline with its registered or stored counterpart."""
    program, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    plan = program.plan()
    for source in plan.sources:
        yield from _topics(f"source {source.name}", source.source, reading=True)
    for sink in plan.sinks:
        yield from _topics(f"sink {sink.name}", sink.sink, reading=False)
    storage = find_job_storage(settings, plan.name)
    if from_ is not None:
        yield from _states(plan, open_snapshot(from_))
    elif storage is not None and any(storage.list(paths.MANIFESTS)):
        yield from _states(plan, Snapshot.open(settings.checkpoint_location(plan.name)))


def _topics(place: str, connector: Source[Any] | Sink[Any], reading: bool) -> Iterator[tuple[str, SchemaComparison]]:
    for part, codec in connector.codecs().items():
        description = codec.describe()
        location = f"{place}, {part}" if description is None else f"{place}, {part}: {description}"
        with _advised(location):
            found = codec.compare_schema(reading)
        if found is not None:
            yield location, found


@contextmanager
def _advised(what: str) -> Iterator[None]:
    """Add a remedy to the error if the registry does not respond."""
    try:
        yield
    except RegistryUnavailable as error:
        raise RegistryUnavailable(
            f"{what}: {error}. Check that the registry runs at that address and accepts your credentials, then run the "
            "command again"
        ) from error


def _states(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[str, SchemaComparison]]:
    counterpart, known = f"epoch {snapshot.epoch} of {snapshot.path}", declared(plan)
    operators = {node.name for node in plan.nodes}
    for (operator, name), described in sorted(stored(snapshot.handles).items()):
        place = f"state {operator}.{name}"
        if (descriptor := known.get((operator, name))) is not None:
            yield place, compare_state(counterpart, descriptor, described)
        elif operator not in operators:
            yield place, SchemaComparison(counterpart, problems=[_NO_SUCH])
