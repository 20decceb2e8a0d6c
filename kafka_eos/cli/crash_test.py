"""``kafka-eos crash-test``: kill the user's pipeline at every step, and prove that its output is exactly-once."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from kafka_eos.abc.auditable import AuditableTopic
from kafka_eos.cli.options import Bootstrap
from kafka_eos.cli.output import echo
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.monitoring.terminal.live_view import console
from kafka_eos.plan import Plan

if TYPE_CHECKING:
    from kafka_eos.devtools.crash_test.faults import FaultPlan
    from kafka_eos.devtools.crash_test.options import TestLoad

_KILLS: Final = 30
_QUICK_KILLS: Final = 2


def crash_test(
    app: Annotated[str, typer.Argument(help="File or module of the pipeline: `orders.py` or `orders.py:build`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the most harmful steps and two kills, for CI. No broker restarts.")
    ] = False,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Input: `generated` (default) makes rows of the source's type, `topic` samples the real topics, and a "
            "FILE has one JSON value per line; SOURCE=FILE if there are several sources.",
        ),
    ] = None,
    records: Annotated[
        int | None, typer.Option(min=100, help="Records to generate or sample. Default: 20000, with --quick 3000.")
    ] = None,
    kills: Annotated[
        int | None, typer.Option(min=0, help="Kills at random times, besides those at each step. Default: 30.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated rows and of the faults.")] = 1,
    engine: Annotated[
        Literal["embedded", "spark"],
        typer.Option(help="Engine: `embedded` worker processes, or a small `spark` cluster."),
    ] = "embedded",
    directory: Annotated[Path, typer.Option(help="Directory for all files of the test.")] = Path(
        ".kafka-eos/crash-test"
    ),
    bootstrap_servers: Bootstrap = None,
    sample_from: Annotated[
        str | None, typer.Option(help="With `--input topic`: the cluster of the real topics, `host:port`.")
    ] = None,
    postgres: Annotated[
        list[str] | None,
        typer.Option(help="Variable that gets the address of a PostgreSQL of the test, for PostgresSink."),
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option(help="Variable that gets an empty directory of the test, for sinks of files.")
    ] = None,
    write_outputs: Annotated[
        bool, typer.Option("--write-outputs", help="Write to the tables and files that the pipeline names.")
    ] = False,
    check_code: Annotated[
        bool, typer.Option(help="Look for side effects and functions that are not deterministic first.")
    ] = True,
) -> None:
    """Kill a pipeline at every step of a checkpoint, a commit and a recovery, then compare every output.

    The pipeline runs as a real job with two workers on a broker of its own, or on a given one, where it writes only
    topics that the test creates. Its processes are killed (SIGKILL) at each named step, then at random times. The
    broker is restarted, the number of workers changes, a savepoint is taken, and a frozen job resumes beside its
    successor. At the end an audit on Spark recomputes all topics, tables, files and the state. Needs Java 17 and the
    extra `audit`.

    First the functions run twice in memory. A side effect, or a result that differs, is reported with its line.

    Exit code 0 for PASS, 1 for FAIL, 2 for INVALID (nothing is proven), 3 for PARTIAL (some outputs were not compared).
    `report.html` in the directory shows what was killed when, what was compared, and what was not.

    Example: `kafka-eos crash-test orders.py --quick`

    Example: `kafka-eos crash-test shop.py --input orders.jsonl --postgres DATABASE --files LAKE`
    """
    from kafka_eos.devtools.crash_test.crash_test import run_crash_test
    from kafka_eos.devtools.crash_test.options import CrashTestOptions
    from kafka_eos.devtools.crash_test.private_servers import WantedServers

    sources, count = given or ["generated"], records or (3_000 if quick else 20_000)
    random_kills = (_QUICK_KILLS if quick else _KILLS) if kills is None else kills
    servers = WantedServers(tuple(postgres or ()), tuple(files or ()))

    def load(plan: Plan, settings: Settings) -> TestLoad:
        if not write_outputs and not (servers.postgres or servers.directories):
            _refuse_outputs(plan)
        return _make_load(plan, settings, sources, count, seed, sample_from, check_code)

    def faults(plan: Plan) -> FaultPlan:
        own_broker = bootstrap_servers is None
        return _plan_faults(plan, seed, random_kills, quick=quick, own_broker=own_broker, engine=engine)

    options = CrashTestOptions(
        app=AppRef.parse(app),
        make_load=load,
        make_faults=faults,
        command=f"kafka-eos {shlex.join(sys.argv[1:])}",
        directory=directory,
        seconds=20.0 if quick else 120.0,
        engine=engine,
        bootstrap=bootstrap_servers,
        interval="200ms",
        servers=servers,
        audits_state=not quick,
        ends_at_findings=quick,
    )
    result = run_crash_test(options, console)
    echo(result.headline)
    echo(f"report: {directory / 'report.html'}, {directory / 'report.json'}")
    raise typer.Exit(result.exit_code)


def _refuse_outputs(plan: Plan) -> None:
    """Raise ConfigError if the pipeline writes to another system than Kafka: the test would leave its rows there."""
    for node in plan.sinks:
        if not isinstance(node.sink, AuditableTopic):
            raise ConfigError(
                f"sink {node.name!r} writes to a system outside of Kafka, where rows of the test would stay. Let the "
                "pipeline read the address from an environment variable, and pass --postgres VARIABLE (PostgreSQL) or "
                "--files VARIABLE (a directory): the test then provides a separate one. Or pass --write-outputs to "
                f"write there\n  {node.code_line}"
            )


def _make_load(
    plan: Plan,
    settings: Settings,
    given: list[str],
    count: int,
    seed: int,
    sample_from: str | None,
    check_code: bool,
) -> TestLoad:
    from kafka_eos.devtools.crash_test.input_records import generate, read_files, sample_topics, topics_of_sources
    from kafka_eos.devtools.crash_test.options import TestLoad

    topics = topics_of_sources(plan, settings.bootstrap_servers)
    match given:
        case ["generated"]:
            rows = generate(plan, topics, count, seed)
        case ["topic"]:
            real = sample_from or Settings.resolve().bootstrap_servers
            rows = sample_topics(plan, topics, real, count)
        case _:
            rows = read_files(plan, topics, given)
    records = [(topics[source], record) for source, record in rows.records]
    return TestLoad(records, len(records), rows.description, rows.by_source() if check_code else None)


def _plan_faults(plan: Plan, seed: int, kills: int, *, quick: bool, own_broker: bool, engine: str) -> FaultPlan:
    from kafka_eos.devtools.crash_test.faults import StepsOfPlan, plan_every_step

    modules = [type(node.sink).__module__ for node in plan.sinks]
    steps = StepsOfPlan(
        sinks=sum(not node.is_dead_letter_sink for node in plan.sinks),
        keeps_state=any(node.stateful for node in plan.nodes),
        writes_lake=any(
            name.startswith(("kafka_eos.connectors.delta", "kafka_eos.connectors.iceberg")) for name in modules
        ),
        has_outbox=any(
            name.startswith(("kafka_eos.connectors.http", "kafka_eos.connectors.idempotent")) for name in modules
        ),
    )
    return plan_every_step(steps, seed, kills, quick=quick, own_broker=own_broker, engine=engine)
