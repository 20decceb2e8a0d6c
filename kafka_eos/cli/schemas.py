"""``kafka-eos schemas``: the schemas of the code beside those that are registered and stored, before a job starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kafka_eos.abc.codec import HasCodecs, SchemaComparison, SupportsDescribe, SupportsSchemaCompare
from kafka_eos.audit.state.uncertain_state import declared, stored
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, find_job_storage, open_app
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
        "--from", help="The savepoint, or the directory of a job, to begin with. Default: the job's newest checkpoint."
    ),
]


_NO_SUCH = "no operator of that name: give it its old name back, or drop its state for good with --allow-dropped-state"


@app.command()
def check(
    app: App, from_: From = None, bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Say of each schema whether the job would start, and read on, with it; what is wrong is shown line by line.

    `none` stands where nothing is registered yet that one could compare with. Exit code 1 if something is wrong, or if
    the registry does not answer. Needs no broker, and changes nothing.

    Example: `kafka-eos schemas check orders.py --from /backup/orders`
    """
    wrong = False
    for place, found in _compare_schemas(app, from_, bootstrap_servers, checkpoint_dir):
        typer.echo(f"{_word(found)}  {place}: {found.counterpart}")
        for line in found.problems:
            typer.echo(f"         {line}")
        wrong |= bool(found.problems)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def diff(
    app: App, from_: From = None, bootstrap_servers: Bootstrap = None, checkpoint_dir: CheckpointDir = None
) -> None:
    """Show in what each schema of the code differs from the newest that is registered or stored, harmless or not.

    Exit code 1 if one differs, or if the registry does not answer. Needs no broker, and changes nothing.

    Example: `kafka-eos schemas diff orders.py`
    """
    differs = False
    for place, found in _compare_schemas(app, from_, bootstrap_servers, checkpoint_dir):
        if found.differences:
            typer.echo(f"{place}: {found.counterpart}")
            for line in found.differences:
                typer.echo(f"  {line}")
        differs |= bool(found.differences)
    raise typer.Exit(1 if differs else 0)


@app.command()
def model(
    schema: Annotated[str, typer.Argument(help="A file with a schema of Avro; with --registry a subject.")],
    registry: Annotated[str | None, typer.Option(help="The address of a schema registry.")] = None,
) -> None:
    """Print the pydantic models of a schema of Avro, to begin with: who reads a topic of others has a type for it.

    Exit code 2 if a part of it has no counterpart; the message names the field. Changes nothing.

    Example: `kafka-eos schemas model orders-value --registry http://localhost:8081`
    """
    try:
        with _advised(schema):
            typer.echo(_models(schema, registry), nl=False)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{schema}: {error}") from None


def _models(schema: str, url: str | None) -> str:
    if url is None:
        return as_models(json.loads(Path(schema).read_text(encoding="utf-8")), [])
    found = Registry(url).get_latest_version(schema)
    if found is None or found.schema.kind != "AVRO":
        raise ValueError(f"{url} has no such subject with a schema of Avro")
    named = [json.loads(each.text) for each in fetch_references(found.schema, Registry(url)).values()]
    return as_models(json.loads(found.schema.text), named)


def _word(found: SchemaComparison) -> str:
    if found.problems:
        return "WRONG"
    return "ok   " if found.is_there else "none "


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


def _topics(place: str, connector: Any, reading: bool) -> Iterator[tuple[str, SchemaComparison]]:
    if isinstance(connector, HasCodecs):
        for part, codec in connector.codecs().items():
            location = (
                f"{place}, {part}: {codec.describe()}" if isinstance(codec, SupportsDescribe) else f"{place}, {part}"
            )
            if isinstance(codec, SupportsSchemaCompare):
                with _advised(location):
                    found = codec.compare_schema(reading)
                yield location, found


@contextmanager
def _advised(what: str) -> Iterator[None]:
    """Says what to do if the registry does not answer."""
    try:
        yield
    except RegistryUnavailable as error:
        raise RegistryUnavailable(
            f"{what}: {error}. So nothing can be said of it: check that the registry runs at that address and lets you "
            "in, then give the command again"
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
