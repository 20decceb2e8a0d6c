"""``kafka-eos dead-letters``: show dead letters, and replay their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from kafka_eos.api.run import run_with_view
from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app
from kafka_eos.cli.output import echo, echo_json
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.monitoring.terminal.live_view import print_message
from kafka_eos.monitoring.terminal.live_view import print_output as show_table
from kafka_eos.ops.dead_letters.reader import context, read_dead_letters
from kafka_eos.ops.dead_letters.replay_progress import ReplayTarget, read_replayed_ids
from kafka_eos.ops.dead_letters.replay_request import PIPELINE, ReplayRequest
from kafka_eos.ops.dead_letters.selection import Selection, offsets_of, time_of
from kafka_eos.ops.dead_letters.text_output import DeadLetterSummary, as_json, format_dead_letter, readable
from kafka_eos.ops.dead_letters.topics import DeadLetterTopics, find_dead_letter_topics
from kafka_eos.runtime.program import load_program

app = typer.Typer(help="Show dead letters and replay their records exactly once.",
                  no_args_is_help=True)  # fmt: skip

Source = Annotated[
    str | None, typer.Option(help="Source whose dead letters are meant. Needed if several sources have dead letters.")
]
Topic = Annotated[
    str | None, typer.Option(help="Topic of the rejected records. Needed if the source reads several topics.")
]
Reason = Annotated[str | None, typer.Option(help="Select dead letters whose error or message contains this text.")]
Operator = Annotated[str | None, typer.Option(help="Select records that this operator rejected.")]
Since = Annotated[str | None, typer.Option(help="Select records of this time or later, e.g. `2026-01-31T12:00`.")]
Until = Annotated[str | None, typer.Option(help="Select records before this time.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Select records of this partition of the source's topic.")]
Offsets = Annotated[
    str | None, typer.Option(help="Select these offsets of the partition: `17`, `17-29`, `17-` or `-29`.")
]


@app.command()
def show(
    app: App,
    source: Source = None,
    topic: Topic = None,
    reason: Reason = None,
    operator: Operator = None,
    since: Since = None,
    until: Until = None,
    partition: Partition = None,
    offsets: Offsets = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Maximum number to show; the rest is counted. Default: 20; with --json all."),
    ] = None,
    width: Annotated[
        int, typer.Option(min=1, help="Maximum number of characters of a value to show; --json shows all.")
    ] = 1000,
    counts: Annotated[bool, typer.Option("--counts", help="Print only the counts by operator and error.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    bootstrap_servers: Bootstrap = None,
) -> None:
    """List the records that a pipeline has rejected, with the reason, and count them.

    The filters apply to the rejected record: the time, partition and offset that it has in the topic of its source.
    Bytes that are not text are shown with escapes, in JSON as base64. Exit code 2 if neither the pipeline nor a dead
    letter has an operator of the given name. Changes nothing.

    Example: `kafka-eos dead-letters show orders.py --operator parse --since 2026-01-31T12:00`

    Example: `kafka-eos dead-letters show orders.py --json --reason KeyError | jq -r .value`
    """
    program, settings = open_app(app, bootstrap_servers=bootstrap_servers)
    at = find_dead_letter_topics(program.plan(), source, topic)
    meant = _selection(at, reason, operator, since, until, partition, offsets)
    most = 0 if counts else limit if limit is not None else None if json else 20
    found = DeadLetterSummary()
    for place, letter in read_dead_letters(at.create_source(), context(program.name, settings)):
        found.add(letter, meant)
        if letter is not None and meant.includes(letter) and (most is None or found.total <= most):
            for line in [_json(as_json(place, letter))] if json else format_dead_letter(place, letter, width):
                (echo_json if json else echo)(line)
    meant.expect_operator(at.operators, found.operators)
    if json and counts:
        for row in found.rows():
            echo_json(_json(row))
    elif not json:
        _summary(at, found, most)


@app.command()
def replay(
    app: App,
    source: Source = None,
    topic: Topic = None,
    reason: Reason = None,
    operator: Operator = None,
    since: Since = None,
    until: Until = None,
    partition: Partition = None,
    offsets: Offsets = None,
    to: Annotated[
        str | None, typer.Option(help="Write the records to this topic instead of the topic that they were read from.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            help="Name of the replay's own job, which stores what was replayed. Default: `PIPELINE-replay-SOURCE`."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written and where, without writing it.")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
) -> None:
    """Replay rejected records into the topic that the pipeline reads, each exactly once.

    They are written unchanged: key, value, headers, timestamp, partition. The pipeline processes them as new records,
    so repair it first; it may be running. Select the records with the same options as in `show`.

    The replay is a job of its own, with checkpoints beside those of the pipeline. If it is killed, the same command
    resumes it. It never replays a record twice, so a second replay of the same records writes nothing. A record that
    is rejected again has a new dead letter.

    Example: `kafka-eos dead-letters replay orders.py --operator parse --dry-run`

    Example: `kafka-eos dead-letters replay orders.py --since 2026-01-31T12:00 --until 2026-01-31T13:00`
    """
    program, _ = open_app(app, bootstrap_servers=bootstrap_servers)
    at = find_dead_letter_topics(program.plan(), source, topic)
    order = ReplayRequest(
        app=str(AppRef.parse(app)),
        source=at.source,
        job=job or f"{program.name}-replay-{at.source}",
        selection=_selection(at, reason, operator, since, until, partition, offsets),
        to=None if to == at.topic else to,
    )
    if order.job == program.name:
        raise ConfigError(f"--job {order.job} is the pipeline's own name: choose another job name for the replay")
    options = {"bootstrap_servers": bootstrap_servers, "checkpoint_dir": checkpoint_dir}
    order.export_to_environment()
    pipeline = load_program(AppRef(PIPELINE))
    settings = Settings.resolve(
        code=pipeline.code_settings, cli={name: value for name, value in options.items() if value is not None}
    )
    wanted = _has_records_to_replay(at, order, settings)
    if dry_run:
        print_message("nothing was written: --dry-run")
    elif wanted:
        run_with_view(pipeline, settings, None, until_caught_up=True)


def _has_records_to_replay(at: DeadLetterTopics, order: ReplayRequest, settings: Settings) -> bool:
    """Report what a replay would write and where; return whether there is anything to write."""
    ctx = context(order.job, settings)
    way = ReplayTarget(at, order.to, ctx)
    found, before, done = DeadLetterSummary(), read_replayed_ids(settings, order.job), 0
    for _, letter in read_dead_letters(at.create_source(), ctx):
        found.add(letter, order.selection)
        if letter is not None and order.selection.includes(letter):
            if not letter.has_record:
                continue
            way.check(letter)
            done += letter.identity in before
    order.selection.expect_operator(at.operators, found.operators)
    _summary(at, found, 0)
    left = found.total - found.shortened - found.results - done
    if left:
        print_message(f"to replay into topic {way.description}: {left:,} records")
    if found.shortened:
        print_message(
            f"not replayed: {found.shortened:,} records that were too large for their dead letters, the first of them "
            f"at {readable(found.first_shortened, 200)}. Copy them from their topic by other means"
        )
    if found.results:
        print_message(
            f"not replayed: {found.results:,} results of several records, the first of them at "
            f"{readable(found.first_result, 200)}. Compute them from the records"
        )
    if done:
        print_message(f"already replayed by job {order.job}, skipped: {done:,} records")
    elif not found.total:
        print_message("nothing to replay")
    return left > 0


def _selection(
    at: DeadLetterTopics,
    reason: str | None,
    operator: str | None,
    since: str | None,
    until: str | None,
    partition: int | None,
    offsets: str | None,
) -> Selection:
    first, last = offsets_of(offsets)
    return Selection(
        topic=at.topic,
        reason=reason,
        operator=operator,
        since=time_of(since, "--since"),
        until=time_of(until, "--until"),
        partition=partition,
        first=first,
        last=last,
    )


def _summary(at: DeadLetterTopics, found: DeadLetterSummary, shown: int | None) -> None:
    """Print the number of dead letters of each kind, after those that were printed one by one."""
    if found.total:
        table = Table("dead letters", "rejected by", "error", "first", "last")
        for row in found.rows():
            cells = (Text(readable(row[name], 200)) for name in ("operator", "error", "first", "last"))
            table.add_row(f"{row['count']:,}", *cells)
        show_table(table)
    left = found.total - (shown or found.total)
    rest = f", {left:,} not shown (--limit)" if left > 0 else ""
    print_message(f"{found.total:,} dead letters of source {at.source} in topic {at.dead_letter_sink.topic}{rest}")
    if found.other_records:
        print_message((f"{found.other_records:,} records of that topic are not dead letters: skipped", "yellow"))


def _json(found: Mapping[str, Any]) -> str:
    return msgspec.json.encode(found).decode()
