"""``kafka-eos audit``: prove from the topics that nothing was lost or duplicated, or name what was.

``audit APP`` audits the job of a pipeline, ``audit topics`` any topics.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kafka_eos.cli.options import App, Bootstrap, CheckpointDir, open_app, open_job_storage
from kafka_eos.cli.output import echo
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.provenance import find_input_record
from kafka_eos.monitoring.terminal.live_view import console, print_message

if TYPE_CHECKING:
    from kafka_eos.audit import Verdict


Earlier = Annotated[
    list[str] | None,
    typer.Option(
        help="Directory that the job had before it started from a savepoint, such as `v1/orders`; repeatable."
    ),
]
ReportDir = Annotated[Path, typer.Option(help="Directory for the report.")]
Master = Annotated[
    str | None,
    typer.Option(help="Spark master that runs the audit, e.g. `spark://host:7077`. Default: this machine."),
]


def audit(
    app: App,
    bootstrap_servers: Bootstrap = None,
    checkpoint_dir: CheckpointDir = None,
    earlier: Earlier = None,
    report_dir: ReportDir = Path(".kafka-eos/audit"),
    master: Master = None,
) -> None:
    """Prove that a job's output is exactly-once: recompute every output from the inputs with Spark, and compare.

    The audit reads with the Java client, not with the client of the pipeline. The job must have stopped cleanly. Exit
    code 0 for PASS, 1 for FAIL (the findings name the records), 2 for INCONCLUSIVE (something needed for a verdict is
    missing), 3 for PARTIAL (some outputs were not compared). Needs Java 17 and the extra `audit`.

    Example: `kafka-eos audit orders.py --report-dir audit`
    """
    with conclude_on_error(app, report_dir) as progress:
        from kafka_eos.audit import audit as run_audit

        pipeline, settings = open_app(app, bootstrap_servers=bootstrap_servers, checkpoint_dir=checkpoint_dir)
        open_job_storage(settings, pipeline.name)
        verdict = run_audit(
            pipeline, settings, report_dir=report_dir, progress=progress, earlier=earlier or (), master=master
        )
    options = [("--bootstrap-servers", bootstrap_servers), ("--checkpoint-dir", checkpoint_dir)]
    given = [part for option in options if option[1] is not None for part in option]
    exit_with_verdict(verdict, report_dir, app=shlex.join(map(str, [app, *given])))


def topics(
    output: Annotated[
        list[str], typer.Option(help="Output topic, or directory of output files (with a slash); repeatable.")
    ],
    input: Annotated[list[str] | None, typer.Option(help="Input topic; repeatable.")] = None,  # noqa: A002
    id: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            help="Expression that identifies a record: `provenance`, `$.json.path`, `header:NAME`, or Spark SQL."
        ),
    ] = None,
    input_id: Annotated[
        str | None, typer.Option(help="Expression that identifies an input, if it differs from --id.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Spark SQL condition: inputs that must have an output. Default: all.")
    ] = None,
    output_where: Annotated[
        str | None, typer.Option(help="Spark SQL condition: outputs that are compared. Default: all.")
    ] = None,
    expect: Annotated[
        str,
        typer.Option(
            help="Outputs of each input: `one` or a number; of each id: `at-least-one`, `at-most-one`, `one-per-id`."
        ),
    ] = "one",
    key: Annotated[
        str | None, typer.Option(help="Group within which order must hold. Default: the record's key.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="Expression that must not decrease within a key. Default: the input order.")
    ] = None,
    unordered: Annotated[
        bool,
        typer.Option("--unordered", help="Do not compare the order of outputs: large topics are then only scanned."),
    ] = False,
    schema: Annotated[
        str | None, typer.Option(help="Schema of JSON values, e.g. `id LONG, total INT`: sets the types of `json`.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option(help="Query over `input` that computes the expected output, or a .sql file.")
    ] = None,
    output_sql: Annotated[
        str | None,
        typer.Option(
            help="Query over `output` whose rows are compared with --sql, or a .sql file. Default: all outputs."
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start of the audit: a time, offsets as JSON, or `@file` with offsets.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the audit, in the same form as --from.")] = None,
    slack: Annotated[
        float, typer.Option(help="Tolerance in seconds at --from and --to when matching inputs and outputs.")
    ] = 600.0,
    group: Annotated[
        str | None, typer.Option(help="Consumer group whose offsets show up to where the input was processed.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="`report.json` of an earlier audit: read only later records.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(help="librdkafka setting `name=value`, e.g. for TLS or SASL; repeatable.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(help="Properties file with TLS and SASL settings of Java's client, instead of --config."),
    ] = None,
    ledger: Annotated[
        list[str] | None,
        typer.Option(help="Checkpoint directory of a job whose sinks store provenance there; repeatable."),
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option(help="Job whose outputs are compared, if several wrote them; repeat for names of a renamed job."),
    ] = None,
    input_bootstrap: Annotated[
        str | None, typer.Option(help="Brokers of the inputs, if the outputs are on another cluster.")
    ] = None,
    input_config: Annotated[
        list[str] | None,
        typer.Option(help="librdkafka setting `name=value` of the inputs' cluster, if it has others; repeatable."),
    ] = None,
    input_command_config: Annotated[
        Path | None,
        typer.Option(help="Properties file of the inputs' cluster, if it has other settings."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(help="Schema registry of Avro, Protobuf and JSON values: their fields are read like JSON."),
    ] = None,
    registry_config: Annotated[
        list[str] | None,
        typer.Option(help="Setting `name=value` of the registry's client, e.g. `basic.auth.user.info`; repeatable."),
    ] = None,
    all_findings: Annotated[
        bool,
        typer.Option("--all-findings", help="Write every finding to `findings.jsonl`; the report has the first five."),
    ] = False,
    bootstrap_servers: Bootstrap = None,
    report_dir: ReportDir = Path(".kafka-eos/audit"),
    master: Master = None,
) -> None:
    """Audit topics written by any program: duplicates, losses, order, aborted records, a recomputation in SQL.

    Expressions are Spark SQL over `key` and `value` (text), `raw_key`, `raw_value`, `headers`, `json`, `topic`,
    `partition`, `offset`, `timestamp`. Exit code 0 for PASS, 1 for FAIL, 2 for INCONCLUSIVE. Needs Java 17 and the
    extra `audit`.

    Example: `kafka-eos audit topics --input orders --output totals --id '$.order_id'`
    """
    cli = {} if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers}
    settings = Settings.resolve(cli=cli)
    with conclude_on_error("topics", report_dir) as progress:
        from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
        from kafka_eos.audit.topics.question import moment, query

        defaults = settings.kafka_config if command_config is None and settings.kafka_config else {}
        question = TopicAuditOptions(
            settings.bootstrap_servers, tuple(input or ()), tuple(output), id, input_id, where, output_where,
            key, order, schema, query(sql), query(output_sql), moment(start), moment(end), slack, group,
            _earlier(resume), expect, {**defaults, **_settings(config)}, tuple(job or ()), tuple(ledger or ()),
            input_bootstrap, _settings(input_config), registry, _settings(registry_config),
            command_config, input_command_config, unordered,
        )  # fmt: skip
        verdict = audit_topics(
            question, report_dir=report_dir, all_findings=all_findings, progress=progress, master=master
        )
    exit_with_verdict(verdict, report_dir)


def _earlier(report: Path | None) -> dict[str, Any] | None:
    if report is None:
        return None
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{report} is not the report.json of an audit: {error}") from None
    return found if isinstance(found, dict) else {}


def _settings(config: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in config or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ConfigError(f"--config takes name=value, not {wrong[0]!r}")
    return {name: value for name, _, value in pairs}


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    with console.status("starting Spark") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                print_message(text)

        yield progress


@contextmanager
def conclude_on_error(what: str, report_dir: Path) -> Iterator[Callable[[str], None]]:
    """Run the block; end the command as INCONCLUSIVE if anything keeps it from a verdict."""
    from kafka_eos.audit.report.audit_outcome import ReportWriter
    from kafka_eos.audit.report.report_files import Context

    try:
        with _progress() as progress:
            yield progress
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - printed, and stored in the report
        exit_with_verdict(ReportWriter(report_dir, Context(job=what, app=what)).without_verdict(error), report_dir)


def exit_with_verdict(verdict: Verdict, report_dir: Path, *, at_least: int = 0, app: str | None = None) -> NoReturn:
    """Print the verdict and end the command with its exit code, or with ``at_least`` if that is not 0.

    ``app``: the pipeline and the options by which it was found, for the command that replays the epoch of a finding.
    """
    echo(verdict.headline)
    for finding in verdict.findings:
        echo(f"\n{finding.check.question} {finding.count:,} found, the first:")
        for offender in finding.examples:
            echo(f"  {offender}")
        records = [record for each in finding.examples if (record := find_input_record(each.detail)) is not None]
        if app is not None and records:
            test = f"tests/test_{re.sub(r'[^a-zA-Z0-9]+', '_', records[0])}.py"
            command = f"kafka-eos replay {app} --record {shlex.quote(records[0])} --write-test {test}"
            echo(f"  the first one as a test: {command}")
    if verdict.performed:
        for check, reason in verdict.skipped.items():
            echo(f"not checked, {check.value}: {reason}")
    for note in verdict.facts.notes:
        echo(f"note: {note}")
    echo(f"report: {report_dir}")
    raise typer.Exit(at_least or verdict.exit_code)
