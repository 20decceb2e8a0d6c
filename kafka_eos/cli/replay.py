"""``kafka-eos replay``: one epoch of a job again, in this process, without its sinks."""

from __future__ import annotations

import pdb  # noqa: T100 - the option --pdb
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app, open_job_storage
from kafka_eos.cli.output import echo, echo_json
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.terminal.live_view import print_message

if TYPE_CHECKING:
    from kafka_eos.core.errors import PoisonRecord
    from kafka_eos.ops.epoch_replay.pytest_writer import WrittenTest

_STEPS = 20


def replay(
    app: App,
    epoch: Annotated[
        int | None,
        typer.Option(
            help="Number of the epoch. One more than the newest is the epoch that was not decided, for example because "
            "a record stopped the job. Default: the newest."
        ),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            help="Input record, `orders/0/17`: replay the epoch that read it, and show only what became of this record."
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SAVEPOINT",
            help="Savepoint of an earlier epoch to begin with; or `start`: begin without state, and read the whole "
            "input of the job up to the epoch. Default: the newest checkpoint before the epoch, else `start`.",
        ),
    ] = None,
    operator: Annotated[str | None, typer.Option(help="Show only this operator.")] = None,
    key: Annotated[
        str | None,
        typer.Option(help='Show only rows and state of this key: text, or JSON if it is not text (`42`, `["a",7]`).'),
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Calls and state entries that are shown of each operator.")] = _STEPS,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    write_test: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the epoch as a pytest file `test_….py`, with its records and state in a directory beside it. "
            "It expects the committed rows. With --key: only records of that key; with --record: of the record's keys.",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--pdb", help="Open the debugger where the function raised that stops the replay.")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Replay one epoch of a job in this process, without its sinks, and write it as a test.

    The replay begins with the state before the epoch, reads the records of the epoch again, and shows for each operator
    the rows in and out, late rows, and the state that changed. It compares the state and the rows with those that the
    job stored and committed, and names per operator what cannot be repeated exactly. Functions are called in this
    process, so `breakpoint()` works in them. The job is not contacted and may be running. Exit code 0 if nothing
    differs, 1 if something does or a record stops the replay, 2 if the epoch cannot be replayed.

    Example: `kafka-eos replay orders.py --record orders/0/17 --write-test tests/test_orders_0_17.py`

    Example: `kafka-eos replay orders.py --epoch 42 --key ann`

    Example: `kafka-eos replay orders.py --epoch 42 --key ann --write-test tests/test_epoch_42.py`
    """
    from kafka_eos.ops.epoch_replay.job_replay import replay_epoch
    from kafka_eos.ops.epoch_replay.pytest_writer import write_test as write
    from kafka_eos.ops.epoch_replay.replay_report import ReplayView

    if record is not None and (epoch is not None or key is not None):
        raise ConfigError("--record selects the epoch and the rows: omit --epoch and --key")
    program, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
    storage = open_job_storage(settings, program.name)
    found = replay_epoch(program, settings, storage, epoch, begin, record, print_message)
    view = ReplayView(found, operator, key, record, None if as_json else rows)
    if as_json:
        echo_json(view.encode())
    else:
        for line in view.lines():
            echo(line)
    if write_test is not None:
        _report_test(write(found, program.app, write_test, view.related_records))
    if debug and found.run.failure is not None:
        _open_debugger(found.run.failure)
    raise typer.Exit(0 if found.is_equal else 1)


def _report_test(written: WrittenTest) -> None:
    result = "it passes" if written.failure is None else f"it fails: {written.failure}"
    echo(f"wrote {written.path} with {written.records:,} records; {result}", err=True)
    if not written.is_repeatable:
        echo(
            "a second replay gave other outputs or another state: a function depends on more than its input and its "
            "state (the time, a random number, a service), so the test may fail at any time",
            err=True,
        )


def _open_debugger(failure: PoisonRecord) -> None:
    """Open the debugger where the user's function raised."""
    cause: BaseException = failure
    while cause.__cause__ is not None:
        cause = cause.__cause__
    pdb.post_mortem(cause.__traceback__)
