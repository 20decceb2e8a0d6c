"""One run as a shell shows it: its start, the running job, and the summary after the last commit."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime

from kafka_eos import __version__
from kafka_eos._util import logging_setup as logs
from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.extras import ensure_extra
from kafka_eos.abc.context import JobContext
from kafka_eos.api.datasets import list_inputs, list_outputs
from kafka_eos.api.engine import Engine
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import Observer, read_status
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.core.ids import Term
from kafka_eos.embedded.supervisor import run as run_embedded
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.monitoring.terminal.event_log import EventLog
from kafka_eos.monitoring.terminal.exit_codes import EXIT_ONLY_DEAD_LETTERS, exit_on_error
from kafka_eos.monitoring.terminal.live_view import LiveView, format_bytes, print_message
from kafka_eos.plan import Plan, SourceNode, TimestampsNode
from kafka_eos.protocol.dead_letter_limit import describe_counts
from kafka_eos.runtime.program import Program

_KAFKA = "kafka://"
_ADVICE = "check the source type and your code. The headers dead_letter.error and dead_letter.message give the reason"


def run_script(program: Program, settings: Mapping[str, object], engine: Engine | None, until_caught_up: bool) -> None:
    """Run ``pipeline.run(**settings)`` from a script. Output and exit code are those of ``kafka-eos run``."""
    with exit_on_error():
        resolved = Settings.resolve(code={**program.code_settings, **settings})
        run_with_view(program, resolved, engine, until_caught_up)


def run_with_view(program: Program, settings: Settings, engine: Engine | None, until_caught_up: bool) -> None:
    """Run a pipeline to its end and show its progress and summary. Without ``engine`` on the embedded one."""
    stacks.enable_dumps("supervisor")
    plan = program.plan()
    show_error_messages(settings.show_error_messages)
    logs.configure_logging(plan.name, "supervisor", settings.log_format, settings.log_level)
    with ExitStack() as around:
        watching = _start_observers(plan, settings, around)
        view = EventLog() if logs.is_json() else around.enter_context(LiveView(plan.name))
        observers = (_StartMessage(plan, settings, engine is None, view), *watching)
        run = run_embedded if engine is None else engine.run
        run(plan, program.app, settings, observers=observers, until_caught_up=until_caught_up)
    if view.standby_ended is not None:
        print_message(view.standby_ended)
        return
    aside = f", {describe_counts(view.dead_letters)}" if view.dead_letters else ""
    ended = (
        describe_filtered(view.filtered)
        + describe_input(view.read)
        + describe_output(view.written)
        + describe_state(view.state, view.timers)
    )
    ended += describe_event_time(plan, view.watermarks, view.splits, view.event_time)
    refused_rows = describe_set_aside(view.set_aside) + describe_late_rows(view.late)
    print_message("drained and committed", (aside, "yellow"), (refused_rows, "yellow"), ended)
    if view.wrote_only_dead_letters:
        print_message((f"nothing but dead letters was written: {_ADVICE}", "bold yellow"), level=logging.WARNING)
        if until_caught_up:
            sys.exit(EXIT_ONLY_DEAD_LETTERS)


class _StartMessage:
    """An observer in front of the view: it prints what starts once the job's lock is held."""

    def __init__(self, plan: Plan, settings: Settings, has_workers: bool, view: Observer) -> None:
        self._plan = plan
        self._settings = settings
        self._has_workers = has_workers
        self._view = view

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "started":
            plan, settings = self._plan, self._settings
            workers = _workers(settings) if self._has_workers else ""
            print_message(
                "starting ", (plan.name, "bold"), f"{workers}, checkpoints in {settings.checkpoint_location(plan.name)}"
            )
            if brokers := _brokers(plan, settings):
                print_message(f"connecting to Kafka at {', '.join(brokers)} …")
        self._view(event, facts)


def _start_observers(plan: Plan, settings: Settings, around: ExitStack) -> tuple[Observer, ...]:
    """Start what watches a run: the HTTP server, OpenTelemetry, OpenLineage. Return their observers."""
    return (*_start_metrics(plan, settings, around), *_start_lineage(plan, settings, around))


def _start_lineage(plan: Plan, settings: Settings, around: ExitStack) -> tuple[Observer, ...]:
    if settings.openlineage is None:
        return ()
    ensure_extra("openlineage", "openlineage")
    from kafka_eos.monitoring.lineage import JobName, start_lineage

    ctx = JobContext(plan.name, Term(0), settings.connector_defaults())
    job = JobName(settings.openlineage, plan.name)
    lineage = start_lineage(job, list_inputs(plan, ctx), list_outputs(plan, ctx), __version__)
    return (around.enter_context(lineage),)


def _start_metrics(plan: Plan, settings: Settings, around: ExitStack) -> tuple[Observer, ...]:
    """Start the HTTP server and the OpenTelemetry export of a run; return their observers."""
    if settings.http_at is None and not settings.otel:
        return ()
    observed = MetricsObserver(plan.name, __version__)
    if settings.http_at is not None:
        _serve(observed, settings.http_at, plan, settings, around)
    return (observed, *(_export(observed, plan, around) if settings.otel else ()))


def _export(observed: MetricsObserver, plan: Plan, around: ExitStack) -> tuple[Observer, ...]:
    ensure_extra("otel", "otel")
    from kafka_eos.monitoring.metrics.opentelemetry import start_export

    export = around.enter_context(start_export(observed, plan.name, __version__))
    print_message(f"OpenTelemetry: {', '.join(export.places) or 'disabled by OTEL_… variables, nothing is sent'}")
    return export.observers


