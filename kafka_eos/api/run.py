"""One run as a shell shows it: what begins and where, the job at work, and that all is committed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Protocol

from kafka_eos import __version__
from kafka_eos._util import logging_setup as logs
from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.extras import expect_extra, has_extra
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.source import Bounded
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import Observer, read_status
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.embedded.supervisor import run as run_embedded
from kafka_eos.monitoring.metrics.job_observer import Observed
from kafka_eos.monitoring.terminal.event_log import EventLog
from kafka_eos.monitoring.terminal.exit_codes import EXIT_ALL_REFUSED, explained
from kafka_eos.monitoring.terminal.live_view import LiveView, in_bytes, say
from kafka_eos.plan import Plan, Source, Timestamps
from kafka_eos.protocol.dead_letter_limit import described
from kafka_eos.runtime.program import Program

_KAFKA = "kafka://"


class Runs(Protocol):
    """What runs a plan: ``run`` of an engine."""

    def __call__(
        self,
        plan: Plan,
        app: AppRef,
        settings: Settings,
        /,
        *,
        observers: tuple[Observer, ...] = (),
        until_caught_up: bool = False,
    ) -> None: ...


def run_script(program: Program, settings: Mapping[str, object], runs: Runs | None, until_caught_up: bool) -> None:
    """``pipeline.run(**settings)`` in the script itself: looks and ends like ``kafka-eos run`` of that file."""
    with explained():
        resolved = Settings.resolve(code={**program.code_settings, **settings})
        run_shown(program, resolved, runs, until_caught_up)


def run_shown(program: Program, settings: Settings, runs: Runs | None, until_caught_up: bool) -> None:
    """Run to the end, and show it. Without ``runs`` on the embedded engine."""
    stacks.be_ready("supervisor")
    plan = program.plan()
    logs.begin(plan.name, "supervisor", settings.log_format, settings.log_level)
    workers = _workers(settings) if runs is None else ""
    say("running ", (plan.name, "bold"), f"{workers}, checkpoints in {settings.checkpoints_of(plan.name)}")
    if brokers := _brokers(plan, settings):
        say(f"asking Kafka at {', '.join(brokers)} …")
    with ExitStack() as around:
        watching = _watching(plan, settings, around)
        view = EventLog() if logs.as_json() else around.enter_context(LiveView(plan.name))
        observers = (view, *watching)
        (runs or run_embedded)(plan, program.app, settings, observers=observers, until_caught_up=until_caught_up)
    if view.stood_down is not None:
        say(view.stood_down)
        return
    aside = f", {described(view.dead_letters)}" if view.dead_letters else ""
    ended = left_out(view.left_out) + took_in(view.read) + put_out(view.written) + left(view.state, view.timers)
    ended += reached(plan, view.watermarks, view.splits)
    say("drained and committed", (aside, "yellow"), (late(view.late), "yellow"), ended)
    if refused := view.all_refused:
        say((every_one_refused(refused), "bold yellow"), level=logging.WARNING)
        if until_caught_up:
            sys.exit(EXIT_ALL_REFUSED)


def _watching(plan: Plan, settings: Settings, around: ExitStack) -> tuple[Observer, ...]:
    """What hears the job for those who watch it from elsewhere, until the end."""
    if settings.http_at is None and not settings.otel:
        return ()
    observed = Observed(plan.name, __version__)
    if settings.http_at is not None:
        _serve(observed, settings.http_at, plan, settings, around)
    return (observed, *(_export(observed, plan, around) if settings.otel else ()))


def _export(observed: Observed, plan: Plan, around: ExitStack) -> tuple[Observer, ...]:
    expect_extra("otel", "otel")
    from kafka_eos.monitoring.metrics.opentelemetry import exporting

    export = around.enter_context(exporting(observed, plan.name, __version__))
    say(f"OpenTelemetry: {', '.join(export.places) or 'OTEL_… variables say that nothing is sent'}")
    return export.observers


def _serve(observed: Observed, address: tuple[str, int], plan: Plan, settings: Settings, around: ExitStack) -> None:
    """At its address, until the end."""
    from kafka_eos.monitoring.metrics.http_server import Answers, serving  # whoever asks for none waits for none

    directory = settings.job_dir(plan.name)
    answers = Answers(observed, settings.http_ready_within, lambda: read_status(directory))
    if has_extra("ui"):
        from kafka_eos.monitoring.dashboard import server
        from kafka_eos.monitoring.dashboard.routes import Pages, answered

        pages, what = Pages(directory.parent, plan.name), f"http={settings.http}"
        url = around.enter_context(server.serving(address, pages, what, answered(answers)))
        say(f"dashboard at {url}/, metrics at {url}/metrics")
    else:
        url = around.enter_context(serving(address, answers))
        say(f"metrics at {url}/metrics (a dashboard as well: pip install 'kafka-eos[ui]')")


def late(rows: Mapping[str, int]) -> str:
    """Rows that came when their time was over, by who has seen them; nothing of none."""
    by, total = ", ".join(f"{count:,} at {operator}" for operator, count in rows.items()), sum(rows.values())
    return f", {total:,} late row{'s' if total > 1 else ''} ({by})" if rows else ""


def every_one_refused(records: int) -> str:
    """What to tell of a run that has read nothing but what it had to send aside."""
    each = f"each of the {records:,} records" if records > 1 else "the only record"
    return (
        f"{each} that this run read became a dead letter: is the type of the source right, and the code? The headers "
        "dead_letter.error and dead_letter.message of each say why"
    )


def took_in(read: Mapping[str, int]) -> str:
    """What the run has read and committed what came of it, by source."""
    counts = ", ".join(f"{records:,} from {source}" for source, records in read.items() if records)
    return f"; input of this run: {counts or 'none'}"


def left_out(records: Mapping[str, int]) -> str:
    """What the header filters of sources left out; nothing of none."""
    return "".join(f", {count:,} of {source} left out by its header filter" for source, count in records.items())


def put_out(written: Mapping[str, int]) -> str:
    """What the run has committed, by sink."""
    counts = ", ".join(f"{records:,} to {sink}" for sink, records in written.items() if records)
    return f"; output of this run: {counts or 'none'}"


def left(state: Mapping[str, int], timers: Mapping[str, int]) -> str:
    """What the last checkpoint holds, by operator: bytes of state, and timers that are pending; nothing of none."""
    sizes = ", ".join(f"{in_bytes(size)} at {operator}" for operator, size in state.items() if size)
    counts = ", ".join(f"{count:,} at {operator}" for operator, count in timers.items() if count)
    total = sum(timers.values())
    held = f"; state: {sizes}" if sizes else ""
    return held + (f"; {total:,} pending timer{'s' if total > 1 else ''} ({counts})" if total else "")


def reached(plan: Plan, watermarks: Mapping[str, Mapping[str, int]], splits: Mapping[str, Collection[str]]) -> str:
    """How far event time has come, by source, or which splits it waits for: windows of later times stay open."""
    return "".join(
        f"; event time of {node.source} {_come_to(plan, node, watermarks.get(node.name, {}), splits)}"
        for node in plan.nodes
        if isinstance(node, Timestamps) and (node.name in watermarks or node.source in splits)
    )


def _come_to(plan: Plan, node: Timestamps, known: Mapping[str, int], splits: Mapping[str, Collection[str]]) -> str:
    source = plan.node(node.source)
    assert isinstance(source, Source)
    ends = isinstance(source.source, Bounded) and source.source.bounds({}) is not None
    silent = sorted({*splits.get(node.source, ())} - known.keys())
    if silent and not (ends or node.strategy.heeds_silence):
        which = f"{silent[0]}: nothing has come of it" if len(silent) == 1 else ""
        which = which or f"{silent[0]} and {len(silent) - 1} more: nothing has come of them"
        return f"waits for {which} yet (watermarks=….with_idleness(seconds) goes on)"
    return f"has come to {_moment(min(known.values()))}" if known else "is not known yet"


def _moment(time: int) -> str:
    with suppress(OverflowError, ValueError):  # years that datetime does not know
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{time} ms since 1970"


def _workers(settings: Settings) -> str:
    """How many there will be, and whether anybody has said so."""
    count, given = settings.parallelism, settings.origin_of("parallelism") != "default"
    return f" with {count} worker{'s' if count > 1 else ''}{'' if given else ' (by default one a core)'}"


def _brokers(plan: Plan, settings: Settings) -> list[str]:
    """The clusters that must answer before anything starts: those of the sinks."""
    context = JobContext(plan.name, Term(0), settings.for_connectors())
    scopes = {sink.sink.scope(context) for sink in plan.sinks}
    return sorted(scope.removeprefix(_KAFKA) for scope in scopes if scope.startswith(_KAFKA))
