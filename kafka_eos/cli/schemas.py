"""``kafka-eos schemas``: the schemas of the code beside those that are registered and stored, before a job starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kafka_eos.abc.codec import Comparable, Comparison, Described, HasCodecs
from kafka_eos.audit.state.uncertain_state import declared, stored
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, find_job, open_app
from kafka_eos.cli.state import open_snapshot
from kafka_eos.codecs import Registry
from kafka_eos.codecs.avro.generated_models import as_models
from kafka_eos.codecs.registry.schema_references import below
from kafka_eos.core.errors import ConfigError, RegistryAway
from kafka_eos.plan import Plan
from kafka_eos.savepoints.compatibility import fitting
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
    for place, found in _compared(app, from_, bootstrap_servers, checkpoint_dir):
        typer.echo(f"{_word(found)}  {place}: {found.beside}")
        for line in found.wrong:
            typer.echo(f"         {line}")
        wrong |= bool(found.wrong)
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
    for place, found in _compared(app, from_, bootstrap_servers, checkpoint_dir):
        if found.differences:
            typer.echo(f"{place}: {found.beside}")
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
    found = Registry(url).newest(schema)
    if found is None or found.schema.kind != "AVRO":
        raise ValueError(f"{url} has no such subject with a schema of Avro")
    named = [json.loads(each.text) for each in below(found.schema, Registry(url)).values()]
    return as_models(json.loads(found.schema.text), named)


def _word(found: Comparison) -> str:
    if found.wrong:
        return "WRONG"
    return "ok   " if found.is_there else "none "


def _compared(
    app: str, from_: str | None, bootstrap_servers: str | None, checkpoint_dir: str | None
) -> Iterator[tuple[str, Comparison]]:
    """Each schema of the pipeline: where it is, and what it is beside."""
    program, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    plan = program.plan()
    for source in plan.sources:
        yield from _topics(f"source {source.name}", source.source, reading=True)
    for sink in plan.sinks:
        yield from _topics(f"sink {sink.name}", sink.sink, reading=False)
    storage = find_job(settings, plan.name)
    if from_ is not None:
        yield from _states(plan, open_snapshot(from_))
    elif storage is not None and any(storage.list(paths.MANIFESTS)):
        yield from _states(plan, Snapshot.open(settings.checkpoints_of(plan.name)))


def _topics(place: str, connector: Any, reading: bool) -> Iterator[tuple[str, Comparison]]:
    if isinstance(connector, HasCodecs):
        for part, codec in connector.codecs().items():
            said = f"{place}, {part}: {codec.describe()}" if isinstance(codec, Described) else f"{place}, {part}"
            if isinstance(codec, Comparable):
                with _advised(said):
                    found = codec.compared(reading)
                yield said, found


@contextmanager
def _advised(what: str) -> Iterator[None]:
    """Says what to do if the registry does not answer."""
    try:
        yield
    except RegistryAway as error:
        raise RegistryAway(
            f"{what}: {error}. So nothing can be said of it: check that the registry runs at that address and lets you "
            "in, then give the command again"
        ) from error


def _states(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[str, Comparison]]:
    beside, known = f"epoch {snapshot.epoch} of {snapshot.path}", declared(plan)
    operators = {node.name for node in plan.nodes}
    for (operator, name), described in sorted(stored(snapshot.handles).items()):
        place = f"state {operator}.{name}"
        if (descriptor := known.get((operator, name))) is not None:
            yield place, fitting(beside, descriptor, described)
        elif operator not in operators:
            yield place, Comparison(beside, wrong=[_NO_SUCH])
