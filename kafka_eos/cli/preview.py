"""``kafka-eos preview``: what every operator makes of some real records, without a job."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafka_eos.abc.auditable import AuditableSource, SampleStart
from kafka_eos.abc.context import JobContext
from kafka_eos.cli.options import Bootstrap
from kafka_eos.config.settings import Settings
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.core.records import RawRecord
from kafka_eos.monitoring.terminal.live_view import open_stdout_console
from kafka_eos.plan import Plan

_STEP: Final = 100
"""Milliseconds between the timestamps that lines of a file get as records."""


def preview(
    app: Annotated[str, typer.Argument(help="File or module of the pipeline: `orders.py` or `orders.py:build`.")],
    records: Annotated[int, typer.Option(min=1, help="Records of each source.")] = 100,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="`newest` (default), `earliest`, a time such as 2026-01-31T12:00, or a FILE with one JSON value per "
            "line; SOURCE=FILE if there are several sources.",
        ),
    ] = None,
    expand: Annotated[
        list[int] | None, typer.Option(help="Number of a record whose way through the plan is shown.")
    ] = None,
    bootstrap_servers: Bootstrap = None,
) -> None:
    """Read real records, and show what every operator makes of each, with event time and late rows.

    Nothing is written and nothing is committed: the sinks show the rows that they would write. A record that an
    operator rejects is shown with the reason. With `--expand 3` the rows of every operator for record 3 follow.

    Example: `kafka-eos preview orders.py --records 20 --expand 1`

    Example: `kafka-eos preview orders.py --from orders.jsonl`
    """
    from kafka_eos.runtime.program import load_program
    from kafka_eos.testing.preview import preview as run_preview

    program = load_program(AppRef.parse(app))
    cli = {} if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers}
    settings = Settings.resolve(code=program.code_settings, cli=cli)
    show_error_messages(True)  # they may quote a record, which is shown anyway
    plan = program.plan()
    found = run_preview(plan, _read_inputs(plan, settings, start or ["newest"], records))
    console = open_stdout_console()
    console.print(found)
    for number in expand or ():
        if not 1 <= number <= len(found.rows):
            raise ConfigError(f"--expand {number}: there are records 1 to {len(found.rows)}")
        console.print(found.way(number))


def _read_inputs(plan: Plan, settings: Settings, given: list[str], count: int) -> dict[str, Any]:
    """Return the records of each source, from its topic or from files."""
    from kafka_eos.testing.input_lines import read_lines
    from kafka_eos.testing.preview import sample_inputs

    context = JobContext(plan.name, Term(0), settings.connector_defaults())
    if len(given) == 1 and (start := _parse_start(given[0])) is not None:
        return {**sample_inputs(plan, context, count, start)}
    names, began = [source.name for source in plan.sources], int(time.time() * 1000)
    inputs: dict[str, Any] = {}
    for name, lines in read_lines(given, names, "--from").items():
        node = next(source for source in plan.sources if source.name == name)
        if not isinstance(node.source, AuditableSource):
            raise ConfigError(f"--from: source {name!r} has no codec that decodes lines; its values are not JSON")
        logs = node.source.audit_logs(context, ())
        topic = logs[0][0] if logs else name
        inputs[name] = [
            RawRecord(topic, 0, at, began + at * _STEP, None, line, ()) for at, line in enumerate(lines[:count])
        ]
    return inputs


def _parse_start(text: str) -> SampleStart | None:
    """Return where a sample begins; None if the text names a file."""
    match text:
        case "newest":
            return "newest"
        case "earliest":
            return "earliest"
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    if "=" in text or Path(text).exists():
        return None
    raise ConfigError(
        f"--from: {text!r} is neither newest, earliest, a time (2026-01-31T12:00 or 2026-01-31T12:00:00Z) nor a file"
    )