def _serve(
    observed: MetricsObserver, address: tuple[str, int], plan: Plan, settings: Settings, around: ExitStack
) -> None:
    """Serve the job's HTTP endpoints at its address until the run ends."""
    from kafka_eos.monitoring.dashboard.routes import Pages  # imported only if needed
    from kafka_eos.monitoring.dashboard.server import serve_dashboard
    from kafka_eos.monitoring.http.access import HttpAccess
    from kafka_eos.monitoring.metrics.endpoints import MetricsEndpoints

    directory = settings.job_dir(plan.name)
    answers = MetricsEndpoints(observed, settings.http_ready_within, lambda: read_status(directory))
    pages, what = Pages(directory.parent, plan.name), f"http={settings.http}"
    access = HttpAccess.of(settings)
    for danger in access.find_dangers(address[0]):
        print_message((f"{what}: {danger}", "yellow"), level=logging.WARNING)
    url = around.enter_context(serve_dashboard(address, pages, what, answers.routes(), access))
    print_message(f"dashboard at {url}/, metrics at {url}/metrics")


def describe_set_aside(rows: Mapping[str, int]) -> str:
    """Describe rows that receivers refused, by sink."""
    by, total = ", ".join(f"{count:,} of {sink}" for sink, count in rows.items()), sum(rows.values())
    return f", {total:,} row{'s' if total > 1 else ''} refused by the receiver and set aside ({by})" if rows else ""


def describe_late_rows(rows: Mapping[str, int]) -> str:
    """Describe late rows, by operator."""
    by, total = ", ".join(f"{count:,} at {operator}" for operator, count in rows.items()), sum(rows.values())
    return f", {total:,} late row{'s' if total > 1 else ''} ({by})" if rows else ""


def describe_input(read: Mapping[str, int]) -> str:
    """Describe the records that this run has read and committed, by source."""
    counts = ", ".join(f"{records:,} from {source}" for source, records in read.items() if records)
    return f"; input of this run: {counts or 'none'}"


def describe_filtered(records: Mapping[str, int]) -> str:
    """Describe the records that header filters dropped, by source."""
    return "".join(f", {count:,} records of {source} dropped by its header filter" for source, count in records.items())


def describe_output(written: Mapping[str, int]) -> str:
    """Describe the records that this run has committed, by sink."""
    counts = ", ".join(f"{records:,} to {sink}" for sink, records in written.items() if records)
    return f"; output of this run: {counts or 'none'}"


def describe_state(state: Mapping[str, int], timers: Mapping[str, int]) -> str:
    """Describe state and pending timers of the last checkpoint, by operator."""
    sizes = ", ".join(f"{format_bytes(size)} at {operator}" for operator, size in state.items() if size)
    counts = ", ".join(f"{count:,} at {operator}" for operator, count in timers.items() if count)
    total = sum(timers.values())
    held = f"; state: {sizes}" if sizes else ""
    return held + (f"; {total:,} pending timer{'s' if total > 1 else ''} ({counts})" if total else "")


def describe_event_time(
    plan: Plan,
    watermarks: Mapping[str, Mapping[str, int]],
    splits: Mapping[str, Collection[str]],
    emitted: Mapping[str, Mapping[str, object]],
) -> str:
    """Describe the watermark of each source, or the split that holds it back.

    ``emitted``: the engine's own watermark, by operator. An engine that reports none has no idle splits.
    """
    return "".join(
        f"; {_describe_emitted(node, emitted[node.name])}"
        if node.name in emitted
        else f"; {_describe_watermark(plan, node, watermarks.get(node.name, {}), splits)}"
        for node in plan.nodes
        if isinstance(node, TimestampsNode) and (node.name in watermarks or node.source in splits)
    )


def _describe_emitted(node: TimestampsNode, at: Mapping[str, object]) -> str:
    watermark, split = at["watermark"], at["waits_for"]
    if isinstance(watermark, int):
        return f"watermark of {node.source}: {_moment(watermark)}"
    if split is None:
        return f"watermark of {node.source}: not known yet"
    hint = (
        "the run ended before the partition counted as idle; results that wait for it stay "
        "in the checkpoint, and a run without --until-caught-up emits them"
        if node.strategy.detects_idleness
        else "watermarks=….with_idleness(seconds) would not wait"
    )
    return f"watermark of {node.source}: none, because it waits for {split}, which had no records yet ({hint})"


def _describe_watermark(
    plan: Plan, node: TimestampsNode, known: Mapping[str, int], splits: Mapping[str, Collection[str]]
) -> str:
    source = plan.node(node.source)
    assert isinstance(source, SourceNode)
    ends = source.source.bounds({}) is not None
    empty = sorted({*splits.get(node.source, ())} - known.keys())
    if empty and not (ends or node.strategy.detects_idleness):
        which = f"{empty[0]} has" if len(empty) == 1 else f"{empty[0]} and {len(empty) - 1} more have"
        hint = "watermarks=….with_idleness(seconds) would not wait"
        return f"watermark of {node.source}: none, because {which} had no records yet ({hint})"
    return f"watermark of {node.source}: {_moment(min(known.values())) if known else 'not known yet'}"


def _moment(time: int) -> str:
    with suppress(OverflowError, ValueError):  # years outside of datetime's range
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{time} ms since 1970"


def _workers(settings: Settings) -> str:
    """Describe the number of workers, and whether it was configured."""
    count, given = settings.parallelism, settings.origin_of("parallelism") != "default"
    return f" with {count} worker{'s' if count > 1 else ''}{'' if given else ' (default: one per core)'}"


def _brokers(plan: Plan, settings: Settings) -> list[str]:
    """Return the bootstrap servers that must respond before the start: those of the sinks."""
    context = JobContext(plan.name, Term(0), settings.connector_defaults())
    scopes = {sink.sink.scope(context) for sink in plan.sinks}
    return sorted(scope.removeprefix(_KAFKA) for scope in scopes if scope.startswith(_KAFKA))
