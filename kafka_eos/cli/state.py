"""``kafka-eos state``: list and read the state of a savepoint or a checkpoint, without the job."""

from __future__ import annotations

import itertools
import json
import os
import runpy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import typer
from rich.table import Table

from kafka_eos._util.printable_text import printable_json
from kafka_eos.cli.options import resolve_job
from kafka_eos.cli.output import echo, echo_json
from kafka_eos.core.errors import ConfigError, KafkaEosError
from kafka_eos.monitoring.terminal.live_view import print_output
from kafka_eos.savepoints import Snapshot
from kafka_eos.savepoints.snapshot import ALL_NAMESPACES
from kafka_eos.storage import object_names as paths

app = typer.Typer(help="List and read the state of a savepoint or checkpoint; the job need not run.",
                  no_args_is_help=True)  # fmt: skip
Where = Annotated[
    str,
    typer.Argument(
        help="Directory of a savepoint; or a job: its name, its directory, or what defines its pipeline. For a job: "
        "its newest committed epoch, or epoch 42 with `order-totals@42`."
    ),
]


Codecs = Annotated[
    Path | None,
    typer.Option(
        help="Python file that calls `register_codec` for your own codecs. Without it their values are shown as bytes."
    ),
]


@app.command("list")
def list_(
    where: Where, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per state.")] = False
) -> None:
    """List the operators that have state, their states, and how these are stored.

    Example: `kafka-eos state list orders`
    """
    snapshot = open_snapshot(where)
    states = [state for operator in snapshot.operators() for state in snapshot.states(operator).values()]
    if as_json:
        for state in states:
            echo_json(msgspec.json.encode(state))
        return
    echo(f"job {snapshot.job}, epoch {snapshot.epoch}")
    for source, splits in snapshot.sources.items():
        echo(f"source {source}: {', '.join(f'{split} {at}' for split, at in sorted(splits.items()))}")
    table = Table("operator", "state", "kind", "key", "value", "bytes")
    for state in states:
        codecs = [state.description[part]["name"] for part in ("key", "value")]  # type: ignore[index,call-overload]
        table.add_row(state.operator, state.name, state.kind, *map(str, codecs), f"{state.bytes:,}")
    print_output(table)


@app.command()
def read(
    where: Where,
    operator: Annotated[str, typer.Option(help="Name of the operator.")],
    state: Annotated[str | None, typer.Option(help="Name of the state, if the operator has several.")] = None,
    key: Annotated[
        str | None, typer.Option(help='Print only this key: text, or JSON (`42`, `["a", 7]`; `"42"` for the text).')
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Print only this namespace of the key, written like a key; `null` for none.")
    ] = None,
    form: Annotated[
        Literal["json", "parquet"], typer.Option("--format", help="Output format; `parquet` needs pyarrow.")
    ] = "json",
    output: Annotated[Path | None, typer.Option(help="New file to write. Default: standard output.")] = None,
    codecs: Codecs = None,
) -> None:
    """Print keys and values as JSON, one object per line, or write them to a Parquet file.

    Example: `kafka-eos state read orders --operator total --key a7`
    """
    if namespace is not None and key is None:
        raise ConfigError("--namespace selects a namespace of one key: add --key")
    if codecs is not None:
        _run(codecs)
    snapshot = open_snapshot(where)
    if form == "parquet":
        _parquet(snapshot, operator, state, key, output)
        return
    with _target(output) as target:
        for found in _rows(snapshot, operator, state, key, namespace):
            line = msgspec.json.encode({"key": found[0], "value": found[1]}, enc_hook=str).decode()
            target.write(f"{printable_json(line)}\n".encode())


def _run(file: Path) -> None:
    """Run the user's file that registers codecs; raise ConfigError if it fails."""
    try:
        runpy.run_path(str(file))
    except KafkaEosError:
        raise
    except Exception as error:
        raise ConfigError(f"--codecs {file} cannot be run: {type(error).__name__}: {error}") from error


def open_snapshot(where: str) -> Snapshot:
    """Open a savepoint, or the job that ``where`` names, at its newest committed epoch or at that of ``JOB@EPOCH``."""
    place, at, number = where.rpartition("@")
    if not at or not number.isdigit() or Path(where).exists():
        return Snapshot.open(_locate(where))
    return Snapshot.open(_locate(place), int(number))


def _locate(where: str) -> str | Path:
    """Return the directory or address of a savepoint, or of the checkpoints of a job."""
    if "://" in where or any((Path(where) / name).exists() for name in (paths.SAVEPOINT, paths.MANIFESTS)):
        return where
    job, settings = resolve_job(where)
    return settings.checkpoint_location(job)


def _rows(
    snapshot: Snapshot, operator: str, state: str | None, key: str | None, namespace: str | None
) -> Iterable[tuple[Any, Any]]:
    if key is None:
        return snapshot.read(operator, state)
    for candidate, within in itertools.product(_keys(key), _namespaces(namespace)):
        if found := snapshot.find_entries(operator, state, candidate, within):
            return found
    where = "" if namespace is None else f" in namespace {namespace!r}"
    raise ConfigError(f"operator {operator!r} has nothing for key {key!r}{where} in {snapshot.path}")


def _namespaces(text: str | None) -> list[Any]:
    """Return the namespaces that the text may denote, parsed like a key; all namespaces if there is no text."""
    if text is None:
        return [ALL_NAMESPACES]
    return [None, text] if text == "null" else _keys(text)


def _keys(text: str) -> list[Any]:
    """Return the keys that the text may denote: the JSON value, if it can be a key, and the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    value = _tuples(value)
    return [value, text] if type(value) in (int, str, tuple) and value != text else [text]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield typer.get_binary_stream("stdout")
        return
    try:
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # state is data of the user's records
    except FileExistsError:
        raise ConfigError(f"{output} exists already") from None
    with open(fd, "wb") as file:
        yield file
    echo(f"wrote {output}", err=True)


def _parquet(snapshot: Snapshot, operator: str, state: str | None, key: str | None, output: Path | None) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("--format parquet needs pyarrow: pip install pyarrow") from None
    if output is None or key is not None:
        raise ConfigError("--format parquet writes a whole state to a file: add --output, and omit --key")
    nothing = pyarrow.schema([(column, pyarrow.null()) for column in snapshot.columns(operator, state)])
    try:
        # Read twice: a field may be null in all of the first rows and something in later ones.
        schemas = [nothing, *(table.schema for table in snapshot.batches(operator, state))]
        schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
        with _target(output) as target, pyarrow.parquet.ParquetWriter(target, schema) as writer:
            for table in snapshot.batches(operator, state):
                writer.write_table(table.cast(schema))
    except (pyarrow.ArrowException, ValueError) as error:
        raise ConfigError(
            f"the values have different shapes, which Parquet cannot store in one file: {error}"
        ) from error
